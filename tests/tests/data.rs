//! Which data a run takes, and that every output says which.

#[path = "data/damaged_classifiers.rs"]
mod damaged_classifiers;
#[path = "data/damaged_images.rs"]
mod damaged_images;
#[path = "data/image_folders.rs"]
mod image_folders;
#[path = "data/image_input.rs"]
mod image_input;
#[path = "data/kinds.rs"]
mod kinds;
#[path = "data/pretrained_images.rs"]
mod pretrained_images;
#[path = "data/token_shards.rs"]
mod token_shards;

use std::path::Path;

use everburn_tests::{Everburn, Run, data_folder};

/// On as few samples as [`everburn_tests::SMALL`] has, but the choice of data is left open.
fn train_one_epoch(folder: &Path) -> Everburn {
    Everburn::line(folder, "train mlp --epochs 1 --run-dir run")
        .words("--train-samples 600 --validation-samples 100 --test-samples 200")
}

#[test]
fn real_mnist_is_taken_where_it_is_and_named() {
    let Some(mnist) = data_folder("mnist", "training on real MNIST") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ended = train_one_epoch(folder.path())
        .args(["--ranks", "2"])
        .env("EVERBURN_DATA_DIR", mnist.parent().unwrap())
        .succeed();
    let first = ended.stdout.lines().next().unwrap_or_default();
    assert!(first.starts_with("data: mnist, 600 training"), "{ended}");
    let run = Run::new(folder.path().join("run"));
    assert_eq!(run.report()["dataset"], "mnist");
    assert!(run.text("config.toml").contains("name = \"mnist\""));
    assert!(run.number("test_accuracy") > 0.3);
}

#[test]
fn without_files_and_network_synthetic_digits_are_taken_and_every_output_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let ended = train_one_epoch(folder.path()).succeed();
    let first = ended.stdout.lines().next().unwrap_or_default();
    assert!(first.starts_with("data: synthetic-digits"), "{ended}");
    assert!(first.contains("MNIST was not found"), "{ended}");
    ended.prints(["mlp on synthetic-digits"]);

    let run = Run::new(folder.path().join("run"));
    let report = run.report();
    assert_eq!(report["dataset"], "synthetic-digits");
    let origin = report["dataset_origin"].as_str().unwrap();
    assert!(origin.contains("MNIST was not found"), "{report:#}");
    let config = run.text("config.toml");
    assert!(config.contains("name = \"synthetic\""), "{config}");
    assert!(config.contains("MNIST was not found"), "{config}");

    let ended = Everburn::new(folder.path(), ["eval", "run"]).succeed();
    ended.prints(["on synthetic-digits"]);
}

#[test]
fn mnist_by_name_fails_where_it_is_not_and_lists_the_places() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("named")).unwrap();
    let places = [
        folder.path().join("named/mnist"),
        folder.path().join("home/cache/everburn/mnist"),
    ];
    let ended = train_one_epoch(folder.path())
        .args(["--data", "mnist"])
        .env("EVERBURN_DATA_DIR", folder.path().join("named"))
        .run();
    let places = places.map(|place| place.display().to_string());
    ended.failed_with(2, &[&places[0], &places[1]]);
    ended.failed_with(2, &["not found", "--data-dir", "--data synthetic"]);
    assert!(!folder.path().join("run").exists(), "nothing was started");
}

#[test]
fn a_model_of_digits_leads_images_of_your_own_to_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    train_one_epoch(here)
        .args(["--data", "my-images"])
        .refused(&["'my-images'", "grey images of 28 x 28", "resnet18 and vit"]);
    let train = |augment: &str| {
        let data = ["--data", "synthetic", "--steps", "1", "--set", augment];
        train_one_epoch(here).args(data).run()
    };
    train("data.augment=flip,shift").failed_with(2, &["do not take flip", "shift and rotate"]);
    let ended = train("data.augment=shift").succeeded();
    ended.prints([", augmented by shift:0.1"]);
    std::fs::write(here.join("photo.png"), "no image").unwrap();
    Everburn::new(here, ["predict", "run", "--input", "photo.png"]).refused(&[
        "photo.png: this model reads no image files",
        "resnet18 and vit",
    ]);
}
