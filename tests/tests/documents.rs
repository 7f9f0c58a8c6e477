//! README and the pages of the book: each block of shell commands is run, unless a comment above it says what it
//! needs that a test does not have.

use std::path::Path;

use everburn_tests::Everburn;

/// The start of a comment above a block that is not run.
const NEEDS: &str = "<!-- needs:";

/// The start of a comment with a command that is run before the block.
const BEFORE: &str = "<!-- before:";

/// `everburn` in the blocks: the binary under test, with some samples in place of a whole data set.
const EVERBURN: &str = r#"
set -euo pipefail
everburn() {
  local line=" $* "
  case "$1" in verify) "$0" "${@/#200/8}" -- --data synthetic --train-samples 256 --test-samples 32; return ;; esac
  case "$1" in train | bottleneck) ;; *) "$0" "$@"; return ;; esac
  case "$line" in *" --resume "* | *" --config "* | *" --of "*) "$0" "$@"; return ;; esac
  # A text model takes a step in each of two epochs, any other one two steps in each of three.
  local samples=128 others=32
  case "$2" in gpt-*) samples=32 others=16; set -- "$@" --batch-size 16 --epochs 2 ;; mnist) samples=224 ;; esac
  case "$line" in *" --data "* | *" gpt-"*) ;; *) set -- "$@" --data synthetic ;; esac
  "$0" "$@" --train-samples $samples --validation-samples $others --test-samples $others
}
"#;

/// A block of shell commands of a page.
#[derive(Debug, PartialEq)]
struct Block {
    /// The line on which it begins, from 1.
    line: usize,
    script: String,
}

/// The blocks of `page` that are run.
fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut before, mut is_marked) = (Vec::new(), String::new(), false);
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let line = line.trim();
        if let Some(command) = line.strip_prefix(BEFORE) {
            before.push_str(command.trim_end_matches("-->").trim());
            before.push('\n');
        } else if line.starts_with(NEEDS) {
            is_marked = true;
        } else if let Some(language) = line.strip_prefix("```") {
            let block = lines.by_ref().map(|(_, line)| line);
            let block = block.take_while(|line| !line.trim().starts_with("```"));
            let script = block.collect::<Vec<_>>().join("\n");
            if language == "sh" && !is_marked {
                let script = format!("{before}{script}\nwait\n");
                let line = index + 1;
                blocks.push(Block { line, script });
            }
            (before, is_marked) = (String::new(), false);
        }
    }
    blocks
}

/// Runs the blocks of a page in one folder, from the first to the last.
fn run(page: &str) {
    let path = Path::new("..").join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let blocks = blocks(&text);
    assert!(!blocks.is_empty(), "{page} has no block that is run");
    let folder = tempfile::tempdir().unwrap();
    for Block { line, script } in blocks {
        let script = format!("{EVERBURN}{script}");
        let job = Everburn::new(folder.path(), [""; 0]);
        let job = job.by(folder.path(), Path::new("bash"), ["-c", &script]);
        let ended = job.run();
        assert_eq!(
            ended.code(),
            0,
            "{page}:{line}\n{script}\n{}\n{}",
            ended.stdout,
            ended.stderr
        );
    }
}

/// A test for each page.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        $(
            #[test]
            fn $name() {
                run($page);
            }
        )*

        const PAGES: &[&str] = &[$($page),*];
    };
}

pages! {
    readme: "README.md",
    bottleneck: "docs/bottleneck.md",
    elastic: "docs/elastic.md",
    fewer_bytes: "docs/fewer-bytes.md",
    finders: "docs/finders.md",
    from_pytorch: "docs/from-pytorch.md",
    getting_started: "docs/getting-started.md",
    gpus: "docs/gpus.md",
    launching: "docs/launching.md",
    long_runs: "docs/long-runs.md",
    losing_a_rank: "docs/losing-a-rank.md",
    mixed_precision: "docs/mixed-precision.md",
    optimizers: "docs/optimizers.md",
    parallel_models: "docs/parallel-models.md",
    pytorch_weights: "docs/pytorch-weights.md",
    reports: "docs/reports.md",
    same_bits: "docs/same-bits.md",
    sharded_optimizer: "docs/sharded-optimizer.md",
    text: "docs/text.md",
}

#[test]
fn every_page_with_blocks_to_run_has_its_test() {
    let root = std::path::absolute("..").unwrap();
    let pages = std::fs::read_dir(root.join("docs")).unwrap();
    let names = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| name.ends_with(".md"));
    for name in names {
        let page = format!("docs/{name}");
        let text = std::fs::read_to_string(root.join(&page)).unwrap();
        let is_tested = PAGES.contains(&page.as_str());
        assert_eq!(is_tested, !blocks(&text).is_empty(), "{page}");
    }
}

#[test]
fn blocks_are_found_with_what_comes_before_them() {
    let page = "<!-- before: a -->\n```sh\nb\n```\n<!-- needs: Slurm -->\n```sh\nc\n```\n```text\nd\n```\n";
    let block = Block {
        line: 2,
        script: "a\nb\nwait\n".into(),
    };
    assert_eq!(blocks(page), [block]);
}
