//! Rules about documents: they name only files and commands that exist.

use super::TextFile;

/// Folders whose files a document may name from the root.
const OUR_FOLDERS: [&str; 7] = [
    "crates/",
    "models/",
    "datasets/",
    "tests/",
    "docs/",
    "xtask/",
    "examples/",
];

/// Endings by which a word with a slash is taken for a file.
const FILE_ENDINGS: [&str; 8] = ["rs", "toml", "md", "sh", "yml", "yaml", "json", "py"];

/// `exists` answers for paths relative to the root.
pub(super) fn check(
    file: &TextFile,
    commands: &[String],
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    // The change log may name what is gone.
    if !file.path.ends_with(".md") || file.path == "CHANGELOG.md" {
        return Vec::new();
    }
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut complaints = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for command in commands_named(line) {
            if !commands.iter().any(|known| known == command) {
                let what = format!("there is no `cargo xtask {command}`");
                complaints.push(file.complain(index, &what));
            }
        }
        for path in paths_named(line) {
            if !exists(path) && !exists(&format!("{folder}/{path}")) {
                complaints.push(file.complain(index, &format!("there is no `{path}`")));
            }
        }
    }
    complaints
}

/// The words after `cargo xtask`.
fn commands_named(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("cargo xtask ")
        .filter_map(|(at, found)| {
            let rest = &line[at + found.len()..];
            let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '-'));
            // Flags and placeholders such as `<command>` are no commands.
            Some(&rest[..end.unwrap_or(rest.len())])
                .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
        })
}

/// What is between backticks and looks like a file or folder of the repository.
fn paths_named(line: &str) -> impl Iterator<Item = &str> {
    let between = line.split('`').skip(1).step_by(2);
    between.filter_map(|word| {
        let path = word.split(['#', ':']).next().unwrap_or(word);
        let plain = path
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        let generic = path.starts_with("runs/") || path.starts_with("target/");
        let outside = path.starts_with(['/', '.']) && !path.starts_with(".ci/");
        let named_from_root = OUR_FOLDERS.iter().any(|folder| path.starts_with(folder));
        let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending);
        let is_file = path.contains('/') && FILE_ENDINGS.contains(&ending);
        (plain && !generic && !outside && (named_from_root || is_file)).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> String {
        let there = [
            "crates/launch",
            "crates/launch/src/lib.rs",
            "docs/launching.md",
        ];
        let exists = |path: &str| there.contains(&path.trim_end_matches('/'));
        let commands = ["train".to_owned(), "gpu-check".to_owned()];
        check(&TextFile::sample(path, text), &commands, exists).join("\n")
    }

    #[test]
    fn named_files_exist() {
        let readme = |text| complaints("README.md", text);
        assert_eq!(
            readme("see `crates/launch/`, `crates/launch/src/lib.rs:12`"),
            ""
        );
        assert_eq!(
            readme("see\n`crates/lunch`"),
            "README.md:2: there is no `crates/lunch`"
        );
        assert!(!readme("`src/gone.rs`").is_empty());
        assert_eq!(complaints("crates/launch/README.md", "`src/lib.rs`"), "");
        assert_eq!(complaints("docs/a.md", "`docs/launching.md`"), "");
    }

    #[test]
    fn what_only_looks_like_a_file_is_left_alone() {
        let text = "`runs/a/report.json` `runs/<name>/x.json` `../shared/data` `and/or` `/etc/a.sh` \
                    `a/b c.rs` `https://x/y.md` crates/gone `Cargo.toml`";
        assert_eq!(complaints("README.md", text), "");
        assert_eq!(complaints("CHANGELOG.md", "`crates/gone`"), "");
    }

    #[test]
    fn named_commands_exist() {
        let readme = |text| complaints("README.md", text);
        assert_eq!(
            readme("`cargo xtask train mnist` and cargo xtask gpu-check."),
            ""
        );
        assert_eq!(readme("cargo xtask <command>, cargo xtask --help"), "");
        assert!(readme("run `cargo xtask trian`").contains("no `cargo xtask trian`"));
    }
}
