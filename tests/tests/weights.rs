//! Weights go out as PyTorch has them and come in again, by the commands.

use everburn_tests::{Everburn, Run};

#[test]
fn an_exported_model_is_imported_and_measured_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let ended = Everburn::train(here, "mnist-bn").args(["--epochs", "2", "--run-dir", "a"]);
    ended.run().succeeded();
    let trained = Run::new(here.join("a"));
    for (to, file) in [
        ("safetensors", "a/state-dict.safetensors"),
        ("pt-names", "a/state-dict.pt"),
    ] {
        let ended = Everburn::new(here, ["export", "a", "--to", to]).run();
        assert!(ended.succeeded().stdout.contains(file));
        let run = format!("imported-{to}");
        let import = ["import", file, "mnist-bn", "--run-dir", &run];
        Everburn::new(here, import).run().succeeded();
        let data = ["--data", "synthetic", "--train-samples", "600"];
        let eval = Everburn::new(here, ["eval", &run, "--json", "--test-samples", "200"]);
        let ended = eval.args(data).run().succeeded();
        let result: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let accuracy = result["test_accuracy"].as_f64().unwrap();
        assert_eq!(accuracy, trained.number("test_accuracy"), "{ended}");
    }
}

#[test]
fn a_training_begins_with_the_weights_that_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let ended = Everburn::train(here, "mlp").args(["--epochs", "3", "--run-dir", "a"]);
    ended.run().succeeded();
    for to in ["safetensors", "pt-names"] {
        let ended = Everburn::new(here, ["export", "a", "--to", to]).run();
        ended.succeeded();
    }
    let first_loss = |flags: &[&str], run: &str| {
        let train = Everburn::train(here, "mlp").args(["--steps", "1", "--log-every", "1"]);
        train.args(["--run-dir", run]).args(flags).run().succeeded();
        let metrics = Run::new(here.join(run)).metrics();
        metrics[0]["loss"].as_f64().unwrap()
    };
    let from_seed = first_loss(&[], "seed");
    let expected = first_loss(&["--init-from", "a"], "run");
    assert!(
        expected < from_seed - 0.25,
        "{expected}, {from_seed} from the seed"
    );
    for (run, file, more) in [
        ("one", "a/state-dict.pt", &["--ranks", "1"][..]),
        ("two", "a/state-dict.safetensors", &["--ranks", "2"]),
        (
            "stages",
            "a/state-dict.pt",
            &["--ranks", "2", "--pipeline", "2"],
        ),
    ] {
        let loss = first_loss(&[&["--init-from", file][..], more].concat(), run);
        let apart = (loss - expected).abs() / expected;
        assert!(apart <= 1e-5, "{run}: {loss}, not {expected}");
    }
}

#[test]
fn weights_of_another_model_are_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let ended = Everburn::train(here, "mlp").args(["--steps", "1", "--run-dir", "a"]);
    ended.run().succeeded();
    Everburn::new(
        here,
        ["export", "a", "--to", "pt-names", "--output", "mlp.pt"],
    )
    .run()
    .succeeded();
    let messages = [
        "the weights in",
        "mlp.pt are not this model's:",
        "conv1.weight is not in the file, and has shape [10, 1, 5, 5] in the model",
        "fc2.bias is not in the file, and has shape [10] in the model",
    ];
    for ranks in ["1", "2"] {
        let train = Everburn::train(here, "mnist").args(["--init-from", "mlp.pt"]);
        train
            .args(["--ranks", ranks])
            .run()
            .failed_with(2, &messages);
    }
    let import = ["import", "mlp.pt", "mnist"];
    Everburn::new(here, import).run().failed_with(2, &messages);
    assert!(!here.join("runs").exists());
    let export = ["export", "a", "--to", "safetensors", "--output", "a.pt"];
    let ended = Everburn::new(here, export).run();
    ended.failed_with(2, &["a.pt does not end in .safetensors"]);
}
