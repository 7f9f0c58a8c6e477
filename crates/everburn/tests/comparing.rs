//! `everburn verify` and `everburn soak`, which start trainings of this binary.

use std::process::{Command, Output};

/// A training of a moment.
const SMALL: &str = "--data synthetic --train-samples 256 --validation-samples 32 --test-samples 32 --batch-size 16";

fn everburn(line: &str) -> Output {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_everburn"));
    command
        .args(line.split_whitespace())
        .env_clear()
        .env("HOME", home.path());
    command.output().expect("the binary can be started")
}

/// What it prints where it succeeds.
fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn one_rank_and_two_learn_the_same_bits_from_nothing_but_the_binary() {
    let line = format!("verify mlp --ranks 1,2 --steps 4 --transport shm,tcp -- {SMALL}");
    let text = printed(&everburn(&line));
    assert_eq!(text.matches(": the same bits, state ").count(), 2, "{text}");
    assert!(text.contains("samples/s with logical shards"), "{text}");
    assert!(
        text.ends_with("all trainings have the same bits\n"),
        "{text}"
    );
}

#[test]
fn a_training_that_fails_is_named_with_its_last_words() {
    let output = everburn("verify mlp --ranks 1 --steps 2 -- --data nothing");
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(why.contains("the training on 1 rank, auto failed"), "{why}");
    assert!(why.contains("unknown data set 'nothing'"), "{why}");
}

#[test]
fn a_soak_of_one_run_kills_a_rank_and_finds_the_same_bits() {
    // From this seed one kill is drawn.
    let line = format!("soak mlp --runs 1 --seed 22 --ranks 2 --min 1 --steps 12 -- {SMALL}");
    let text = printed(&everburn(&line));
    assert!(text.contains("kill=1@step:7: the same bits"), "{text}");
    assert!(
        text.ends_with("1 of 1 runs ended as they should\n"),
        "{text}"
    );
}
