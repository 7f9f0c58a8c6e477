//! Rules about English: phrases for which there is a plainer one.

use super::TextFile;

/// Documents that people read first. Other text has the shorter list.
const DOCUMENTS: [&str; 5] = [
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "docs/",
];

/// Phrases for no text at all, each with what to write. A phrase is whole words in lower case.
const EVERYWHERE: [(&str, &str); 16] = [
    ("of ours", "`our`, or nothing"),
    ("of theirs", "`their`"),
    ("for want of", "`for lack of`"),
    ("so many", "a number, or `this many`"),
    ("let in", "`accepted`"),
    ("lets in", "`accepts`"),
    ("looks on", "`monitors`"),
    ("looking on", "`monitoring`"),
    ("to be had", "`available`"),
    ("can be had", "`is available`"),
    ("once a step", "`once per step`"),
    ("once a rank", "`once per rank`"),
    ("bytes a step", "`bytes per step`"),
    ("bytes a second", "`bytes per second`"),
    ("samples a second", "`samples per second`"),
    ("at the door", "what happens"),
];

/// Phrases that documents do not have either.
const IN_DOCUMENTS: [(&str, &str); 16] = [
    ("whoever", "the noun"),
    ("of one's own", "`your own`"),
    ("those that", "the noun"),
    ("goes on", "`continues`"),
    ("go on", "`continue`"),
    ("going on", "`continuing`"),
    ("lies", "`is`"),
    ("lie", "`are`"),
    ("stands", "`is`"),
    ("knows", "`has`, `supports`, `finds`"),
    ("tells", "`says`, `reports`"),
    ("told", "`reported`"),
    ("mend", "`fix`"),
    ("mended", "`fixed`"),
    ("as ever", "`as before`"),
    ("nothing of", "the noun"),
];

pub(super) fn check(file: &TextFile) -> Vec<String> {
    let is_document = file.is_under(&DOCUMENTS);
    // This file has the phrases, and the change log has words of the past.
    if !(is_document || file.is_rust()) || file.path.ends_with("tidy/wording.rs") {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    let mut in_block = false;
    for (index, line) in file.text.lines().enumerate() {
        if is_document && line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        if in_block {
            continue;
        }
        let prose = match is_document {
            true => line,
            false => comment(line),
        };
        let words = words(prose);
        let more: &[_] = if is_document { &IN_DOCUMENTS } else { &[] };
        for (phrase, advice) in EVERYWHERE.iter().chain(more) {
            if words.contains(&format!(" {phrase} ")) {
                complaints.push(file.complain(index, &format!("`{phrase}`: write {advice}")));
            }
        }
    }
    complaints
}

/// What a line of Rust says in a comment.
fn comment(line: &str) -> &str {
    let line = line.trim_start();
    if line.starts_with("//") { line } else { "" }
}

/// The words of `text` in lower case, with one space before, between and after them. Code between backticks counts
/// as one word.
fn words(text: &str) -> String {
    let mut words = String::from(" ");
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            words.push_str("code ");
            continue;
        }
        let lower = part.to_lowercase();
        let parts = lower.split(|c: char| !(c.is_alphanumeric() || "'-".contains(c)));
        for word in parts.filter(|word| !word.is_empty()) {
            words.push_str(word);
            words.push(' ');
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> String {
        check(&TextFile::sample(path, text)).join("\n")
    }

    #[test]
    fn phrases_are_found_as_whole_words() {
        let found = complaints("docs/a.md", "a\nIt Goes on.");
        assert_eq!(found, "docs/a.md:2: `goes on`: write `continues`");
        for text in ["cargo on", "it foretells", "`goes on`", "```\ngoes on\n```"] {
            assert_eq!(complaints("docs/a.md", text), "", "{text}");
        }
        assert!(!complaints("README.md", "tests of ours").is_empty());
    }

    #[test]
    fn code_has_the_shorter_list() {
        let path = "crates/a/src/lib.rs";
        assert!(complaints(path, "/// A rank of ours.").contains("`of ours`"));
        assert_eq!(complaints(path, "// It goes on."), "");
        assert_eq!(complaints(path, "let text = \"so many\";"), "");
        assert_eq!(complaints("CHANGELOG.md", "so many"), "");
    }
}
