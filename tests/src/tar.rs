//! Tar files for tests.

/// Headers and contents are whole blocks of this size.
const BLOCK: usize = 512;

/// A header, with its sum, and the content, filled up to whole blocks.
pub fn member(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = vec![0; BLOCK];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    header[156] = b'0';
    header[257..263].copy_from_slice(b"ustar\0");
    header[263..265].copy_from_slice(b"00");
    signed(&mut header);
    header.extend(content);
    header.resize(header.len().next_multiple_of(BLOCK), 0);
    header
}

/// Puts the right sum into a header.
pub fn signed(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u64 = header[..BLOCK].iter().map(|byte| u64::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// A whole file of members.
pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let members = members.iter();
    let members = members.flat_map(|(name, content)| member(name, content));
    members.chain(vec![0; 2 * BLOCK]).collect()
}
