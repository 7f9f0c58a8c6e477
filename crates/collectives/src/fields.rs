//! Fields of messages and headers, which have fixed places.

/// The `N` bytes at `place`.
pub(crate) fn field<const N: usize>(bytes: &[u8], place: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[place..place + N]);
    field
}
