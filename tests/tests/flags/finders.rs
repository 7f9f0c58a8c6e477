//! Flags that find a value in place of a training.

use everburn_tests::{Ended, Everburn, Run, assert_refused};
use serde_json::Value;

use crate::FEW;

/// Finds on `ranks` ranks, and reads what was written into `file`.
fn find(folder: &std::path::Path, flag: &str, ranks: &str, file: &str) -> (Ended, Run, Value) {
    let name = format!("on-{ranks}");
    let ended = Everburn::new(folder, ["train", "mlp", flag])
        .words(FEW.replace("--batch-size 32", ""))
        .args(["--run-dir", &name, "--ranks", ranks])
        .succeed();
    let run = Run::new(folder.join(name));
    // Nothing was trained.
    for trained in ["model.safetensors", "metrics.jsonl", "report.json"] {
        assert!(!run.path.join(trained).exists(), "{trained}: {ended}");
    }
    assert!(!run.path.join("checkpoints").exists(), "{ended}");
    let found = run.json(file);
    (ended, run, found)
}

#[test]
fn a_learning_rate_is_found_by_all_ranks_together_and_nothing_is_trained() {
    let folder = tempfile::tempdir().unwrap();
    let sweeps = ["1", "2"].map(|ranks| {
        let flag = "--find-learning-rate";
        let (ended, run, found) = find(folder.path(), flag, ranks, "learning-rate.json");
        let suggestion = found["suggestion"].as_f64().unwrap();
        assert!(suggestion > 1e-7 && suggestion <= 1.0, "{ended}");
        let line = format!("suggested learning rate: {suggestion:.2e} ");
        assert!(ended.stdout.contains(&line), "{line} is not in {ended}");
        ended.prints(["learning rate  "]);
        let warned = "a sweep of 100 steps has only ";
        assert!(ranks != "1" || ended.stderr.contains(warned), "{ended}");
        let plot = run.text("learning-rate.svg");
        assert!(
            plot.starts_with("<svg ") && plot.contains("suggested: "),
            "{plot}"
        );
        found["sweep"]["points"].as_array().unwrap().clone()
    });
    let [one, two] = &sweeps;
    assert!(one.len() > 50, "{}", one.len());
    assert_eq!(one[0]["learning_rate"], 1e-7);
    let number = |point: &Value, name: &str| point[name].as_f64().unwrap();
    for (a, b) in one.iter().zip(two).take(30) {
        assert_eq!(a["learning_rate"], b["learning_rate"]);
        let (a, b) = (number(a, "loss"), number(b, "loss"));
        assert!((a - b).abs() < 1e-4 * a, "{a} {b}");
    }
    let factor = number(&one[1], "learning_rate") / number(&one[0], "learning_rate");
    assert!((factor - 1e7_f64.powf(1.0 / 99.0)).abs() < 1e-9, "{factor}");
}

#[test]
fn where_the_loss_never_falls_no_learning_rate_is_suggested() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in ["1", "2"] {
        // Each batch has all samples, and no step changes a weight.
        let ended = Everburn::new(folder.path(), ["train", "mlp", "--find-learning-rate"])
            .words("--data synthetic --train-samples 106")
            .words("--validation-samples 10 --test-samples 10 --batch-size 96 --optimizer sgd")
            .words("--max-gradient-norm 1e-20")
            .args(["--run-dir", ranks, "--ranks", ranks])
            .run();
        let told =
            "no learning rate can be suggested: the smoothed loss never falls before it rises";
        ended.failed_with(1, &[told]);
        let found = Run::new(folder.path().join(ranks)).json("learning-rate.json");
        assert!(found["suggestion"].is_null(), "{found}");
        assert_eq!(found["sweep"]["points"].as_array().unwrap().len(), 100);
    }
}

#[test]
fn a_batch_size_is_found_by_all_ranks_together_and_nothing_is_trained() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in ["1", "2"] {
        let (ended, _, found) = find(folder.path(), "--find-batch-size", ranks, "batch-size.json");
        // A small model: no memory is too small for all 96 samples.
        assert_eq!(found["search"]["largest"], 96, "{ended}");
        assert_eq!(found["search"]["limit"], "samples");
        assert_eq!(found["search"]["confirmed"], true);
        ended.prints(["largest batch size: 96, limited by the number of training samples"]);
        let tried = found["search"]["tried"].as_array().unwrap();
        assert_eq!(tried[0]["batch_size"].to_string(), ranks);
        assert!(
            tried
                .iter()
                .all(|size| size["peak_memory"].as_u64() > Some(1 << 20))
        );
        let suggestion = &found["suggestion"];
        assert!(
            tried.iter().any(|size| size["batch_size"] == *suggestion),
            "{found}"
        );
        ended.prints([&format!("suggested batch size: {suggestion} ")]);
    }
}

#[test]
fn a_finder_is_refused_with_what_it_cannot_measure() {
    assert_refused(
        "mlp",
        "
        --find-batch-size --find-learning-rate | cannot be used with
        --find-batch-size --batch-size 8 | cannot be used with
        --find-learning-rate --run-dir a --resume | cannot be used with
        --find-learning-rate --ranks 2 --elastic 1:2 | cannot be used with
        --find-learning-rate --warmup | cannot be used with
        --find-batch-size --plan | cannot be used with
        --find-batch-size --ranks 2 --pipeline 2 | the whole model
        --find-learning-rate --ranks 2 --local-steps 5 | --local-steps
        --find-batch-size --ranks 2 --balance 3,1 | by hand
        --find-batch-size --ranks 2 --balance auto | a finder measures equal shares
        --find-learning-rate --chaos stall=0@step:1 | faults would be measured
        ",
    );
}
