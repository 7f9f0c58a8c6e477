//! The command itself. What it does with processes and files is tried in the package `tests`,
//! which finds the binary because cargo builds it for this test.

use std::process::{Command, Output};

fn everburn(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everburn"));
    let output = command.args(arguments).env_clear().output();
    output.expect("the binary can be started")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("the output is text")
}

#[test]
fn the_models_are_listed_with_their_parameter_counts() {
    let list = stdout(&everburn(&["train", "--list"]));
    for (model, parameters) in [("mnist", "21840"), ("mnist-bn", "49414"), ("mlp", "235146")] {
        let line =
            |line: &str| line.starts_with(&format!("{model} ")) && line.ends_with(parameters);
        assert!(list.lines().any(line), "{list}");
    }
}

#[test]
fn help_names_the_commands_and_the_flags() {
    let help = stdout(&everburn(&["--help"]));
    // A name may also be a part of some sentence: it counts where its line begins.
    let begins_a_line = |help: &str, name: &str| {
        let words = |line: &str| line.trim_start().split([' ', ',']).any(|word| word == name);
        help.lines()
            .any(|line| line.starts_with("  ") && words(line.split("  ").nth(1).unwrap_or("")))
    };
    for command in [
        "train",
        "eval",
        "predict",
        "generate",
        "export",
        "import",
        "verify",
        "audit",
        "soak",
        "doctor",
        "store",
        "tokenize",
        "devices",
        "completions",
        "man",
    ] {
        assert!(begins_a_line(&help, command), "{command}: {help}");
    }
    let help = stdout(&everburn(&["train", "--help"]));
    for flag in ["--ranks", "--run-dir", "--resume", "--data", "--rendezvous"] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(flag)),
            "{flag}: {help}"
        );
    }
}

#[test]
fn messages_name_the_program_as_it_was_called() {
    let why = |called_as: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everburn"));
        command.env_clear().args(["train", "nothing"]);
        if let Some(name) = called_as {
            command.env("EVERBURN_CALLED_AS", name);
        }
        let output = command.output().expect("the binary can be started");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let told = why(None);
    let path = env!("CARGO_BIN_EXE_everburn");
    assert!(told.contains(&format!("`{path} train --list`")), "{told}");
    let told = why(Some("cargo xtask"));
    assert!(told.contains("`cargo xtask train --list`"), "{told}");
}

#[test]
fn a_command_line_that_a_program_runs_leaves_its_process_the_one_it_is() {
    // A process that has begun anew for its allocator knows it by its environment.
    let is_new = || std::env::var_os("MALLOC_TRIM_THRESHOLD_").is_some();
    let was_new = is_new();
    let words = ["everburn", "eval", "/nowhere/run"];
    let code = everburn::tasks::app().run(words.map(Into::into));
    assert!(code == std::process::ExitCode::from(2));
    assert_eq!(is_new(), was_new);
}

#[test]
fn a_training_keeps_freed_memory_whoever_starts_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = "train mlp --data synthetic --train-samples 64 --validation-samples 8 --test-samples 8 --steps 1 \
                --no-dashboard --run-dir run";
    let mut command = Command::new(env!("CARGO_BIN_EXE_everburn"));
    let output = command.args(line.split_whitespace()).env_clear();
    let output = output
        .env("HOME", folder.path())
        .current_dir(&folder)
        .output();
    stdout(&output.expect("the binary can be started"));
    let recorded = std::fs::read_to_string(folder.path().join("run/environment.json"));
    let recorded = recorded.expect("a run records its environment");
    assert!(recorded.contains("MALLOC_TRIM_THRESHOLD_"), "{recorded}");
}
