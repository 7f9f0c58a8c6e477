//! `cargo xtask fuzz`: arbitrary bytes at all that comes from the network, and at files of strangers, by
//! cargo-fuzz.
//!
//! The targets are functions of the modules `hostile` of several crates; `fuzz/` gives each a program, in a
//! workspace of its own, because they need AddressSanitizer, which is not stable: a nightly toolchain has it,
//! and where there is none the pinned one is allowed it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use miette::{IntoDiagnostic, WrapErr, miette};

use crate::cargo::{cargo, remove_traces_of_cargo_run, root, target_dir};

/// What a target may take in all, and in one piece: twice the longest message of the protocols
/// (64 MiB), and the sanitizer beside it.
const MEMORY: [&str; 2] = ["-rss_limit_mb=1536", "-malloc_limit_mb=160"];

/// A target waits for deadlines of tens of milliseconds; one input that takes longer than this hangs.
const LONGEST_INPUT: &str = "-timeout=60";

/// Threads that are just ending when an input is over hold a little memory, which is no leak; what grows
/// meets the limits above.
const NO_LEAKS: &str = "-detect_leaks=0";

/// Most inputs are scripts of a few dozen decisions; longer ones only take time.
const LONGEST_SCRIPT: &str = "-max_len=4096";

/// Those of these targets are whole files.
const OF_FILES: [&str; 2] = ["pytorch_weights", "pytorch_pickle"];

/// Room for a model of many small tensors.
const LONGEST_FILE: &str = "-max_len=1048576";

/// What is to be fuzzed.
#[derive(Debug, Args)]
pub struct Options {
    /// The targets, by name [default: all, one after the other]
    targets: Vec<String>,

    /// How long each runs
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u32,
}

/// Runs the targets; the first that finds something ends it, with the input that does it again.
pub fn run(options: &Options) -> miette::Result<ExitCode> {
    let known = known_targets()?;
    if let Some(unknown) = options.targets.iter().find(|name| !known.contains(name)) {
        return Err(miette!(
            help = format!("choose of: {}", known.join(", ")),
            "there is no fuzz target `{unknown}`"
        ));
    }
    let toolchain = Toolchain::here();
    if !toolchain.answers(&["fuzz", "--version"]) {
        eprintln!("fuzzing needs cargo-fuzz: `cargo install cargo-fuzz`");
        return Ok(ExitCode::FAILURE);
    }
    let targets = match options.targets.is_empty() {
        true => known,
        false => options.targets.clone(),
    };
    for target in &targets {
        println!("{target}: {} s", options.seconds);
        let status = command(toolchain, target, options.seconds)?
            .status()
            .into_diagnostic()
            .wrap_err("cargo fuzz cannot be started")?;
        if !status.success() {
            eprintln!("{target} has found something; the input that does it again is named above");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn folder() -> PathBuf {
    root().join("fuzz")
}

fn known_targets() -> miette::Result<Vec<String>> {
    let folder = folder().join("fuzz_targets");
    let files = std::fs::read_dir(&folder)
        .into_diagnostic()
        .wrap_err_with(|| format!("{} cannot be read", folder.display()))?;
    let names = files.flatten().filter_map(|file| {
        let path = file.path();
        Some(path.file_stem()?.to_str()?.to_owned())
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    Ok(names)
}

/// Whose compiler builds the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Toolchain {
    Nightly,
    /// The one that builds all else, with leave to use what is not stable.
    Pinned,
}

impl Toolchain {
    /// A nightly toolchain where there is one.
    fn here() -> Self {
        match Self::Nightly.answers(&["--version"]) {
            true => Self::Nightly,
            false => Self::Pinned,
        }
    }

    /// Whether Cargo does this without complaint.
    fn answers(self, arguments: &[&str]) -> bool {
        let mut command = self.cargo();
        command.args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn cargo(self) -> Command {
        match self {
            Self::Nightly => {
                // rustup's `cargo`, not the pinned toolchain's own that `CARGO` names.
                let mut command = Command::new("cargo");
                remove_traces_of_cargo_run(&mut command);
                for variable in ["RUSTUP_TOOLCHAIN", "RUSTC", "CARGO"] {
                    command.env_remove(variable);
                }
                command.arg("+nightly");
                command
            }
            Self::Pinned => {
                let mut command = cargo();
                command.env("RUSTC_BOOTSTRAP", "1");
                command
            }
        }
    }
}

fn command(toolchain: Toolchain, target: &str, seconds: u32) -> miette::Result<Command> {
    // What is found and learnt stays outside the sources.
    let place = target_dir().join("fuzz");
    let corpus = place.join("corpus").join(target);
    let artifacts = place.join("artifacts").join(target);
    for folder in [&corpus, &artifacts] {
        std::fs::create_dir_all(folder)
            .into_diagnostic()
            .wrap_err_with(|| format!("{} cannot be made", folder.display()))?;
    }
    let mut prefix = OsString::from("-artifact_prefix=");
    prefix.push(artifacts.join(""));
    let longest = match OF_FILES.contains(&target) {
        true => LONGEST_FILE,
        false => LONGEST_SCRIPT,
    };
    let mut command = toolchain.cargo();
    command
        .current_dir(folder())
        .env("CARGO_TARGET_DIR", &place)
        .args(["fuzz", "run", "--fuzz-dir", "."])
        .arg(target)
        .arg(corpus)
        .arg("--")
        .args(MEMORY)
        .args([LONGEST_INPUT, longest, NO_LEAKS])
        .arg(format!("-max_total_time={seconds}"))
        .arg("-print_final_stats=1")
        .arg(prefix);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_its_entry_in_the_manifest() {
        let manifest = std::fs::read_to_string(folder().join("Cargo.toml")).unwrap();
        let targets = known_targets().unwrap();
        assert!(
            targets.contains(&"store_requests".to_owned()),
            "{targets:?}"
        );
        for target in &targets {
            let entry = format!("name = \"{target}\"\npath = \"fuzz_targets/{target}.rs\"");
            assert!(manifest.contains(&entry), "{target}");
        }
        assert_eq!(manifest.matches("[[bin]]").count(), targets.len());
    }

    #[test]
    fn without_a_nightly_toolchain_the_pinned_one_builds_with_leave_for_sanitizers() {
        let leave = |toolchain: Toolchain| {
            let command = command(toolchain, "store_requests", 1).unwrap();
            let mut variables = command.get_envs();
            let nightly = command.get_args().any(|word| word == "+nightly");
            let leave = variables.any(|(name, _)| name == "RUSTC_BOOTSTRAP");
            (nightly, leave)
        };
        assert_eq!(leave(Toolchain::Nightly), (true, false));
        assert_eq!(leave(Toolchain::Pinned), (false, true));
    }

    #[test]
    fn targets_that_read_files_are_given_whole_ones() {
        let known = known_targets().unwrap();
        for target in OF_FILES {
            assert!(known.contains(&target.to_owned()), "{target}");
        }
        let longest = |target| {
            let command = command(Toolchain::Pinned, target, 1).unwrap();
            let is_length =
                |word: &&std::ffi::OsStr| word.as_encoded_bytes().starts_with(b"-max_len=");
            let lengths: Vec<_> = command
                .get_args()
                .filter(is_length)
                .map(OsString::from)
                .collect();
            lengths
        };
        assert_eq!(longest("pytorch_weights"), [LONGEST_FILE]);
        assert_eq!(longest("store_requests"), [LONGEST_SCRIPT]);
    }

    #[test]
    fn an_unknown_target_is_answered_with_those_there_are() {
        let options = Options {
            targets: vec!["stores".to_owned()],
            seconds: 1,
        };
        let refused = run(&options).unwrap_err();
        assert!(refused.to_string().contains("`stores`"));
        let help = refused.help().unwrap().to_string();
        assert!(help.contains("store_requests"), "{help}");
    }
}
