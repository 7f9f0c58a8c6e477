//! CRC-32C under TensorFlow's mask.

/// The checksum as it is in a file.
pub(crate) fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_tensorflow() {
        // From Python: struct.unpack("<I", crc32c.masked_crc32c(b"123456789")): 0xe3069283 of RFC 3720 under the mask.
        assert_eq!(
            masked(b"123456789"),
            0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8)
        );
        assert_eq!(masked(b""), 0xa282_ead8);
    }
}
