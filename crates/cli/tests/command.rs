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
        let line = list.lines().map(|line| line.split_whitespace().take(2));
        let mut line = line.map(Iterator::collect::<Vec<_>>);
        assert!(line.any(|words| words == [model, parameters]), "{list}");
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
    for command in ["train", "eval", "generate", "export", "import"] {
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
