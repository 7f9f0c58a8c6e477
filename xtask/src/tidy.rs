//! The repository's own rules as code: what a reviewer would otherwise have to say each time.
//!
//! A rule is a function of one file's path and text, so that its tests are small samples.

mod commits;
mod dependencies;
mod documents;
mod early_returns;
mod examples;
mod links;
mod snippets;
mod sources;
mod wording;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cargo::root;
use crate::command_names;

/// Folders that hold nothing of the project.
const NOT_OURS: [&str; 4] = ["target", "runs", ".git", "node_modules"];

/// A file of the repository; the path is relative to the root, with slashes.
struct TextFile {
    path: String,
    text: String,
}

impl TextFile {
    #[cfg(test)]
    fn sample(path: &str, text: &str) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }

    fn is_under(&self, folders: &[&str]) -> bool {
        folders.iter().any(|folder| self.path.starts_with(folder))
    }

    fn is_rust(&self) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|extension| extension == "rs")
    }

    fn is_manifest(&self) -> bool {
        self.path == "Cargo.toml" || self.path.ends_with("/Cargo.toml")
    }

    /// A complaint about line `index` (from 0).
    fn complain(&self, index: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path, index + 1)
    }
}

/// `cargo xtask tidy`.
pub fn run() -> miette::Result<ExitCode> {
    match report() {
        Ok(()) => {
            println!("the repository keeps its rules");
            Ok(ExitCode::SUCCESS)
        }
        Err(count) => {
            println!("{count}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Prints every complaint; an error says how many there are.
pub fn report() -> Result<(), String> {
    let complaints = complaints(&root());
    for complaint in &complaints {
        println!("{complaint}");
    }
    match complaints.len() {
        0 => Ok(()),
        1 => Err("1 rule is broken".into()),
        count => Err(format!("{count} rules are broken")),
    }
}

fn complaints(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    collect(root, root, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let commands = command_names();
    let exists = |path: &str| root.join(path).exists();
    let mut complaints = Vec::new();
    for file in &files {
        complaints.extend(sources::check(file));
        complaints.extend(dependencies::check(file));
        complaints.extend(documents::check(file, &commands, exists));
        complaints.extend(early_returns::check(file));
        complaints.extend(examples::check(file));
        complaints.extend(wording::check(file));
    }
    complaints.extend(links::check(&files, exists));
    complaints.extend(snippets::check(&files));
    complaints.extend(commits::check(root));
    complaints
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<TextFile>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && !NOT_OURS.iter().any(|not_ours| name == *not_ours) {
            collect(root, &path, files);
        } else if kind.is_file() && has_rules(&path) {
            // A file that is not text is not one that the rules are about.
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            files.push(TextFile {
                path: relative(root, &path),
                text,
            });
        }
    }
}

fn has_rules(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("rs" | "md" | "toml"))
}

fn relative(root: &Path, path: &Path) -> String {
    let relative: PathBuf = path.strip_prefix(root).unwrap_or(path).to_path_buf();
    let parts = relative
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned());
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_keeps_its_rules() {
        let complaints = complaints(&root());
        assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
    }

    #[test]
    fn files_are_found_with_their_path_from_the_root() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["crates/a/src", "target/debug", ".ci"] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        for path in [
            "crates/a/src/lib.rs",
            "target/debug/build.rs",
            ".ci/run",
            "README.md",
        ] {
            fs::write(folder.path().join(path), "text").unwrap();
        }
        let mut files = Vec::new();
        collect(folder.path(), folder.path(), &mut files);
        let mut paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["README.md", "crates/a/src/lib.rs"]);
    }
}
