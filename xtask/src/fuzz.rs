//! `cargo xtask fuzz`: arbitrary bytes at all that comes from the network, by cargo-fuzz.
//!
//! The targets are functions of `everburn_collectives::hostile`; `fuzz/` gives each a program, in a
//! workspace of its own, because they need a nightly toolchain and AddressSanitizer.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use miette::{IntoDiagnostic, WrapErr, miette};

use crate::cargo::{remove_traces_of_cargo_run, root, target_dir};

/// What a target may take in all, and in one piece: twice the longest message of the protocols
/// (64 MiB), and the sanitizer beside it.
const MEMORY: [&str; 2] = ["-rss_limit_mb=1536", "-malloc_limit_mb=160"];

/// A target waits for deadlines of tens of milliseconds; one input that takes longer than this hangs.
const LONGEST_INPUT: &str = "-timeout=60";

/// Threads that are just ending when an input is over hold a little memory, which is no leak; what grows
/// meets the limits above.
const NO_LEAKS: &str = "-detect_leaks=0";

/// Inputs are scripts of a few dozen decisions; longer ones only take time.
const LONGEST_SCRIPT: &str = "-max_len=4096";

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
    if let Some(missing) = missing() {
        eprintln!("{missing}");
        return Ok(ExitCode::FAILURE);
    }
    let targets = match options.targets.is_empty() {
        true => known,
        false => options.targets.clone(),
    };
    for target in &targets {
        println!("{target}: {} s", options.seconds);
        let status = command(target, options.seconds)?
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

/// What must be installed first.
fn missing() -> Option<String> {
    let answers = |toolchain: &str, arguments: &[&str]| {
        let mut command = nightly(toolchain);
        command.args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !answers("+nightly", &["--version"]) {
        return Some(
            "fuzzing needs a nightly toolchain, for AddressSanitizer: `rustup toolchain install \
             nightly`"
                .to_owned(),
        );
    }
    (!answers("+nightly", &["fuzz", "--version"]))
        .then(|| "fuzzing needs cargo-fuzz: `cargo install cargo-fuzz`".to_owned())
}

/// rustup's `cargo`, not the pinned toolchain's own that `CARGO` names.
fn nightly(toolchain: &str) -> Command {
    let mut command = Command::new("cargo");
    remove_traces_of_cargo_run(&mut command);
    for variable in ["RUSTUP_TOOLCHAIN", "RUSTC", "CARGO"] {
        command.env_remove(variable);
    }
    command.arg(toolchain);
    command
}

fn command(target: &str, seconds: u32) -> miette::Result<Command> {
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
    let mut command = nightly("+nightly");
    command
        .current_dir(folder())
        .env("CARGO_TARGET_DIR", &place)
        .args(["fuzz", "run", "--fuzz-dir", "."])
        .arg(target)
        .arg(corpus)
        .arg("--")
        .args(MEMORY)
        .args([LONGEST_INPUT, LONGEST_SCRIPT, NO_LEAKS])
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
    fn an_unknown_target_is_answered_with_those_there_are() {
        let options = Options {
            targets: vec!["stores".to_owned()],
            seconds: 1,
        };
        let refused = run(&options).unwrap_err();
        assert!(refused.to_string().contains("`stores`"));
        assert!(
            refused
                .help()
                .unwrap()
                .to_string()
                .contains("store_requests")
        );
    }
}
