//! Every command line of the documents is one that this program takes.

use std::path::PathBuf;

use crate::arguments::{Arguments, Command};
use crate::config::RunConfig;

/// Where a command line ends that other words follow.
const ENDS: [&str; 6] = ["|", "&", "&&", ">", ";", "..."];

/// The fewest command lines that are found: fewer, and they are not found any more.
const LEAST: usize = 90;

fn root() -> PathBuf {
    PathBuf::from("../..")
}

/// README and the pages of the book.
fn pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    let docs = docs.map(|entry| entry.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    docs.chain([root().join("README.md")]).collect()
}

/// The lines of a page's blocks for a shell, those joined that end in a backslash.
fn lines(page: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let (mut inside, mut joined) = (None, false);
    for line in page.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let shell = ["sh", "console", "text", ""].contains(&language);
            inside = inside.is_none().then_some(shell);
            continue;
        }
        if inside != Some(true) {
            continue;
        }
        let whole = line.trim_end_matches('\\');
        match lines.last_mut() {
            Some(last) if joined => last.push_str(whole),
            _ => lines.push(whole.to_string()),
        }
        joined = line.ends_with('\\');
    }
    lines
}

/// The words after `everburn` or `cargo xtask` of a line, if it has such.
fn words(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start().trim_start_matches("$ ");
    let all = shlex::split(line)?;
    let is_command = |word: &String| word == "everburn" || word == "xtask";
    let start = all.iter().position(is_command)? + 1;
    let words = all.into_iter().skip(start);
    let words = words.take_while(|word| !ENDS.contains(&word.as_str()));
    let words = words.collect::<Vec<_>>();
    // A sentence, or another language.
    let command = words.first()?;
    let is_name = command.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    is_name.then_some(words)
}

/// What is wrong with the words after the program's name.
fn fault(words: &[String]) -> Option<String> {
    let line = std::iter::once("everburn".to_string()).chain(words.iter().cloned());
    let parsed = match Arguments::try_of(line.map(Into::into)) {
        Ok(parsed) => parsed,
        Err(error) if error.exit_code() == 0 => return None,
        Err(error) => return Some(error.to_string()),
    };
    // What it says is resolved too, where no file is needed for that.
    match parsed.command {
        Command::Train(train) if train.config.is_none() && !train.resume => {
            let resolved = RunConfig::resolve(&train, None);
            let needs_file = train.model.is_none();
            resolved
                .err()
                .filter(|_| !needs_file)
                .map(|error| error.to_string())
        }
        _ => None,
    }
}

#[test]
fn command_lines_of_the_documents_are_taken() {
    let own = [
        "bench",
        "check",
        "fuzz",
        "gpu-check",
        "release",
        "test",
        "tidy",
    ];
    let (mut found, mut wrong) = (0, Vec::new());
    for path in pages() {
        let page = std::fs::read_to_string(&path).unwrap();
        for line in lines(&page) {
            let Some(words) = words(&line) else { continue };
            // xtask gives it to a program without Burn.
            let simulates = words[0] == "soak" && words.iter().any(|word| word == "--simulate");
            if simulates || own.contains(&words[0].as_str()) {
                continue;
            }
            found += 1;
            if let Some(fault) = fault(&words) {
                let name = path.file_name().unwrap().to_string_lossy();
                wrong.push(format!("{name}: {line}\n{fault}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found >= LEAST, "only {found} command lines were found");
}

#[test]
fn words_that_the_program_does_not_know_are_found() {
    let fault = |line: &str| words(line).and_then(|words| fault(&words));
    for (line, unknown) in [
        ("everburn train mnist --rank 2", "--rank"),
        ("A=1 everburn trian mnist &", "trian"),
        ("everburn train mnist --ranks 0 # none", "--ranks 0"),
    ] {
        let fault = fault(line).unwrap();
        assert!(fault.contains(unknown), "{fault}");
    }
    assert_eq!(fault("srun -n 2 everburn train mnist | tee log"), None);
    assert_eq!(words("everburn = { path = \"../everburn\" }"), None);
    let page = "```sh\neverburn train \\\n  mnist\n```\neverburn eval\n```rust\nlet x;\n```\n";
    assert_eq!(lines(page), ["everburn train   mnist"]);
}
