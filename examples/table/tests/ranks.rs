//! Two ranks, each a process, are killed once and continue: they learn what undisturbed ones learn, to the bit.

use std::path::Path;
use std::process::Command;

fn train(run: &Path, more: &[&str]) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_table"));
    let line = "train --ranks 2 --epochs 9 --steps 30 --checkpoint-every 10steps --run-dir";
    command.args(line.split(' ')).arg(run).args(more);
    command.status().expect("the program starts").success()
}

#[test]
fn a_training_that_was_killed_goes_on_and_learns_the_same() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (whole, killed) = (folder.join("table-whole"), folder.join("table-killed"));
    assert!(train(&whole, &[]));
    assert!(!train(&killed, &["--chaos", "kill=1@step:15"]));
    assert!(train(&killed, &["--resume"]));
    let weights = |run: &Path| std::fs::read(run.join("model.safetensors")).expect("a trained model");
    assert!(weights(&whole) == weights(&killed));
}

#[test]
fn each_house_has_its_price_on_any_number_of_ranks_and_those_of_another_table_are_tested() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (run, other) = (folder.join("table-tested"), folder.join("other.csv"));
    assert!(train(&run, &[]));
    let predicted = |ranks: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_table"));
        let output = run.join(format!("{ranks}.jsonl"));
        command.arg("predict").arg(&run).args(["--ranks", ranks]);
        let table = concat!(env!("CARGO_MANIFEST_DIR"), "/houses.csv");
        command.args(["--input", table, "--output"]).arg(&output);
        assert!(command.status().expect("the program starts").success());
        let text = std::fs::read_to_string(output).expect("predictions are written");
        text.lines().map(|price| price.parse::<f32>().expect("a price")).collect::<Vec<_>>()
    };
    let (alone, together) = (predicted("1"), predicted("2"));
    assert!(alone.len() > 100 && alone.len() == together.len());
    assert!(alone.iter().zip(together).all(|(one, other)| (one - other).abs() < 0.1));

    let houses = include_str!("../houses.csv").lines().take(51);
    std::fs::write(&other, houses.collect::<Vec<_>>().join("\n")).expect("a table can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_table"));
    let other = format!("houses.file={other:?}");
    command.arg("eval").arg(&run).args(["--ranks", "2", "--json", "--set", &other]);
    let output = command.output().expect("the program starts");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("\"test_samples\":50,"), "{told}");
}
