//! Training alone and on several ranks: what comes out, and what it leaves behind.

use everburn_tests::{Ended, Everburn, Run};

/// Trains two epochs of the perceptron by SGD on `ranks` ranks in `folder`/`ranks`.
fn train(folder: &std::path::Path, ranks: usize) -> (Run, Ended) {
    let (number, name) = (ranks.to_string(), format!("runs/{ranks}"));
    let flags = ["--epochs", "2", "--optimizer", "sgd", "--momentum", "0.9"];
    let ended = Everburn::train(folder, "mlp")
        .args(flags)
        // One sample more or less is then within the tolerance of 1e-3.
        .args(["--learning-rate", "0.2", "--test-samples", "1000"])
        .args(["--ranks", &number, "--run-dir", &name])
        .run();
    (Run::new(folder.join(name)), ended.succeeded())
}

#[test]
fn one_two_and_four_ranks_give_the_same_result_and_the_whole_record() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, ended) = train(folder.path(), 1);
    check_record(&alone, 1);
    check_lines(&ended);
    for ranks in [2, 4] {
        let (run, ended) = train(folder.path(), ranks);
        check_record(&run, ranks);
        check_lines(&ended);
        for rank in 0..ranks {
            run.text(format!("logs/rank-{rank}.log"));
        }
        assert!(run.text("logs/rank-0.log").contains("epoch 2/2"));
        ended.prints(["[rank 0] epoch 2/2"]);
        let (theirs, ours) = (alone.number("test_accuracy"), run.number("test_accuracy"));
        assert!((theirs - ours).abs() <= 1e-3 + 1e-12, "{theirs} {ours}");
        for kind in ["train", "validation"] {
            run.assert_near(&alone, kind, 1e-4);
        }
    }
    let accuracy = alone.number("test_accuracy");
    assert!(accuracy > 0.3, "two epochs teach more than chance");
}

#[test]
fn more_ranks_than_cores_are_announced_once() {
    let folder = tempfile::tempdir().unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    for (ranks, times) in [(1, 0), (cores + 1, 1)] {
        // Refused before a rank is started.
        let ended = Everburn::line(folder.path(), "train mnist --data-dir nowhere")
            .args(["--ranks", &ranks.to_string(), "--batch-size", "100000"])
            .refused(&["nowhere"]);
        let announced = format!(" on this machine share {cores} core");
        assert_eq!(ended.stderr.matches(&announced).count(), times, "{ended}");
    }
}

/// Away from a terminal the output is plain lines.
fn check_lines(ended: &Ended) {
    for text in [&ended.stdout, &ended.stderr] {
        let controls = |c: char| c.is_control() && c != '\n';
        assert!(!text.contains(controls), "{ended:?}");
    }
    assert!(ended.stdout.starts_with("data: "), "{ended}");
    ended.prints(["epoch 1/2  train  500/500  loss ", "test accuracy "]);
}

#[test]
fn ranks_that_are_threads_train_as_processes_do_and_evaluations_repeat_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let (processes, _) = train(folder.path(), 2);
    let ended = Everburn::new(folder.path(), ["train", "--run-dir", "runs/threads"])
        .words("--config runs/2/config.toml --strategy data-parallel")
        .succeed();
    assert!(!ended.stdout.contains("[rank"), "one process: {ended}");
    let threads = Run::new(folder.path().join("runs/threads"));
    check_record(&threads, 2);
    for kind in ["step", "train", "validation", "test"] {
        assert_eq!(processes.losses(kind), threads.losses(kind), "{kind}");
    }
    for ranks in ["1", "2"] {
        let arguments = ["eval", "runs/2", "--json", "--ranks", ranks];
        let ended = Everburn::new(folder.path(), arguments).succeed();
        let result = ended.json();
        assert_eq!(result["test_accuracy"], processes.report()["test_accuracy"]);
        assert_eq!(result["test_samples"], 1000);
        assert_eq!(result["world_size"].to_string(), ranks);
        let loss = result["test_loss"].as_f64().unwrap();
        assert!((loss - processes.number("test_loss")).abs() <= 1e-6 * loss);
    }
    let ended = Everburn::new(folder.path(), ["eval", "runs/2"]).succeed();
    ended.prints([&format!(
        "{:.2} %",
        100.0 * processes.number("test_accuracy")
    )]);
}

fn check_record(run: &Run, ranks: usize) {
    let report = run.report();
    assert_eq!(report["dataset"], "synthetic-digits", "{report:#}");
    assert_eq!(report["world_size"], ranks, "{report:#}");
    assert_eq!(report["epochs"], 2, "{report:#}");
    assert_eq!(report["steps"], 16, "500 samples in batches of 64, twice");
    assert_eq!(report["test_samples"], 1000, "{report:#}");
    assert!((0.0..=1.0).contains(&run.number("test_accuracy")));
    assert!(run.number("test_loss") > 0.0);
    assert!(run.number("samples_per_second") > 0.0);
    assert!(run.number("seconds") > 0.0);
    assert_eq!(report["versions"]["burn"], "0.22.1");
    assert!(report["versions"]["everburn"].is_string());
    assert!(run.text("config.toml").contains("learning_rate = 0.2"));
    let (train, validation) = (run.losses("train"), run.losses("validation"));
    assert_eq!((train.len(), validation.len()), (2, 2));
    assert_eq!(run.losses("test"), [(2, run.number("test_loss"))]);
    let weights = std::fs::read(run.path.join("model.safetensors")).unwrap();
    assert!(weights.len() > 4 * 235_146, "every parameter is in it");
    assert!(run.checkpoint(2).join("manifest.json").is_file());
}

#[test]
fn a_saved_configuration_repeats_a_run_to_the_bit_and_another_in_its_folder_moves_it_aside() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = train(folder.path(), 1);
    let arguments = ["--config", "runs/1/config.toml", "--run-dir", "runs/again"];
    Everburn::new(folder.path(), ["train"])
        .args(arguments)
        .succeed();
    let again = Run::new(folder.path().join("runs/again"));
    for kind in ["step", "train", "validation", "test"] {
        assert!(!first.losses(kind).is_empty(), "{kind}");
        assert_eq!(first.losses(kind), again.losses(kind), "{kind}");
    }
    assert_eq!(first.text("config.toml"), again.text("config.toml"));

    let report = first.report();
    let (_, ended) = train(folder.path(), 1);
    ended.prints(["now in runs/1~1"]);
    let aside = Run::new(folder.path().join("runs/1~1"));
    assert_eq!(aside.report(), report);
}

#[test]
fn a_limit_of_as_many_steps_as_an_epoch_has_begins_no_second_epoch() {
    for ranks in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--steps", "8", "--epochs", "3", "--log-every", "1"];
        let ended = Everburn::train(folder.path(), "mlp")
            .args(flags)
            .args(["--ranks", ranks, "--run-dir", "run"])
            .succeed();
        assert!(!ended.stdout.contains("epoch 2/"), "{ended}");
        let run = Run::new(folder.path().join("run"));
        let report = run.report();
        assert_eq!(report["steps"], 8, "{report:#}");
        assert_eq!(report["epochs"], 1, "{report:#}");
        assert!(report["test_accuracy"].is_number(), "{report:#}");
        for (kind, lines) in [("step", 8), ("train", 1), ("validation", 1), ("test", 1)] {
            assert_eq!(run.losses(kind).len(), lines, "{kind}");
        }
        let later = |line: &serde_json::Value| line["epoch"] != 1;
        assert!(!run.metrics().iter().any(later), "{:?}", run.metrics());
        assert!(!run.checkpoint(2).exists());
    }
}

#[test]
fn a_checkpoint_can_be_evaluated_instead_of_the_trained_model() {
    let folder = tempfile::tempdir().unwrap();
    let (run, _) = train(folder.path(), 1);
    let evaluate = |checkpoint: &str| {
        let arguments = ["eval", "runs/1", "--checkpoint", checkpoint];
        Everburn::new(folder.path(), arguments)
    };
    let accuracy = |checkpoint: &str| {
        let ended = evaluate(checkpoint).args(["--json"]).succeed();
        let result = ended.json();
        assert_eq!(result["test_samples"], 1000, "{ended}");
        result["test_accuracy"].as_f64().unwrap()
    };
    let [of_first, of_last, of_best] = ["1", "2", "best"].map(accuracy);
    // The last checkpoint is the trained model, and the one before it is not.
    assert_eq!(of_last, run.number("test_accuracy"));
    assert_ne!(of_first, of_last);
    let best = run.report()["best_epoch"]["epoch"].to_string();
    assert_eq!(of_best, if best == "1" { of_first } else { of_last });
    let ended = evaluate("best").args(["--json", "--ranks", "2"]).run();
    let tested = &ended.json()["checkpoint"];
    assert_eq!(tested["epoch"].to_string(), best, "{ended}");
    assert_eq!(tested["best_by"], "loss", "{ended}");
    assert_eq!(tested["name"], format!("epoch-000{best}"), "{ended}");

    for (checkpoint, accuracy) in [("best", of_best), ("1", of_first)] {
        let ended = evaluate(checkpoint).succeed();
        let percent = format!("test accuracy {:.2} %", 100.0 * accuracy);
        assert!(ended.stdout.contains(&percent), "{percent}: {ended}");
        let by = ended
            .stdout
            .contains(", the best by loss of the validation");
        assert_eq!(by, checkpoint == "best", "{ended}");
        ended.prints(["checkpoint epoch-000"]);
    }
    for ranks in ["1", "2"] {
        evaluate("9")
            .args(["--ranks", ranks])
            .refused(&["checkpoints/epoch-0009 cannot be used"]);
    }
    evaluate("last").refused(&["--checkpoint last", "best"]);
}

#[test]
fn a_run_that_nobody_reads_goes_on_to_its_end() {
    for ranks in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--epochs", "2", "--ranks", ranks, "--run-dir", "run"];
        let training = Everburn::train(folder.path(), "mlp").args(flags);
        training.read_by_nobody().succeed();
        let run = Run::new(folder.path().join("run"));
        let report = run.report();
        assert_eq!(report["epochs"], 2, "{report:#}");
        assert!(report["test_accuracy"].is_number(), "{report:#}");
        assert!(run.path.join("model.safetensors").is_file());
    }
    // The code of a refusal does not change.
    let folder = tempfile::tempdir().unwrap();
    let refused = Everburn::new(folder.path(), ["train", "mnits"]).read_by_nobody();
    assert_eq!(refused.run().code(), 2);
}

#[test]
fn early_stopping_ends_a_run_before_its_last_epoch() {
    let folder = tempfile::tempdir().unwrap();
    // So high that the loss jumps about: it cannot fall a hundred times in a row.
    let ended = Everburn::train(folder.path(), "mlp")
        .words("--early-stopping 1 --epochs 100 --learning-rate 0.1 --seed 1")
        .args(["--ranks", "2", "--run-dir", "run"])
        .succeed();
    ended.prints(["stopped early"]);
    let report = Run::new(folder.path().join("run")).report();
    let stopped = report["stopped"].as_str().unwrap_or_default();
    assert!(stopped.starts_with("early"), "{report:#}");
    assert!(report["test_accuracy"].is_number(), "{report:#}");
    let best = report["best_epoch"]["epoch"].as_u64().unwrap();
    assert!(best < 99 && report["epochs"] == best + 1, "{report:#}");
}

#[test]
fn the_best_epoch_is_chosen_by_the_metric_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    Everburn::train(folder.path(), "mlp")
        .words("--best-by accuracy --epochs 4 --ranks 2 --run-dir run")
        .succeed();
    let run = Run::new(folder.path().join("run"));
    let accuracies = run.values("validation", "accuracy");
    let highest = accuracies.iter().copied().fold(0.0, f64::max);
    let first = 1 + accuracies
        .iter()
        .position(|value| *value == highest)
        .unwrap();
    let report = run.report();
    assert_eq!(report["best_by"], "accuracy", "{report:#}");
    assert_eq!(report["best_epoch"]["value"], highest, "{report:#}");
    assert_eq!(report["best_epoch"]["epoch"], first, "{report:#}");
    assert!(run.checkpoint(first).is_dir());

    // Of a metric that nobody reports, those are named that there are.
    let ended = Everburn::train(folder.path(), "mlp")
        .args(["--best-by", "max:iou", "--ranks", "2", "--run-dir", "other"])
        .run();
    let message = "`iou`, which is not reported; there are: loss, accuracy";
    ended.failed_with(2, &[message]);
}
