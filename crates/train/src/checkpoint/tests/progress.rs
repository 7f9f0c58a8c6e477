//! What a checkpoint says of the training's progress.

use super::*;

#[test]
fn numbers_of_the_progress_keep_their_bits() {
    let (_folder, checkpoints) = keeping(2);
    for seed in 0..2_000_u64 {
        // Any bits of a number of ordinary size.
        let mixed = crate::seeds::mix(seed) >> 12;
        let number = f64::from_bits(0x4000_0000_0000_0000 | mixed);
        let mut checkpoint = Checkpoint::default();
        checkpoint.progress.so_far.loss_sum = number;
        checkpoint.progress.best = Some(BestEpoch {
            epoch: 1,
            validation_loss: number,
            value: None,
        });
        let text = serde_json::to_string(&checkpoint.progress).unwrap();
        let read = serde_json::from_str::<Progress>(&text).unwrap();
        assert_eq!(read, checkpoint.progress, "{text}");
    }
    checkpoints.save(&checkpoint(1, 1)).unwrap();
    assert_eq!(
        checkpoints.load(1).unwrap().progress,
        checkpoint(1, 1).progress
    );
}

#[test]
fn numbers_that_are_not_finite_are_read_as_they_were_written() {
    for number in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        let best = BestEpoch {
            epoch: 1,
            validation_loss: 0.5,
            value: Some(number),
        };
        let progress = Progress {
            best: Some(best),
            so_far: MetricSums::default().with_metric("iou", number, 0.0),
            ..Progress::default()
        };
        let text = serde_json::to_string(&progress).unwrap();
        let read: Progress = serde_json::from_str(&text).unwrap();
        let value = read.best.and_then(|best| best.value).unwrap();
        assert_eq!(value.to_bits(), number.to_bits(), "{text}");
        let sum = read.so_far.metrics["iou"].sum;
        assert_eq!(sum.is_nan(), number.is_nan(), "{text}");
        assert!(sum.is_nan() || sum == number, "{text}");
    }
}

#[test]
fn sums_of_an_epoch_that_goes_on_are_read_as_they_were_written() {
    let written = |so_far: &MetricSums| {
        let progress = Progress {
            so_far: so_far.clone(),
            ..Progress::default()
        };
        let value = serde_json::to_value(&progress).unwrap();
        let read: Progress = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(read, progress, "{value}");
        value["so_far"].clone()
    };
    // As before there were metrics by name.
    let nothing = MetricSums::default();
    assert_eq!(written(&nothing)["correct"], 0);
    let sums = MetricSums {
        loss_sum: 0.1,
        predictions: 3,
        samples: 3,
        ..nothing
    };
    let classes = written(&sums.clone().with_metric("accuracy", 2.0, 3.0));
    assert_eq!(classes["correct"], 2);
    assert!(classes["metrics"].is_null(), "{classes}");
    let others = sums.with_metric("mae", 0.1 + 0.2, 3.0);
    let others = written(&others.with_metric("accuracy", 2.5, 4.0));
    assert!(others["correct"].is_null(), "{others}");
    assert_eq!(others["metrics"]["accuracy"]["weight"]["value"], 4.0);
}

#[test]
fn a_resume_on_fewer_samples_says_that_the_data_have_changed() {
    let config = TrainingConfig::default();
    let there = Progress::start("net", &config, 180);
    let fewer = Progress::start("net", &config, 170);
    let error = fewer.fits(&there).unwrap_err();
    let expected =
        "(training samples 180 there, 170 here); the training data have changed, or other samples";
    assert!(error.contains(expected), "{error}");
    assert!(!error.contains("the same configuration"), "{error}");
    let other = Progress { seed: 7, ..fewer };
    let error = other.fits(&there).unwrap_err();
    let expected = "resume with the same configuration and the same training data";
    assert!(error.contains(expected), "{error}");
    assert!(other.fits(&other).is_ok());
    let of_batches = Progress {
        batch_size: 7,
        ..Progress::start("net", &config, 180)
    };
    let error = of_batches.fits(&there).unwrap_err();
    let end = "resume with the same configuration, or begin a new run with `init_from = RUN`";
    assert!(error.ends_with(end), "{error}");
}

/// The fingerprint of data with these sets; the test set is a part of all where it has none.
fn data(train: &str, test: &str) -> DataFingerprint {
    DataFingerprint {
        all: format!("{train} {test}"),
        train: train.to_owned(),
        test: test.to_owned(),
    }
}

#[test]
fn a_test_set_of_its_own_is_new_to_a_run_that_learnt_from_other_files() {
    let progress = Progress {
        data: data("a", "t"),
        earlier_data: vec![DataFingerprint::default(), data("b", "t")],
        ..Progress::default()
    };
    assert!(!progress.has_learnt_from_others(&data("a", "t")));
    assert!(!progress.has_learnt_from_others(&data("c", "t")));
    let part_of_all = data("c", "");
    assert!(progress.has_learnt_from_others(&part_of_all));
    let another_test = data("a", "u");
    assert!(progress.has_learnt_from_others(&another_test));
    // The folder `t` was learnt from, and is one for tests now.
    let moved = Progress {
        data: data("t", "u"),
        ..Progress::default()
    };
    assert!(moved.has_learnt_from_others(&data("u", "t")));
}

#[test]
fn a_set_that_a_run_learnt_from_is_found_by_its_fingerprint() {
    let progress = Progress {
        data: data("a", "t"),
        earlier_data: vec![data("b", "t")],
        ..Progress::default()
    };
    for (train, test, expected) in [
        ("a", "a", true),
        ("b", "b", true),
        // The test set, and what is not known.
        ("t", "t", false),
        ("a", "t", false),
        ("c", "c", false),
        ("a", "", false),
    ] {
        let found = progress.has_learnt_from(&data(train, test));
        assert_eq!(found, expected, "{train} {test}");
    }
}
