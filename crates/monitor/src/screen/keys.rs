//! Keys, out of what a terminal sends.

/// A key, or something else that a terminal sends in one piece: a movement of the mouse, say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    /// Whatever else, as it came.
    Other(Vec<u8>),
}

impl Key {
    /// As a terminal sends it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Char(c) => c.to_string().into_bytes(),
            Self::Up => b"\x1b[A".to_vec(),
            Self::Down => b"\x1b[B".to_vec(),
            Self::PageUp => b"\x1b[5~".to_vec(),
            Self::PageDown => b"\x1b[6~".to_vec(),
            Self::Other(bytes) => bytes.clone(),
        }
    }
}

/// The longest sequence: what is longer is none.
const LONGEST: usize = 64;

/// Takes the bytes apart. A letter within a sequence is no key.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// A sequence whose end has not come.
    begun: Vec<u8>,
}

impl Keys {
    /// The keys that are whole. An escape that ends a piece is the key Escape: sequences come in one piece.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for (place, byte) in bytes.iter().enumerate() {
            self.begun.push(*byte);
            let last = place + 1 == bytes.len();
            if self.is_whole(last) || self.begun.len() > LONGEST {
                keys.push(key(std::mem::take(&mut self.begun)));
            }
        }
        keys
    }

    fn is_whole(&self, last: bool) -> bool {
        match self.begun[..] {
            [0x1b] => last,
            // A mouse of old: three bytes follow.
            [0x1b, b'[', b'M', ref rest @ ..] => rest.len() == 3,
            [0x1b, b'[', ref rest @ ..] => {
                rest.last().is_some_and(|end| (0x40..0x7f).contains(end))
            }
            [0x1b, b'O'] => false,
            [0x1b, ..] => true,
            // A letter of several bytes.
            ref letter => std::str::from_utf8(letter).is_ok() || letter.len() >= 4,
        }
    }
}

fn key(bytes: Vec<u8>) -> Key {
    match &bytes[..] {
        b"\x1b[A" | b"\x1bOA" => Key::Up,
        b"\x1b[B" | b"\x1bOB" => Key::Down,
        b"\x1b[5~" => Key::PageUp,
        b"\x1b[6~" => Key::PageDown,
        [byte] if (0x20..0x7f).contains(byte) => Key::Char(char::from(*byte)),
        _ => Key::Other(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_within_a_sequence_is_no_key() {
        let mut keys = Keys::default();
        let mouse = b"\x1b[<35;10;4Mr\x1b[Mqqq\x1b[A\x1bOBz";
        let read = keys.read(mouse);
        assert_eq!(read.len(), 6);
        assert_eq!(read[0], Key::Other(b"\x1b[<35;10;4M".to_vec()));
        assert_eq!(read[1], Key::Char('r'));
        assert_eq!(read[3..], [Key::Up, Key::Down, Key::Char('z')]);
        assert_eq!(keys.read(b"\x1b["), []);
        assert_eq!(keys.read(b"5~q"), [Key::PageUp, Key::Char('q')]);
        assert_eq!(keys.read(b"\x1b"), [Key::Other(b"\x1b".to_vec())]);
        assert_eq!(
            keys.read("ö".as_bytes()),
            [Key::Other("ö".as_bytes().to_vec())]
        );
    }

    proptest::proptest! {
        #[test]
        fn what_is_handed_on_is_what_came(bytes: Vec<u8>) {
            let mut keys = Keys::default();
            let mut all: Vec<u8> = keys.read(&bytes).iter().flat_map(Key::bytes).collect();
            all.extend(&keys.begun);
            // Arrows come in two forms, of which one is handed on.
            if !bytes.windows(2).any(|two| two == b"\x1bO") {
                proptest::prop_assert_eq!(all, bytes);
            }
        }
    }
}
