//! Two ranks, each a process, are killed once and continue: they learn what undisturbed ones learn, to the bit.

use std::path::Path;
use std::process::Command;

fn train(run: &Path, more: &[&str]) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_autoencoder"));
    let line = "train --ranks 2 --epochs 9 --steps 30 --checkpoint-every 10steps --run-dir";
    command.args(line.split(' ')).arg(run).args(more);
    command.status().expect("the program starts").success()
}

#[test]
fn a_training_that_was_killed_goes_on_and_learns_the_same() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (whole, killed) = (folder.join("autoencoder-whole"), folder.join("autoencoder-killed"));
    assert!(train(&whole, &[]));
    assert!(!train(&killed, &["--chaos", "kill=1@step:15"]));
    assert!(train(&killed, &["--resume"]));
    let weights = |run: &Path| std::fs::read(run.join("model.safetensors")).expect("a trained model");
    assert!(weights(&whole) == weights(&killed));
}

#[test]
fn an_evaluation_on_other_drawings_says_so() {
    let run = Path::new(env!("CARGO_TARGET_TMPDIR")).join("autoencoder-tested");
    assert!(train(&run, &[]));
    let warned = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_autoencoder"));
        let tested = command.arg("eval").arg(&run).arg("--json").args(more).output().expect("the program starts");
        assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stderr));
        let said = String::from_utf8_lossy(&tested.stderr).contains("the data are not those of the training");
        assert_eq!(String::from_utf8_lossy(&tested.stdout).contains("\"data_changed\":true"), said);
        said
    };
    assert!(!warned(&[]));
    assert!(warned(&["--set", "circles.size=32"]));
}
