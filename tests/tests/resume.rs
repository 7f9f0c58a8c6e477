//! Continuing from a checkpoint.

use std::path::Path;

use everburn_tests::{AssertContains, Ended, Everburn, Run, json_lines};

/// Trains this many epochs, from the start.
fn train(folder: &Path, name: &str, epochs: &str) -> Run {
    let flags = ["--epochs", epochs, "--run-dir", name, "--log-every", "1"];
    Everburn::train(folder, "mlp").args(flags).succeed();
    Run::new(folder.join(name))
}

/// Continues until this many epochs have been made, with the run's own configuration.
fn resume(folder: &Path, name: &str, epochs: &str, ranks: &str) -> Ended {
    let arguments = ["train", "--resume", "--run-dir", name, "--epochs", epochs];
    Everburn::new(folder, arguments)
        .args(["--ranks", ranks])
        .run()
}

#[test]
fn two_epochs_and_two_more_are_four_epochs_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let at_once = train(folder.path(), "at-once", "4");
    let in_two = train(folder.path(), "in-two", "2");
    resume(folder.path(), "in-two", "4", "1").succeeded();
    for kind in ["step", "train", "validation"] {
        assert_eq!(at_once.losses(kind), in_two.losses(kind), "{kind}");
    }
    let (theirs, ours) = (at_once.report(), in_two.report());
    for name in [
        "test_accuracy",
        "test_loss",
        "epochs",
        "steps",
        "best_epoch",
    ] {
        assert_eq!(theirs[name], ours[name], "{name}");
    }
    assert_eq!(ours["resumed_after_epoch"], 2);
    assert!(theirs["resumed_after_epoch"].is_null());
}

/// The command that a stopped run prints names no machine.
#[test]
fn a_run_of_two_machines_continues_on_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = train(folder.path(), "run", "1");
    let path = folder.path().join("run/config.toml");
    let config = run.text("config.toml");
    assert!(config.contains("nodes = 1"), "{config}");
    std::fs::write(&path, config.replace("nodes = 1", "nodes = 2")).unwrap();
    resume(folder.path(), "run", "2", "1").succeeded();
    assert_eq!(run.report()["epochs"], 2);
    assert!(run.text("config.toml").contains("nodes = 1"));
    Everburn::line(folder.path(), "train --resume --run-dir run --nodes 2")
        .refused(&["--nodes 2 without --node-rank"]);
}

#[test]
fn settings_that_a_resume_changes_are_in_its_event_and_those_of_the_task_are_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let run = train(folder.path(), "run", "1");
    for (ranks, epochs, test_samples, was) in [("1", "2", 40, 200), ("2", "3", 30, 40)] {
        let ended = Everburn::new(folder.path(), ["train", "--resume", "--run-dir", "run"])
            .args(["--epochs", epochs, "--ranks", ranks])
            .args(["--set", &format!("data.test_samples={test_samples}")])
            .run()
            .succeeded();
        let of_task = format!("data.test_samples = {test_samples} (was {was})");
        let warning = "the model has learnt with the settings of the run";
        ended.warns([format!("changed by this resume: {of_task}; {warning}")]);
        let events = json_lines(&run.text("events.jsonl"));
        let resume = events.iter().rfind(|event| event["kind"] == "resume");
        let text = resume.unwrap()["text"].as_str().unwrap();
        text.assert_contains([
            "; changed by this resume: ",
            &of_task,
            &format!("training.epochs = {epochs} ("),
        ]);
    }
}

#[test]
fn a_resume_with_nothing_to_train_says_so_and_names_the_settings_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let run = train(folder.path(), "run", "1");
    let files = [
        "config.toml",
        "events.jsonl",
        "metrics.jsonl",
        "report.json",
    ];
    let before = files.map(|file| run.text(file));
    let steps = run.number("steps");
    let said = format!("nothing to train: {steps} of {steps} steps have been made");
    for ranks in ["1", "2"] {
        let ended = resume(folder.path(), "run", "1", ranks).succeeded();
        ended.warns([&said]);
        assert!(!ended.stderr.contains("have no effect"), "{ended}");
        ended.prints(["test accuracy"]);
    }
    let line = "train --resume --run-dir run --learning-rate 0.0003";
    Everburn::line(folder.path(), line).succeed().warns([
        &*said,
        "; these settings have no effect: training.optimizer.learning_rate = 0.0003 (was ",
    ]);
    assert_eq!(files.map(|file| run.text(file)), before);
}

#[test]
fn a_run_of_one_rank_goes_on_on_two() {
    let folder = tempfile::tempdir().unwrap();
    let at_once = train(folder.path(), "at-once", "3");
    let in_two = train(folder.path(), "in-two", "2");
    let ended = resume(folder.path(), "in-two", "3", "2").succeeded();
    let report = in_two.report();
    assert_eq!(report["world_size"], 2);
    assert_eq!(report["resumed_after_epoch"], 2);
    // Bytes are of the steps that this process made.
    let number = |name: &str| report[name].as_u64().unwrap();
    assert_eq!(3 * number("steps_since_resume"), number("steps"));
    let bytes = number("gradient_bytes") / number("steps_since_resume");
    let bytes = everburn_record::units::bytes(bytes);
    let said = format!("gradients: {bytes} per rank per step");
    assert!(ended.stdout.contains(&said), "no `{said}`: {ended}");
    assert_eq!(in_two.epochs(), 3);
    in_two.assert_near(&at_once, "train", 1e-3);
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_taken() {
    let folder = tempfile::tempdir().unwrap();
    let run = train(folder.path(), "run", "2");
    for (ranks, newest) in [("1", 2), ("2", 3)] {
        run.damage_checkpoint(newest);
        let more = (newest + 1).to_string();
        let ended = resume(folder.path(), "run", &more, ranks).succeeded();
        let damaged = format!("run/checkpoints/epoch-{newest:04}");
        let refused =
            format!("the checkpoint {damaged} cannot be used: model.safetensors is damaged");
        ended.warns([&refused]);
        let good = newest - 1;
        ended.warns([format!("resuming from run/checkpoints/epoch-{good:04}")]);
        let report = run.report();
        assert_eq!(report["resumed_after_epoch"], good, "{report:#}");
        assert_eq!(report["epochs"], newest + 1, "{report:#}");
    }
}

#[test]
fn where_all_checkpoints_are_damaged_each_is_named_and_where_none_is_left_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let run = train(folder.path(), "run", "2");
    run.damage_checkpoint(1);
    let manifest = run.checkpoint(2).join("manifest.json");
    std::fs::write(manifest, "{ \"format_version\": 1").unwrap();
    let before = run.report();
    for ranks in ["1", "2"] {
        let ended = resume(folder.path(), "run", "3", ranks);
        ended.failed_with(
            2,
            &[
                "none of those in it is whole; start without --resume",
                "epoch-0002 cannot be used: manifest.json is damaged",
                "epoch-0001 cannot be used: model.safetensors is damaged",
            ],
        );
    }
    assert_eq!(run.report(), before, "the run is as it was");
    std::fs::remove_dir_all(run.path.join("checkpoints")).unwrap();
    let gone = "run/checkpoints is gone, from which the run would be resumed";
    let begins = "--init-from run` begins a training with its model";
    resume(folder.path(), "run", "3", "1").failed_with(2, &[gone, begins]);
    std::fs::remove_file(run.path.join("model.safetensors")).unwrap();
    let anew = "leave out --resume to begin anew";
    resume(folder.path(), "run", "3", "1").failed_with(2, &[gone, anew]);
}

#[test]
fn where_there_is_no_run_the_message_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let ended = resume(folder.path(), "nowhere", "3", "1");
    ended.failed_with(2, &["no run in nowhere to resume", "leave out --resume"]);
    Everburn::train(folder.path(), "mlp")
        .args(["--resume"])
        .refused(&["--run-dir"]);
}

#[test]
fn another_model_or_optimizer_does_not_go_on_from_this_ones_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let run = train(folder.path(), "run", "1");
    let before = (run.report(), run.text("metrics.jsonl"));
    Everburn::line(folder.path(), "train mnist --resume --run-dir run").refused(&[
        "the run is one of mlp, and mnist was named",
        "leave the model's name out",
    ]);
    for ranks in ["1", "2"] {
        let ended = Everburn::line(folder.path(), "train --resume --run-dir run --epochs 2")
            .args(["--optimizer", "sgd", "--ranks", ranks])
            .run();
        let messages = ["optimizer", "Adam there", "Sgd here"];
        ended.failed_with(2, &messages);
        ended.failed_with(
            2,
            &["resume with the same configuration, or begin a new run with --init-from RUN"],
        );
    }
    assert_eq!((run.report(), run.text("metrics.jsonl")), before);
    // The refusals have changed nothing that this needs.
    resume(folder.path(), "run", "2", "1").succeeded();
}

#[test]
fn a_model_of_another_size_is_refused_with_the_setting_that_changed() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..60).map(|row| format!("{row},{}\n", 2 * row)).collect();
    std::fs::write(folder.path().join("rows.csv"), format!("x,y\n{rows}")).unwrap();
    let begin = "train table --data rows.csv --set table.target=y --epochs 1 --run-dir run";
    Everburn::line(folder.path(), begin).succeed();
    let before = Run::new(folder.path().join("run")).text("config.toml");
    let ended = Everburn::line(folder.path(), "train --resume --run-dir run --epochs 2")
        .args(["--set", "table.hidden=[32, 64]"])
        .run();
    let messages = [
        "has shape [1, 64] in the file and [1, 32] in the model",
        "differ from the run: table.hidden = [32, 64] (was [64, 64])",
        "--init-from",
    ];
    ended.failed_with(2, &messages);
    let after = Run::new(folder.path().join("run")).text("config.toml");
    assert_eq!(before, after);
}

#[test]
fn more_epochs_stretch_the_cosine_schedule_of_a_run() {
    let begin = |folder: &Path, name: &str, epochs: &str| {
        Everburn::train(folder, "mlp")
            .words("--lr-schedule cosine --warmup-steps 2 --log-every 1")
            .args(["--epochs", epochs, "--run-dir", name])
            .succeed();
        Run::new(folder.join(name))
    };
    let folder = tempfile::tempdir().unwrap();
    let at_once = begin(folder.path(), "at-once", "3").values("step", "learning_rate");
    assert_eq!(at_once.len(), 24);
    for ranks in ["1", "2"] {
        let run = begin(folder.path(), ranks, "1");
        let rates = || run.values("step", "learning_rate");
        assert_eq!(rates().len(), 8);
        let ended = resume(folder.path(), ranks, "3", ranks).succeeded();
        ended.warns(["was that of 8 steps; from step 9 on it is that of 24, and begins at"]);
        assert_eq!(rates()[8..], at_once[8..]);
        // What is over is over, until more is wanted.
        let ended = resume(folder.path(), ranks, "3", ranks).succeeded();
        ended.warns(["nothing to train: 24 of 24 steps have been made; more --epochs continue it"]);
    }
}

#[test]
fn a_run_stopped_inside_an_epoch_records_no_step_twice_when_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let at_once = train(folder.path(), "at-once", "3");
    for ranks in ["1", "2"] {
        Everburn::train(folder.path(), "mlp")
            .words("--epochs 3 --steps 12 --log-every 1 --run-dir")
            .args([ranks])
            .succeed();
        let run = Run::new(folder.path().join(ranks));
        let steps = |kind: &str| run.values(kind, "step");
        assert_eq!(steps("step"), (1..=12).map(f64::from).collect::<Vec<_>>());

        Everburn::line(folder.path(), "train --resume --steps 24")
            .args(["--run-dir", ranks, "--ranks", ranks])
            .succeed();
        assert_eq!(steps("step"), (1..=24).map(f64::from).collect::<Vec<_>>());
        for kind in ["train", "validation"] {
            assert_eq!(steps(kind), [8.0, 16.0, 24.0], "{kind}");
        }
        assert_eq!(steps("test"), [24.0]);
        let report = run.report();
        assert_eq!(report["resumed_after_epoch"], 1, "{report:#}");
        assert_eq!(
            (&report["epochs"], &report["steps"]),
            (&3.into(), &24.into())
        );
        if ranks == "1" {
            assert_eq!(run.losses("step"), at_once.losses("step"));
        }
        for epoch in 1..=3 {
            let (of_steps, of_epoch) =
                (seconds(&run, "step", epoch), seconds(&run, "train", epoch));
            assert!(
                (of_steps / of_epoch - 1.0).abs() < 1e-9,
                "{of_steps} s, and {of_epoch} s"
            );
        }
    }
}

/// How long the lines of a kind say that an epoch took.
fn seconds(run: &Run, kind: &str, epoch: u64) -> f64 {
    let lines = run.metrics().into_iter();
    let lines = lines.filter(|line| line["kind"] == kind && line["epoch"] == epoch);
    lines
        .map(|line| line["seconds"].as_f64().expect("a line has seconds"))
        .sum()
}
