//! Text of others in our messages.

/// The start of `text` in at most `most` characters, with everything escaped that a terminal would obey, not show
/// or show in another order: control characters, line breaks included, and invisible ones. For what
/// a store or another process has said, in errors, logs and views.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::printable;
///
/// assert_eq!(printable("it's \u{1b}[2J gone", 14), "it's \\u{1b}[2J");
/// ```
#[must_use]
pub fn printable(text: &str, most: usize) -> String {
    let mut shown = String::new();
    let mut left = most;
    for c in text.chars() {
        let escaped = c.escape_debug();
        let plain = matches!(c, '\'' | '"' | '\\');
        let width = if plain { 1 } else { escaped.len() };
        if width > left {
            break;
        }
        left -= width;
        match plain {
            true => shown.push(c),
            false => shown.extend(escaped),
        }
    }
    shown
}

/// The same of what may be text, at most `most` bytes of it.
pub(crate) fn printable_bytes(bytes: &[u8], most: usize) -> String {
    let start = &bytes[..bytes.len().min(most)];
    printable(&String::from_utf8_lossy(start), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_terminal_obeys_what_is_printable() {
        for (text, expected) in [
            ("rank 1's `key` \\ \"é\"", "rank 1's `key` \\ \"é\""),
            ("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}"),
            ("a\r\nb", "a\\r\\nb"),
            ("\u{9b}31m \u{202e}txt", "\\u{9b}31m \\u{202e}txt"),
        ] {
            assert_eq!(printable(text, 80), expected);
        }
        assert_eq!(printable("abcdef", 3), "abc");
        assert_eq!(printable("a\u{1b}b", 6), "a", "no half of an escape");
        assert_eq!(printable("a\u{1b}b", 7), "a\\u{1b}");
        assert_eq!(printable_bytes(b"\x1b\xffabc", 8), "\\u{1b}\u{fffd}a");
    }
}
