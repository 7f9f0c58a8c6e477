//! Two ranks, each a process, are killed once and continue: they learn what undisturbed ones learn, to the bit.

use std::path::Path;
use std::process::Command;

fn train(run: &Path, more: &[&str]) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_text"));
    let line = "train --ranks 2 --epochs 30 --batch-size 16 --steps 60 --checkpoint-every 20steps --run-dir";
    command.args(line.split(' ')).arg(run).args(more);
    command.status().expect("the program starts").success()
}

#[test]
fn a_training_that_was_killed_goes_on_and_learns_the_same() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (whole, killed) = (folder.join("text-whole"), folder.join("text-killed"));
    assert!(train(&whole, &[]));
    assert!(!train(&killed, &["--chaos", "kill=1@step:30"]));
    assert!(train(&killed, &["--resume"]));
    let weights = |run: &Path| std::fs::read(run.join("model.safetensors")).expect("a trained model");
    assert!(weights(&whole) == weights(&killed));
}
