//! Text as it is shown.

use everburn_record::plain::is_unruly;

/// Text from a run's files or a server as one line: what would command a terminal is escaped.
pub(super) fn plain(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => line.push(' '),
            unruly if is_unruly(unruly) => line.extend(unruly.escape_unicode()),
            plain => line.push(plain),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_no_commands() {
        assert_eq!(plain("a\x1b[2J\nb"), "a\\u{1b}[2J b");
        assert_eq!(plain("\u{9b}2J\u{202e}ü"), "\\u{9b}2J\\u{202e}ü");
    }
}
