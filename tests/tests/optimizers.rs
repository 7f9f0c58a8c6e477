//! Optimizers and groups of parameters, from the command line to what is learnt.

use std::path::Path;

use everburn_tests::{Ended, Everburn, Run, assert_refused};

fn train(folder: &Path, name: &str, flags: &[&str]) -> Ended {
    Everburn::train(folder, "mlp")
        .args(["--run-dir", name, "--epochs", "1", "--steps", "4"])
        .args(["--log-every", "1"])
        .args(flags)
        .run()
}

fn losses(folder: &Path, name: &str) -> Vec<f64> {
    Run::new(folder.join(name)).values("step", "loss")
}

#[test]
fn both_spellings_of_adam_w_are_one_optimizer() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "long", &["--optimizer", "adam-w"]).succeeded();
    train(folder.path(), "short", &["--optimizer", "adamw"]).succeeded();
    assert_eq!(
        losses(folder.path(), "long"),
        losses(folder.path(), "short")
    );
}

#[test]
fn settings_of_an_optimizer_are_set_by_their_names_in_a_section_or_on_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = "model = 'mlp'\n[optimizer]\nname = 'sgd'\nlearning_rate = 0.05\nmomentum = 0.9\n";
    std::fs::write(folder.path().join("my.toml"), file).unwrap();
    Everburn::line(folder.path(), "train --config my.toml")
        .words(everburn_tests::SMALL)
        .args(["--run-dir", "file", "--steps", "4", "--log-every", "1"])
        .succeed();
    let set = ["--set", "optimizer.momentum=0.9"];
    let flags = ["--optimizer", "sgd", "--learning-rate", "0.05"];
    train(folder.path(), "set", &[&flags[..], &set].concat()).succeeded();
    train(folder.path(), "none", &flags).succeeded();
    assert_eq!(losses(folder.path(), "file"), losses(folder.path(), "set"));
    assert_ne!(losses(folder.path(), "none"), losses(folder.path(), "set"));
}

#[test]
fn what_the_named_optimizer_has_not_is_refused_before_anything_is_started() {
    assert_refused(
        "mlp",
        "
        --optimizer adam --momentum 0.9 | `momentum` is no setting of adam | sgd, muon and rmsprop
        --optimizer lion --set optimizer.epsilon=1e-6 | `epsilon` is no setting of lion
        --set optimizer.momentums=0.9 | momentums
        --optimizer muon --shard optimizer --ranks 2 | --optimizer muon and --shard optimizer do not go together
        --optimizer lamb --mesh tensor=2 --ranks 2 | --optimizer lamb and layers that several ranks share
        ",
    );
}

#[test]
fn groups_of_parameters_learn_as_they_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let weights = |name: &str| std::fs::read(folder.path().join(name).join("model.safetensors"));
    let groups = |text: &str| format!("optimizer.groups=[{text}]");
    let faster = groups("{match=\"layers.2.*\", learning_rate_factor=10.0}");
    train(folder.path(), "plain", &[]).succeeded();
    train(folder.path(), "faster", &["--set", &faster]).succeeded();
    assert_ne!(
        losses(folder.path(), "plain"),
        losses(folder.path(), "faster")
    );
    let none = groups("{match=\"layers.3.*\", frozen=true}");
    let ended = train(folder.path(), "none", &["--set", &none, "--ranks", "2"]);
    ended.failed_with(2, &["`match = \"layers.3.*\"`", "the nearest is `layers."]);
    assert!(!folder.path().join("none").exists());
    let silent = groups("{match=\"layers.2.*\"}");
    train(folder.path(), "silent", &["--set", &silent]).failed_with(2, &["no setting"]);
    assert!(weights("plain").unwrap() != weights("faster").unwrap());
}
