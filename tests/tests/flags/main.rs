//! What each flag changes in a real training, where no other file's subject is that flag.
//!
//! Which test is about which flag says `docs/flags.md`; that none is forgotten is checked where the table is, in
//! `crates/cli/src/flag_table.rs`.

mod communication;
mod evaluation;
mod finders;
mod fine_tuning;
mod input;
mod learning;
mod looking_on;
mod pipelines;
mod recording;
mod rounds;
mod shares;

use std::path::Path;

use everburn_tests::{Ended, Everburn, Process, Run};

/// Synthetic digits of which 96 are learnt from, in batches of 32: three steps an epoch.
const FEW: &str = "--data synthetic --train-samples 106 --validation-samples 10 --test-samples 10 \
                   --batch-size 32 --log-every 1";

/// Trains `model` with `flags` on a few samples, and records it in `folder`/`name`.
fn train(folder: &Path, model: &str, name: &str, flags: &[&str]) -> (Run, Ended) {
    let ended = Everburn::new(folder, ["train", model])
        .words(FEW)
        .args(["--run-dir", name])
        .args(flags)
        .succeed();
    (Run::new(folder.join(name)), ended)
}

/// The losses of all steps, to the bit.
fn losses(run: &Run) -> Vec<f64> {
    run.values("step", "loss")
}

/// Whether all losses are the same but for rounding.
fn are_near(left: &[f64], right: &[f64]) -> bool {
    let mut pairs = left.iter().zip(right);
    left.len() == right.len() && pairs.all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs())
}

/// Whether a rank has memory in common with others of its machine.
fn shares_memory(process: Process) -> bool {
    process.file("maps").contains("memfd:everburn")
}
