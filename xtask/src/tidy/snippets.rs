//! Rules about snippets in README and the book: each is compiled or run by a test, or says what it needs.

use super::TextFile;

/// The file whose doctests are the pages with Rust.
const DOCTESTS: &str = "crates/everburn/src/lib.rs";

/// The start of a comment above a block that no test runs: `tests/tests/documents.rs` skips it.
const NEEDS: &str = "<!-- needs:";

/// Programs whose command lines a reader would try.
const PROGRAMS: [&str; 11] = [
    "everburn", "cargo", "pip", "tar", "docker", "srun", "sbatch", "mpirun", "torchrun", "kubectl",
    "gunzip",
];

pub(super) fn check(files: &[TextFile]) -> Vec<String> {
    let doctests = files.iter().find(|file| file.path == DOCTESTS);
    let doctests = doctests.map_or("", |file| file.text.as_str());
    let is_page = |file: &&TextFile| file.path == "README.md" || is_page_of_book(&file.path);
    let pages = files.iter().filter(is_page);
    pages.flat_map(|page| check_page(page, doctests)).collect()
}

fn is_page_of_book(path: &str) -> bool {
    path.starts_with("docs/") && path.ends_with(".md")
}

fn check_page(page: &TextFile, doctests: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut lines = page.text.lines().enumerate();
    let mut above = "";
    while let Some((index, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            above = line.trim_start();
            continue;
        };
        let block = lines.by_ref().map(|(_, line)| line);
        let block = block.take_while(|line| !line.trim_start().starts_with("```"));
        let block: Vec<&str> = block.collect();
        let has_commands = block.iter().any(|line| is_command(line));
        let fault = match language.split(',').next() {
            Some("rust") if !doctests.contains(&format!("/{}\")]", page.path)) => {
                Some(format!("Rust on a page that `{DOCTESTS}` does not compile"))
            }
            Some("rust") if language.contains("ignore") => {
                Some("Rust that is not compiled".to_owned())
            }
            Some("python") if !above.starts_with(NEEDS) => Some(format!(
                "Python that no test runs: write `{NEEDS} ... -->` above"
            )),
            // `sh` is run; other commands say why they are not.
            Some("text" | "console" | "bash" | "shell" | "")
                if has_commands && !above.starts_with(NEEDS) =>
            {
                Some(format!(
                    "commands that no test runs: make it `sh`, or write `{NEEDS} ... -->` above"
                ))
            }
            Some("text" | "") if block.iter().any(|line| is_rust(line)) => {
                Some("Rust that is not compiled: make it `rust`".to_owned())
            }
            _ => None,
        };
        complaints.extend(fault.map(|fault| page.complain(index, &fault)));
        above = "";
    }
    complaints
}

/// Whether a line of a block is a command line that a reader would try.
fn is_command(line: &str) -> bool {
    let line = line.trim_start();
    let line = line.strip_prefix("sudo -E ").unwrap_or(line);
    let mut words = line.split(' ');
    words
        .next()
        .is_some_and(|word| PROGRAMS.contains(&word) && words.next().is_some())
}

/// Whether a line of a block is a statement of Rust.
fn is_rust(line: &str) -> bool {
    let line = line.trim();
    line.ends_with(';') && (line.starts_with("let ") || line.starts_with("use "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(page: &str) -> String {
        let doctests = "#[doc = include_str!(\"../../../docs/a.md\")]";
        let files = [
            TextFile::sample(DOCTESTS, doctests),
            TextFile::sample("docs/a.md", page),
            TextFile::sample("docs/b.md", &page.replace("```sh", "```text")),
        ];
        check(&files).join("\n")
    }

    #[test]
    fn rust_is_compiled() {
        assert_eq!(
            complaints("```rust\n```"),
            format!("docs/b.md:1: Rust on a page that `{DOCTESTS}` does not compile")
        );
        assert!(complaints("```rust,ignore\n```").contains("docs/a.md:1: Rust that is not"));
        let as_text = complaints("```text\nlet group = rank.group()?;\n```");
        assert!(as_text.contains("docs/a.md:1: Rust that is not compiled: make it"));
        assert!(complaints("```python\n```").contains("docs/a.md:1: Python that no test runs"));
    }

    #[test]
    fn commands_are_run_or_say_what_they_need() {
        let found = complaints("```sh\neverburn train mnist\n```");
        assert!(
            found.starts_with("docs/b.md:1: commands that no test runs"),
            "{found}"
        );
        assert!(complaints("```bash\neverburn train mnist\n```").contains("docs/a.md:1: commands"));
        for page in [
            "<!-- needs: a GPU -->\n```sh\ncargo build\n```",
            "<!-- needs: PyTorch -->\n```python\nimport torch\n```",
            "```sh\n[rank 0] everburn\n```",
            "```toml\neverburn = 1\n```",
        ] {
            assert_eq!(complaints(page), "", "{page}");
        }
    }
}
