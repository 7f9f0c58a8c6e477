//! Rules about Rust files: size, names, who may know whom, what must not stay.

use super::TextFile;

const MAX_LINES: usize = 500;

const OUR_CODE: [&str; 6] = [
    "crates/",
    "models/",
    "datasets/",
    "xtask/",
    "tests/",
    "examples/",
];

/// Names that say where something is and not what it is.
const DRAWERS: [&str; 7] = [
    "utils", "util", "common", "misc", "helpers", "helper", "base",
];

const UNFINISHED: [&str; 3] = [
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
];

pub(super) fn check(file: &TextFile) -> Vec<String> {
    if !file.is_rust() || !file.is_under(&OUR_CODE) {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    let lines = file.text.lines().count();
    if lines > MAX_LINES {
        let path = &file.path;
        complaints.push(format!(
            "{path}: {lines} lines; split it at a noun below {MAX_LINES}"
        ));
    }
    if let Some(name) = drawer(&file.path) {
        complaints.push(format!(
            "{}: `{name}` is a drawer: name the file for its content",
            file.path
        ));
    }
    for (index, line) in file.text.lines().enumerate() {
        let code = without_comment(line);
        complaints.extend(unfinished(code).map(|found| {
            file.complain(
                index,
                &format!("`{found}` must not stay", found = &found[..found.len() - 1]),
            )
        }));
        if let Some(what) = stranger(&file.path, line, code) {
            complaints.push(file.complain(index, what));
        }
    }
    complaints
}

fn drawer(path: &str) -> Option<&str> {
    let mut parts = path
        .split('/')
        .map(|part| part.strip_suffix(".rs").unwrap_or(part));
    parts.find(|part| DRAWERS.contains(part))
}

fn unfinished(code: &str) -> impl Iterator<Item = &'static str> {
    UNFINISHED
        .into_iter()
        .filter(move |name| code.contains(name))
}

/// A name in a place that must not know of it. Models are checked with their comments: who reads
/// one should not meet ranks at all.
fn stranger(path: &str, line: &str, code: &str) -> Option<&'static str> {
    let lower = line.to_lowercase();
    if path.starts_with("models/")
        && (lower.contains("distributed") || lower.contains("collectives"))
    {
        return Some("models have one device: no `distributed` or `collectives`");
    }
    let without_burn = ["crates/collectives/", "crates/nccl/", "tests/nccl-fake/"];
    if without_burn.iter().any(|folder| path.starts_with(folder)) && uses_crate(code, "burn") {
        return Some("`collectives`, `nccl` and its stand-in do without Burn");
    }
    // `profile` has names of functions, by which it knows who copies; it depends on none of them.
    let may_train = [
        "crates/train/",
        "crates/everburn/",
        "crates/profile/",
        "xtask/",
    ];
    if uses_crate(code, "burn_train") && !may_train.iter().any(|folder| path.starts_with(folder)) {
        return Some("only `crates/train` and the façade use burn-train");
    }
    if path.starts_with("crates/train/src/") && names_a_flag(code) {
        return Some(
            "flags are for `crates/cli`: name the field or the setting in backticks, which becomes its flag there",
        );
    }
    None
}

/// Whether `code` has a flag of a command line in a text, as in `--resume`.
fn names_a_flag(code: &str) -> bool {
    code.match_indices("--").any(|(at, dashes)| {
        let begins = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-');
        begins && code[at + dashes.len()..].starts_with(|c: char| c.is_ascii_lowercase())
    })
}

/// Whether `code` names the crate `name` or one of its family, as in `burn::` and `burn_tensor::`.
fn uses_crate(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let inside_a_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let family = code[at..]
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .next();
        let family = family.unwrap_or_default();
        let is_path = code[at + family.len()..].starts_with("::");
        !inside_a_word && is_path && (family == name || family.starts_with(&format!("{name}_")))
    })
}

/// The line up to a comment. The `//` of an address in a string is none.
fn without_comment(line: &str) -> &str {
    let comment = line
        .match_indices("//")
        .find(|(at, _)| !line[..*at].ends_with(':'));
    comment.map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> String {
        check(&TextFile::sample(path, text)).join("\n")
    }

    #[test]
    fn a_file_stays_short() {
        let long = "\n".repeat(MAX_LINES + 1);
        assert!(complaints("crates/a/src/lib.rs", &long).contains("501 lines"));
        assert_eq!(complaints("crates/a/src/lib.rs", &long[1..]), "");
        assert_eq!(complaints("crates/a/README.md", &long), "");
    }

    #[test]
    fn nothing_is_called_a_drawer() {
        assert!(complaints("crates/a/src/utils.rs", "").contains("`utils` is a drawer"));
        assert!(complaints("tests/tests/common/mod.rs", "").contains("`common`"));
        assert_eq!(complaints("crates/a/src/uncommon.rs", ""), "");
    }

    #[test]
    fn nothing_unfinished_stays() {
        let code = format!("fn a() {{ {}) }}", UNFINISHED[0]);
        assert!(complaints("xtask/src/a.rs", &code).starts_with("xtask/src/a.rs:1: `todo!`"));
        assert_eq!(complaints("xtask/src/a.rs", &format!("// {code}")), "");
    }

    #[test]
    fn each_knows_only_its_neighbours() {
        assert!(!complaints("models/src/mlp.rs", "//! As Distributed needs it.").is_empty());
        assert_eq!(
            complaints("crates/train/src/a.rs", "use everburn_distributed::Ddp;"),
            ""
        );
        let flag = r#"let text = "start without --resume";"#;
        assert!(!complaints("crates/train/src/a.rs", flag).is_empty());
        assert_eq!(complaints("crates/cli/src/a.rs", flag), "");
        let comment = "/// As --resume asks for. --\nlet a = \"b -- c\";";
        assert_eq!(complaints("crates/train/src/a.rs", comment), "");
        let in_collectives = |code| complaints("crates/collectives/src/lib.rs", code);
        assert!(!in_collectives("use burn::tensor::Tensor;").is_empty());
        assert!(!in_collectives("let t = burn_tensor::zeros();").is_empty());
        assert_eq!(in_collectives("use everburn::a; // burn::"), "");
        assert_eq!(in_collectives("everburn_collectives::store::a();"), "");
        assert!(!complaints("crates/cli/src/lib.rs", "use burn_train::Learner;").is_empty());
        assert_eq!(
            complaints("crates/train/src/lib.rs", "use burn_train::Learner;"),
            ""
        );
    }
}
