//! Tests of `tar`.

use everburn_tests::AssertContains;
use everburn_tests::tar::{archive, member, signed};

use super::*;

fn members(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, DatasetError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    std::fs::write(&path, bytes).unwrap();
    let mut read = Vec::new();
    let mut members = Members::open(&path)?;
    while let Some(member) = members.next()? {
        // Every other content is passed over.
        let content = match read.len() % 2 {
            0 => members.content(&member, 1 << 20)?,
            _ => bytes[member.offset as usize..][..member.size as usize].to_vec(),
        };
        read.push((member.name, content));
    }
    Ok(read)
}

#[test]
fn members_come_in_order_with_their_contents() {
    let large = vec![7; 100_000];
    let bytes = archive(&[("a/1.png", b"one"), ("b", &large), ("c", b""), ("d", b"4")]);
    let read = members(&bytes).unwrap();
    let names: Vec<_> = read.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a/1.png", "b", "c", "d"]);
    assert!(read[0].1 == b"one" && read[1].1 == large && read[3].1 == b"4");
    // Without the blocks at its end, too.
    assert_eq!(members(&bytes[..bytes.len() - 1024]).unwrap(), read);
    // The classic format has neither magic nor version.
    let mut classic = member("e", b"5");
    classic[257..265].fill(0);
    signed(&mut classic);
    assert_eq!(
        members(&classic).unwrap(),
        [("e".to_owned(), b"5".to_vec())]
    );
}

#[test]
fn long_names_of_gnu_and_pax_are_read() {
    let long = format!("{}/x.jpg", "n".repeat(300));
    for (kind, content) in [
        (b'L', format!("{long}\0")),
        (
            b'x',
            format!("19 mtime=1.5\n{} path={long}\n", long.len() + 10),
        ),
    ] {
        let mut first = member("@LongLink", content.as_bytes());
        first[156] = kind;
        signed(&mut first);
        let bytes = [first, member("short", b"ab"), member("next", b"c")].concat();
        let read = members(&bytes).unwrap();
        assert_eq!(read[0], (long.clone(), b"ab".to_vec()));
        assert_eq!(read[1].0, "next");
    }
}

#[test]
fn a_damaged_header_is_named_with_its_place_and_field() {
    let whole = archive(&[("a", &[1; 600]), ("b", b"2")]);
    let refused = |at: usize, byte: u8, resign: bool| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        if resign {
            signed(&mut bytes[at / 512 * 512..]);
        }
        members(&bytes).unwrap_err().to_string()
    };
    let error = refused(0, b'z', false);
    error.assert_contains(["checksum of the header at byte 0"]);
    let error = refused(1536 + 124, b'9', true);
    error.assert_contains(["size of the header at byte 1536", "octal"]);
    let error = refused(1536 + 124, b'7', true);
    assert!(error.contains("it is cut off"), "{error}");
    let error = members(&whole[..700]).unwrap_err().to_string();
    error.assert_contains(["size of the header at byte 0: the content ends at byte 1112"]);
    let mut absurd = whole.clone();
    absurd[124] = 0x80;
    absurd[125..136].fill(0xff);
    signed(&mut absurd);
    let error = members(&absurd).unwrap_err().to_string();
    assert!(error.contains("absurdly large"), "{error}");
}
