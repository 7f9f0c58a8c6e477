//! Text from outside, made such that it can be shown: on a terminal, and in a page.

use std::ffi::OsStr;

/// Whether a character could move the cursor, ring a bell, turn the direction of what stands beside it, or hide in a
/// name.
///
/// ```
/// assert!(everburn_record::plain::is_unruly('\u{1b}') && !everburn_record::plain::is_unruly('é'));
/// ```
pub fn is_unruly(character: char) -> bool {
    let turns = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}');
    let unseen = matches!(
        character,
        '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}' | '\u{feff}'
    );
    turns || unseen || character.is_control()
}

/// One line of at most `most` characters, without any that command a terminal or a page: for what a store, another
/// process or a file has said, in errors, logs and views.
///
/// ```
/// assert_eq!(everburn_record::plain::line("one\ntwo, three", 8), "one two…");
/// ```
pub fn line(text: &str, most: usize) -> String {
    let mut plain = String::with_capacity(text.len().min(4 * most));
    let mut characters = text.chars().map(|character| match character {
        '\n' | '\r' | '\t' => ' ',
        unruly if is_unruly(unruly) => '\u{fffd}',
        plain => plain,
    });
    plain.extend(characters.by_ref().take(most));
    if characters.next().is_some() {
        plain.pop();
        plain.push('…');
    }
    plain
}

/// Parts of a name by which its value is taken for a secret.
const SECRETS: [&str; 6] = [
    "token",
    "secret",
    "password",
    "passwd",
    "credential",
    "api_key",
];

/// What is in place of a secret.
const HIDDEN: &str = "(not shown)";

/// Whether a setting or a flag of this name holds what a report must not.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase().replace('-', "_");
    // The tokenizer of a text is none.
    let name = name.replace("tokenizer", "");
    SECRETS.iter().any(|secret| name.contains(secret))
}

/// `value`, if its name may be known to hold no secret.
pub fn unless_secret<'a>(name: &str, value: &'a str) -> &'a str {
    match is_secret(name) && !value.is_empty() {
        true => HIDDEN,
        false => value,
    }
}

/// A word of a command that a person copies into a shell: in quotation marks where the shell would change it.
pub fn word(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref().to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "-_=./:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A command line without the values of flags that are secrets.
pub fn command_line(words: &[String]) -> String {
    let mut shown = Vec::new();
    let mut hide_next = false;
    for word in words {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        let is_flag = word.starts_with('-') || value.is_some();
        match (hide_next, is_flag && is_secret(name), value) {
            (true, ..) => shown.push(HIDDEN.to_owned()),
            (false, true, Some(_)) => shown.push(format!("{name}={HIDDEN}")),
            (false, ..) => shown.push(self::word(word)),
        }
        hide_next = !hide_next && is_flag && is_secret(name) && value.is_none();
    }
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_to_a_terminal_become_marks() {
        assert_eq!(
            line("a\u{1b}[2Jb\nc\td\u{202e}e", 99),
            "a\u{fffd}[2Jb c d\u{fffd}e"
        );
        assert_eq!(
            line("\u{9b}31m\r\n\u{61c}\u{200b}e\u{301}", 99),
            "\u{fffd}31m  \u{fffd}\u{fffd}e\u{301}"
        );
        let quoted = "rank 1's `key` \\ \"é\"";
        assert_eq!(line(quoted, 80), quoted);
        assert_eq!(line("12345", 5), "12345");
        assert_eq!(line("123456", 5), "1234…");
        assert_eq!(line("ééé", 2), "é…");
    }

    #[test]
    fn words_that_a_shell_would_change_are_in_quotation_marks() {
        for (bare, shown) in [
            ("/runs/größe-1.5", "/runs/größe-1.5"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("fc.*", "'fc.*'"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(word(bare), shown);
        }
    }

    #[test]
    fn secrets_are_not_told() {
        assert_eq!(unless_secret("ranks.job_token", "abc"), HIDDEN);
        assert_eq!(unless_secret("text.tokenizer", "char"), "char");
        let words = [
            "train",
            "--job-token",
            "abc",
            "--job-token=abc",
            "EVERBURN_JOB_TOKEN=abc",
            "--tokenizer",
            "a b",
        ];
        let shown = command_line(&words.map(str::to_owned));
        assert!(!shown.contains("abc"), "{shown}");
        assert!(
            shown.starts_with("train --job-token (not shown) --job-token=(not"),
            "{shown}"
        );
        assert!(shown.ends_with("--tokenizer 'a b'"), "{shown}");
    }
}
