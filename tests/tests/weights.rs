//! Weights go out as PyTorch has them and come in again, by the commands.

#[path = "weights/pretrained.rs"]
mod pretrained;
#[path = "weights/refusals.rs"]
mod refusals;
#[path = "weights/unshown.rs"]
mod unshown;

use std::path::Path;

use everburn_tests::{Everburn, Run};

/// A run `a` of `mlp`, trained as `flags` say.
fn run_of_mlp(here: &Path, flags: &str) {
    let train = Everburn::train(here, "mlp").words(flags);
    train.args(["--run-dir", "a"]).succeed();
}

#[test]
fn an_exported_model_is_imported_and_measured_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    Everburn::train(here, "mnist-bn")
        .words("--epochs 2 --run-dir a")
        .succeed();
    let trained = Run::new(here.join("a"));
    for (to, file) in [
        ("safetensors", "a/state-dict.safetensors"),
        ("pytorch", "a/state-dict.pt"),
    ] {
        let ended = Everburn::new(here, ["export", "a", "--to", to]).run();
        assert!(ended.succeeded().stdout.contains(file));
        let run = format!("imported-{to}");
        let import = ["import", file, "mnist-bn", "--run-dir", &run];
        Everburn::new(here, import).succeed();
        let data = ["--data", "synthetic", "--train-samples", "600"];
        let eval = Everburn::new(here, ["eval", &run, "--json", "--test-samples", "200"]);
        let ended = eval.args(data).succeed();
        let result = ended.json();
        let accuracy = result["test_accuracy"].as_f64().unwrap();
        assert_eq!(accuracy, trained.number("test_accuracy"), "{ended}");
    }
}

#[test]
fn a_training_begins_with_the_weights_that_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run_of_mlp(here, "--epochs 3");
    for to in ["safetensors", "pytorch"] {
        Everburn::new(here, ["export", "a", "--to", to]).succeed();
    }
    let first_loss = |flags: &[&str], run: &str| {
        let train = Everburn::train(here, "mlp").args(["--steps", "1", "--log-every", "1"]);
        train.args(["--run-dir", run]).args(flags).succeed();
        Run::new(here.join(run)).values("step", "loss")[0]
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
    // A new run there would move them aside first.
    for weights in ["a", "a/checkpoints"] {
        let own = Everburn::train(here, "mlp").args(["--init-from", weights, "--run-dir", "a"]);
        own.refused(&["is in the folder of the new run", "another --run-dir"]);
    }
}

#[test]
fn a_head_of_another_size_is_left_out_of_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run_of_mlp(here, "--steps 1");
    Everburn::new(here, ["export", "a", "--to", "safetensors"]).succeed();
    let weights = here.join("a/state-dict.safetensors");
    let begin = |run: &str, more: &[&str]| {
        let train = Everburn::train(here, "mlp").args(["--steps", "1", "--log-every", "1"]);
        train
            .args(["--learning-rate", "1e-12", "--run-dir", run])
            .args(more)
            .run()
    };
    let from = ["--init-from", weights.to_str().unwrap()];
    let skip = |pattern| [&from[..], &["--init-skip", pattern]].concat();
    begin("all", &from).succeeded();
    begin("but-the-head", &skip("layers.2.*")).succeeded();
    let tensors = |run: &str| std::fs::read(here.join(run).join("model.safetensors")).unwrap();
    assert_ne!(tensors("all"), tensors("but-the-head"));
    let same =
        |from: usize| tensors("all")[from..from + 64] == tensors("but-the-head")[from..from + 64];
    assert!(same(0), "the same names and shapes");
    begin("layer", &skip("layers.2")).failed_with(2, &["did you mean 'layers.2.*'?"]);
    begin("nothing", &skip("*")).failed_with(2, &["--init-skip leaves out all tensors"]);
    let told = begin("told", &skip("layers.2.*")).succeeded();
    let line = "4 tensors; layers.2.weight, layers.2.bias begin with new weights";
    told.prints([line]);
    begin("none", &skip("head.*")).failed_with(2, &["--init-skip head.*", "matches no parameter"]);
    let alone = begin("alone", &["--init-skip", "layers.2.*"]);
    alone.failed_with(2, &["--init-skip", "--init-from, which is not given"]);
    let of_a_run = begin("run", &["--init-from", "a", "--init-skip", "layers.2.*"]).succeeded();
    of_a_run.prints([line]);
    assert_eq!(tensors("run"), tensors("but-the-head"));
    Everburn::line(here, "train --resume --run-dir run --init-skip fc.*").refused(&[
        "--init-skip fc.* has no effect on a resume: the run in",
        "began with --init-skip layers.2.* and continues with its checkpoint",
        "leave out --resume, name another --run-dir, and add --init-from",
    ]);
}

#[test]
fn other_weights_than_those_of_a_configuration_are_taken_without_its_init_skip() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let begin = |run: &str, more: &str| {
        let train = Everburn::train(here, "mlp").args(["--steps", "1", "--run-dir", run]);
        train.words(more).succeed();
    };
    begin("a", "");
    begin("b", "--init-from a --init-skip layers.2.*");
    Everburn::line(here, "export b --to pytorch --output b.pt").succeed();
    Everburn::line(here, "import b.pt --config b/config.toml --run-dir c").succeed();
    let config = Run::new(here.join("c")).text("config.toml");
    assert!(!config.contains("init_skip"), "{config}");
    let further = |run: &str, more: &str| {
        let train = format!("train --config b/config.toml --init-from b.pt --run-dir {run} {more}");
        let ended = Everburn::line(here, train).run();
        ended.succeeded().stdout
    };
    let whole = further("d", "");
    assert!(whole.contains("b.pt: 6 tensors\n"), "{whole}");
    let skips = further("e", "--init-skip layers.1.*");
    let line = "b.pt: 4 tensors; layers.1.weight, layers.1.bias begin with new weights";
    assert!(skips.contains(line), "{skips}");
}

#[test]
fn a_model_that_its_run_has_gone_beyond_is_not_taken_for_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run_of_mlp(here, "--steps 3 --epochs 3");
    Everburn::new(here, ["eval", "a"]).succeed();
    let resumed = ["train", "--resume", "--run-dir", "a", "--steps", "20"];
    let lost = ["--checkpoint-every", "1steps", "--chaos", "kill=0@step:9"];
    let ended = Everburn::new(here, resumed).args(lost).run();
    assert_ne!(ended.code(), 0, "{ended}");
    let messages = [
        "it is of step 3, and the run has come to step ",
        "--checkpoint best",
    ];
    for command in [
        "eval a",
        "export a --to pytorch",
        "train mlp --init-from a --run-dir b",
    ] {
        Everburn::line(here, command).refused(&messages);
    }
    Everburn::new(here, resumed).succeed();
    Everburn::new(here, ["eval", "a"]).succeed();
}

#[test]
fn a_checkpoint_is_weights_to_begin_with_and_an_import_none_to_resume() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run_of_mlp(here, "--epochs 1");
    let first_loss = |from: &str, run: &str| {
        let flags = format!("--steps 1 --log-every 1 --init-from {from} --run-dir {run}");
        Everburn::train(here, "mlp").words(flags).succeed();
        Run::new(here.join(run)).losses("step")[0].1
    };
    let of_run = first_loss("a", "b");
    assert_eq!(first_loss("a/checkpoints/epoch-0001", "c"), of_run);
    let file = "a/checkpoints/epoch-0001/model.safetensors";
    assert_eq!(first_loss(file, "d"), of_run);
    std::fs::copy(here.join(file), here.join("copied.safetensors")).unwrap();
    assert_eq!(first_loss("copied.safetensors", "e"), of_run);

    let exported = ["export", "a", "--to", "pytorch", "--output"];
    Everburn::new(here, exported)
        .args(["none/mlp.pt"])
        .refused(&["--output none/mlp.pt: there is no folder none"]);
    Everburn::new(here, exported).args(["mlp.pt"]).succeed();
    let imported = Everburn::line(here, "import mlp.pt mlp --run-dir imported").succeed();
    imported.prints(["mlp reads pixels from 0 to 1: those of the file divided by 255"]);
    for checkpoint in ["best", "1"] {
        let export = ["export", "imported", "--to", "pytorch", "--checkpoint"];
        let messages = ["imported has no checkpoints", "leave --checkpoint out"];
        let export = Everburn::new(here, export).args([checkpoint]);
        export.refused(&messages);
    }
    let messages = [
        "weights of an import",
        "train --config imported/config.toml --init-from imported` trains from these",
    ];
    Everburn::line(here, "train --resume --run-dir imported --epochs 1").refused(&messages);
}

#[test]
fn a_damaged_model_of_a_run_leads_to_its_good_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run_of_mlp(here, "--epochs 2");
    let run = Run::new(here.join("a"));
    std::fs::write(run.path.join("model.safetensors"), "damaged").unwrap();
    run.damage_checkpoint(2);
    let good = "epoch-0001 is the newest good checkpoint: ";
    for command in ["eval a", "export a --to pytorch"] {
        let command = Everburn::line(here, command);
        let messages = [
            "a/model.safetensors",
            "cut off",
            good,
            "--checkpoint epoch-0001 takes it",
        ];
        command.refused(&messages);
    }
    let from = ["--init-from", "a", "--run-dir", "b"];
    let messages = [good, "name it, ", "a/checkpoints/epoch-0001"];
    let train = Everburn::train(here, "mlp").args(from);
    train.refused(&messages);
    Everburn::line(here, "eval a --checkpoint epoch-0001").succeed();
    std::fs::remove_dir_all(run.path.join("checkpoints")).unwrap();
    let eval = Everburn::new(here, ["eval", "a"]);
    eval.refused(&["no checkpoint of this run is good"]);
}
