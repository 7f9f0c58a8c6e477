//! Rules about English: phrases for which there is a plainer one.

mod strings;

use super::TextFile;

/// Documents that people read first. Comments in code have the shorter list.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "STYLE.md",
    "CHANGELOG.md",
    "docs/",
];

/// Code whose comments are help texts.
const HELP: [&str; 4] = [
    "crates/cli/src/arguments",
    "crates/cli/src/weights/",
    "crates/monitor/src/command.rs",
    "crates/report/src/command.rs",
];

/// Phrases for no text at all, each with what to write. A phrase is whole words in lower case.
const EVERYWHERE: [(&str, &str); 33] = [
    ("of ours", "`our`, or nothing"),
    ("of theirs", "`their`"),
    ("of one's own", "`your own`"),
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
    ("samples a step", "`samples per step`"),
    ("tokens a second", "`tokens per second`"),
    ("ms a step", "`ms per step`"),
    ("at the door", "what happens"),
    ("goes on", "`continues`"),
    ("go on", "`continue`"),
    ("going on", "`continuing`"),
    ("is no number", "`is NaN`, or `is not a number`"),
    ("as ever", "`as before`"),
    ("mend", "`fix`"),
    ("mended", "`fixed`"),
    ("one process a rank", "`one process per rank`"),
    ("a process a rank", "`one process per rank`"),
    ("model of text", "`text model`"),
    ("models of text", "`text models`"),
    ("are not numbers", "`are NaN or infinite`"),
    ("taken for lost", "`counts as lost`"),
];

/// Phrases that documents, help, messages and the documentation of public items do not have either.
const IN_DOCUMENTS: [(&str, &str); 10] = [
    ("whoever", "the noun"),
    ("lies", "`is`"),
    ("lie", "`are`"),
    ("knows", "`has`, `supports`, `finds`"),
    ("tells", "`says`, `reports`"),
    ("told", "`reported`"),
    ("nothing of", "the noun"),
    ("tell", "`say`, `report`"),
    ("stands beside", "`accompanies`"),
    ("does not say", "`has no`"),
];

/// Phrases that documents and messages do not have.
const IN_MESSAGES: [(&str, &str); 4] = [
    ("stands", "`is`"),
    ("stand", "`are`"),
    ("behind", "`after`"),
    ("those that", "the noun"),
];

/// The crates whose public items people look up.
const FACADE: [&str; 13] = super::examples::FACADE;

pub(super) fn check(file: &TextFile) -> Vec<String> {
    // This file has the phrases.
    if file.path.ends_with("tidy/wording.rs") {
        return Vec::new();
    }
    if file.is_under(&DOCUMENTS) && file.path.ends_with(".md") {
        return check_document(file);
    }
    if !file.is_rust() {
        return Vec::new();
    }
    let is_help = file.is_under(&HELP);
    let is_public = file.is_under(&FACADE);
    let mut complaints = Vec::new();
    let lines: Vec<&str> = file.text.lines().collect();
    let mut in_example = false;
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim_start();
        if !line.starts_with("//") {
            in_example = false;
            continue;
        }
        in_example ^= line.contains("```");
        if in_example {
            continue;
        }
        let is_documentation = line.starts_with("///") || line.starts_with("//!");
        let long = is_documentation && (is_help || is_public && documents_public(&lines, index));
        let lists: &[&[_]] = match long {
            true => &[&EVERYWHERE, &IN_DOCUMENTS],
            false => &[&EVERYWHERE],
        };
        complaints.extend(complain(file, index, line, lists));
    }
    let is_test = file.path.ends_with("tests.rs") || file.path.contains("tests/");
    if !is_test {
        for (index, text) in strings::literals(&file.text) {
            // Names and keys are no sentences.
            if text.contains(' ') {
                let lists: [&[_]; 3] = [&EVERYWHERE, &IN_DOCUMENTS, &IN_MESSAGES];
                complaints.extend(complain(file, index, &text, &lists));
                if words(&text).trim_end_matches([' ', ';']).ends_with(" say") {
                    complaints.push(file.complain(index, "a trailing `say`: write `as in ...`"));
                }
            }
        }
    }
    complaints
}

fn check_document(file: &TextFile) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut in_block = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        if !in_block {
            let lists: [&[_]; 3] = [&EVERYWHERE, &IN_DOCUMENTS, &IN_MESSAGES];
            complaints.extend(complain(file, index, line, &lists));
        }
    }
    complaints
}

/// The phrases for no text at all in `text`, each with what to write.
pub(super) fn phrases(text: &str) -> Vec<String> {
    found(text, &[&EVERYWHERE])
}

/// Complaints about the phrases of `lists` in a line or literal.
fn complain(file: &TextFile, index: usize, text: &str, lists: &[&[(&str, &str)]]) -> Vec<String> {
    let found = found(text, lists).into_iter();
    found.map(|what| file.complain(index, &what)).collect()
}

fn found(text: &str, lists: &[&[(&str, &str)]]) -> Vec<String> {
    let words = words(text);
    let phrases = lists.iter().flat_map(|list| list.iter());
    let found = phrases.filter(|(phrase, _)| words.contains(&format!(" {phrase} ")));
    found
        .map(|(phrase, advice)| format!("`{phrase}`: write {advice}"))
        .collect()
}

/// Whether the documentation on line `index` is that of a public item, or of a crate or module.
fn documents_public(lines: &[&str], index: usize) -> bool {
    let rest = lines[index..].iter().map(|line| line.trim_start());
    let mut rest = rest.skip_while(|line| {
        line.starts_with("///") || line.starts_with("//!") || line.starts_with("#[")
    });
    lines[index].trim_start().starts_with("//!")
        || rest.next().is_some_and(|line| line.starts_with("pub "))
}

/// The words of `text` in lower case, with one space before, between and after them, and a `;` where punctuation
/// separates them. Code between backticks counts as one word, a value in braces as none.
fn words(text: &str) -> String {
    let mut words = String::from(" ");
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            words.push_str("code ");
            continue;
        }
        let mut in_braces = false;
        let plain = part.chars().map(|c| match c {
            '{' | '}' => {
                in_braces = c == '{';
                ';'
            }
            _ if in_braces => ' ',
            c if c.is_alphanumeric() || "'-".contains(c) => c,
            ';' | ':' | ',' | '.' | '!' | '?' | '(' | ')' => ';',
            _ => ' ',
        });
        let plain = plain.collect::<String>().to_lowercase();
        for word in plain.replace(';', " ; ").split_whitespace() {
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
        assert!(!complaints("CHANGELOG.md", "so many").is_empty());
    }

    #[test]
    fn comments_have_the_shorter_list_and_public_items_the_longer() {
        let path = "crates/train/src/a.rs";
        assert!(complaints(path, "/// A rank of ours.").contains("`of ours`"));
        assert_eq!(complaints(path, "// It tells all."), "");
        assert_eq!(complaints(path, "/// It tells all.\nfn a() {}"), "");
        let public = "/// It tells all.\n#[must_use]\npub fn a() {}";
        assert!(complaints(path, public).contains(":1: `tells`"));
    }

    #[test]
    fn messages_have_the_longest_list() {
        let path = "crates/a/src/lib.rs";
        let found = complaints(path, "let text = \"it goes on \\\n   behind it\";");
        assert!(found.contains(":1: `goes on`") && found.contains(":1: `behind`"));
        assert!(complaints(path, "warn!(\"write 4, say\")").contains("trailing `say`"));
        assert_eq!(complaints(path, "let key = \"told\";"), "");
        assert_eq!(
            complaints(path, "#[cfg(test)]\nmod tests { \"it goes on\" }"),
            ""
        );
        assert_eq!(complaints("crates/a/tests/a.rs", "\"it goes on\""), "");
    }
}
