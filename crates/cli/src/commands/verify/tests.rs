//! Tests of `verify`.

use clap::Parser;

use super::super::Tool;
use super::*;
use crate::arguments::{Arguments, Command};

fn options(line: &str) -> VerifyArguments {
    let words = ["everburn", "verify"].into_iter().chain(line.split(' '));
    match Arguments::try_parse_from(words).unwrap().command {
        Command::Tool(Tool::Verify(options)) => options,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_rank_runs_once() {
    let runs = options("mnist --ranks 1,2 --transport shm,tcp").runs();
    let names = runs.iter().map(Run::to_string).collect::<Vec<_>>();
    assert_eq!(names, ["1 rank, shm", "2 ranks, shm", "2 ranks, tcp"]);
}

#[test]
fn what_goes_wrong_comes_behind_what_does_not() {
    let line = "mnist --ranks 1,2 --steps 50 --resume-after 10 --chaos kill=1@step:5 --elastic 1:2";
    let runs = options(line).runs();
    let names = runs.iter().map(Run::to_string).collect::<Vec<_>>();
    let expected = [
        "1 rank, auto",
        "2 ranks, auto",
        "1 rank, auto, from step 10 on 2",
        "2 ranks, auto, from step 10 on 1",
        "2 ranks, auto, kill=1@step:5, elastic 1:2",
    ];
    assert_eq!(names, expected);
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    assert_eq!(options("mnist").check(), Ok(4));
    assert!(options("mnist --ranks 1,0").check().is_err());
    assert!(
        options("mnist --ranks 3 --virtual-ranks 2")
            .check()
            .is_err()
    );
    assert!(options("mnist --steps 0").check().is_err());
    let refused = |line: &str| options(line).check().unwrap_err();
    let faults = "mnist --ranks 2 --chaos kill=1@step:5 --elastic";
    assert!(refused(&format!("{faults} 1:4")).contains("to 4 ranks"));
    let reversed = format!("everburn verify {faults} 9:4");
    let error = Arguments::try_parse_from(reversed.split(' ')).unwrap_err();
    assert!(error.to_string().contains("the smaller number comes first"));
    assert!(refused("mnist --steps 19 --resume-after 10").contains("more than 19"));
    assert!(refused("mnist --steps 30 --resume-after 4").contains("5 or more"));
    let flags = options("mnist -- --data synthetic").train;
    assert_eq!(flags, ["--data", "synthetic"]);
}

#[test]
fn there_are_epochs_for_all_steps_unless_they_are_given() {
    assert_eq!(options("mnist --steps 200").epochs(), ["--epochs", "200"]);
    for given in ["--epochs 3", "--epochs=3"] {
        let line = format!("mnist --steps 200 -- {given}");
        assert!(options(&line).epochs().is_empty());
    }
}
