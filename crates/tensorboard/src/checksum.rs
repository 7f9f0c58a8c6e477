//! CRC-32C (Castagnoli), of RFC 3720, and TensorFlow's mask.

/// The polynomial, its bits in reverse order.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// By byte, what it does to the remainder.
const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            remainder = match remainder & 1 {
                1 => remainder >> 1 ^ POLYNOMIAL,
                _ => remainder >> 1,
            };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

fn crc32c(bytes: &[u8]) -> u32 {
    let fold = |crc: u32, byte: &u8| TABLE[((crc ^ u32::from(*byte)) & 255) as usize] ^ crc >> 8;
    !bytes.iter().fold(!0, fold)
}

/// The checksum as it stands in a file.
pub(crate) fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 3720, B.4, and the usual check value.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }
}
