//! `--strategy model-parallel`: one model over several devices of a process.

use everburn_tests::{Everburn, NO_PRESET, Run, assert_refused};

/// Three steps of `model` with these flags, recorded in `name`.
fn train(folder: &std::path::Path, model: &str, name: &str, flags: &[&str]) -> Run {
    Everburn::train(folder, model)
        .words(NO_PRESET)
        .words("--steps 3 --log-every 1 --epochs 1")
        .args(["--run-dir", name])
        .args(flags)
        .succeed();
    Run::new(folder.join(name))
}

#[test]
fn a_model_on_two_devices_trains_as_on_one() {
    let folder = tempfile::tempdir().unwrap();
    let one = train(folder.path(), "mnist", "one", &[]);
    let flags = ["--strategy", "model-parallel", "--devices", "flex,flex"];
    let two = train(folder.path(), "mnist", "two", &flags);
    let report = two.report();
    assert_eq!(report["world_size"], 1, "{report:#}");
    assert_eq!(report["steps"], 3, "{report:#}");
    two.assert_near(&one, "step", 1e-5);
    let config = two.text("config.toml");
    assert!(config.contains("strategy = \"model-parallel\""), "{config}");

    // What it leaves is what one device leaves: an evaluation on one reads it.
    let evaluation = Everburn::new(folder.path(), ["eval", "two"]).succeed();
    evaluation.prints([&format!("loss {:.4}", two.number("test_loss"))]);
    Everburn::new(folder.path(), ["eval", "two"])
        .args(flags)
        .refused(&["model-parallel is for training", "leave it out"]);

    // Each rank may have a model on several devices.
    let flags = ["--strategy", "model-parallel", "--ranks", "2"];
    let flags = [&flags[..], &["--devices", "flex,flex,flex,flex"]].concat();
    let four = train(folder.path(), "mnist", "four", &flags);
    assert_eq!(four.report()["world_size"], 2);
    four.assert_near(&one, "step", 1e-5);
}

#[test]
fn devices_that_do_not_fit_the_model_or_the_ranks_are_refused() {
    assert_refused(
        "mnist",
        "
        --strategy model-parallel | two devices or more | 1 in --devices | --devices flex,flex
        --strategy model-parallel --devices flex | two devices or more
        --strategy model-parallel --devices flex,flex,flex --ranks 2 | two devices or more | --ranks 2 and 3 in --devices
        --strategy model-parallel --devices flex,flex,flex,flex,flex | mnist | a model of 4 blocks cannot be shared by 5 devices | name 4 devices or fewer
        --strategy model-parallel --devices flex,gpu | no device called `gpu`
        ",
    );
}
