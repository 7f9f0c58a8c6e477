//! The accuracy that the project promises, on the whole of real MNIST. It takes minutes, so it is
//! run by name: `cargo test --release -p everburn-tests --test whole_mnist -- --ignored`.

use std::path::Path;
use std::time::Duration;

use everburn_tests::{Everburn, Run, data_folder};

/// Far longer than three epochs take on two cores.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Trains a model as `flags` say, and records it in `folder`/`name`.
fn train(folder: &Path, data: &Path, model: &str, name: &str, flags: &[&str]) -> Run {
    Everburn::new(folder, ["train", model, "--run-dir", name])
        .args(flags)
        .env("EVERBURN_DATA_DIR", data)
        .start()
        .with_deadline(PATIENCE)
        .wait()
        .succeeded();
    Run::new(folder.join(name))
}

/// Trains three epochs on this many ranks to `accuracy`, and evaluates the result on one and on two.
fn reaches(accuracy: f64, model: &str, ranks: &str) {
    let Some(mnist) = data_folder("mnist", "training on the whole of MNIST") else {
        return;
    };
    let data = mnist.parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "3", "--ranks", ranks];
    let run = train(folder.path(), data, model, "run", &flags);
    let report = run.report();
    assert_eq!(report["dataset"], "mnist", "{report:#}");
    assert_eq!(report["test_samples"], 10_000, "{report:#}");
    assert!(run.number("test_accuracy") >= accuracy, "{report:#}");
    for ranks in ["1", "2"] {
        let arguments = ["eval", "run", "--json", "--ranks", ranks];
        let ended = Everburn::new(folder.path(), arguments)
            .env("EVERBURN_DATA_DIR", data)
            .succeed();
        assert_eq!(
            ended.json()["test_accuracy"],
            report["test_accuracy"],
            "{ended}"
        );
    }
}

#[test]
#[ignore = "takes minutes; `cargo xtask check` runs it"]
fn with_batch_norm_and_dropout_on_four_ranks() {
    reaches(0.98, "mnist-bn", "4");
}

/// The bits are the same on any number of ranks, which other tests show. Two seeds have reached 99.23 % and 99.05 %, and chance
/// alone moves the share of 10,000 samples by 0.1 points: the bound is two of those below the lower one.
#[test]
#[ignore = "takes minutes; `cargo xtask check --long` runs it"]
fn long_alone_and_on_two_and_four_ranks() {
    for ranks in ["1", "2", "4"] {
        reaches(0.988, "mnist", ranks);
    }
}

/// Trains with compressed gradients, each hook with the most that it may send, and in half precision.
#[expect(
    clippy::print_stdout,
    reason = "the figures are wanted, not only the verdict"
)]
fn keep_the_accuracy(hooks: &[(&str, f64)], precisions: &[&str]) {
    let Some(mnist) = data_folder("mnist", "training with compressed gradients") else {
        return;
    };
    let data = mnist.parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let two_ranks = |name: &str, flags: &[&str]| {
        let flags = [&["--ranks", "2"], flags].concat();
        train(folder.path(), data, "mnist", name, &flags)
    };
    let plain = two_ranks("plain", &[]);
    let lost = |run: &Run| plain.number("test_accuracy") - run.number("test_accuracy");
    for (hook, most_bytes) in hooks {
        let flags = ["--communication-hook", hook];
        let run = two_ranks(hook, &flags);
        let bytes = run.number("gradient_bytes") / plain.number("gradient_bytes");
        let lost = lost(&run);
        println!("{hook}: {lost:+.4} of accuracy lost, {bytes:.3} of the bytes");
        assert!(lost <= 0.003, "{hook} loses {lost} of accuracy");
        assert!(bytes <= *most_bytes, "{hook} sends {bytes} of the bytes");
    }
    for precision in precisions {
        let flags = ["--precision", precision];
        let run = two_ranks(&format!("in-{precision}"), &flags);
        let lost = lost(&run);
        println!("{precision}: {lost:+.4} of accuracy lost");
        assert!(lost.abs() <= 0.003, "{precision} is {lost} off");
    }
}

#[test]
#[ignore = "takes minutes; `cargo xtask check` runs it"]
fn few_bytes_and_half_precision_keep_the_accuracy() {
    keep_the_accuracy(&[("power-sgd:4", 0.2)], &["bf16"]);
}

#[test]
#[ignore = "takes minutes; `cargo xtask check --long` runs it"]
fn long_half_the_bytes_and_f16_keep_the_accuracy() {
    keep_the_accuracy(&[("bf16", 0.51), ("fp16", 0.51)], &["f16"]);
}
