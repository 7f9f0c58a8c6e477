//! Local steps, averaged parameters and schedules, as a user runs them.

use everburn_tests::{Everburn, Run, assert_refused};

#[test]
fn ranks_that_take_steps_by_themselves_say_what_that_saves() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let ended = Everburn::train(folder.path(), "mlp")
            .args(["--ranks", "2", "--local-steps", "4", "--run-dir", name])
            .args(more)
            .succeed();
        let run = Run::new(folder.path().join(name));
        (ended, run.report()["outer"].clone())
    };
    let (ended, outer) = run("plain", &["--epochs", "2"]);
    // 500 samples in batches of 64: rounds of 4 and 4 steps.
    assert_eq!(outer["steps"], 4, "{ended}");
    ended.prints(["4 outer steps: ", "where gradients would be 919 KiB"]);
    let (ended, small) = run("small", &["--epochs", "2", "--compress-outer", "int8"]);
    let bytes = |outer: &serde_json::Value| outer["bytes"].as_u64().unwrap();
    assert!(
        2 * bytes(&small) < bytes(&outer),
        "{small} {outer}: {ended}"
    );
    let streamed = "--epochs 2 --compress-outer int2 --outer-fragments 2";
    let (ended, streamed) = run("streamed", &streamed.split(' ').collect::<Vec<_>>());
    // Two rounds of 2 steps in place of each of 4.
    assert_eq!(streamed["steps"], 8, "{ended}");
    assert!(
        2 * bytes(&streamed) < bytes(&small),
        "{streamed} {small}: {ended}"
    );
    let local = ["--outer-optimizer", "average", "--optimizer", "sgd"];
    let (ended, outer) = run("local-sgd", &local);
    assert_eq!(outer["steps"], 6, "{ended}");
}

#[test]
fn a_rank_that_is_killed_between_outer_steps_comes_back_at_one() {
    let folder = tempfile::tempdir().unwrap();
    let ended = Everburn::train(folder.path(), "mnist-bn")
        .args(["--ranks", "3", "--elastic", "2:3", "--local-steps", "5"])
        .args(["--batch-size", "24", "--epochs", "4", "--log-every", "1"])
        .words("--compress-outer int8 --ema 0.99 --run-dir run")
        .args(["--chaos", "kill=1@step:8,kill=0@step:33"])
        .succeed();
    ended.warns(["have made step"]);
    let run = Run::new(folder.path().join("run"));
    let steps = run.number("steps") as u64;
    assert_eq!(steps, 4 * 21, "{ended}");
    let recorded = run.values("step", "step");
    let all = (1..=steps).map(|step| step as f64).collect::<Vec<_>>();
    assert_eq!(recorded, all, "{ended}");
    assert!(run.path.join("ema.safetensors").is_file(), "{ended}");
}

#[test]
fn averaged_parameters_are_measured_and_exported_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let flags = ["--epochs", "2", "--ema", "0.9", "--ema-validate"];
    Everburn::train(here, "mlp")
        .args(flags)
        .args(["--run-dir", "a"])
        .succeed();
    let run = Run::new(here.join("a"));
    let eval = |flags: &[&str]| {
        let ended = Everburn::line(here, "eval a --json --data synthetic --train-samples 600")
            .words("--test-samples 200")
            .args(flags)
            .succeed();
        let result = ended.json();
        result["test_loss"].as_f64().unwrap()
    };
    let (plain, averaged) = (eval(&[]), eval(&["--ema"]));
    assert!((averaged - run.number("test_loss")).abs() < 1e-6);
    assert!((plain - averaged).abs() > 1e-6, "{plain} {averaged}");
    assert!((eval(&["--ema", "--ranks", "2"]) - averaged).abs() < 1e-6);
    assert!((eval(&["--ema", "--checkpoint", "2"]) - averaged).abs() < 1e-6);
    for (name, more) in [("plain", &[][..]), ("averaged", &["--ema"])] {
        let file = format!("{name}.safetensors");
        Everburn::new(
            here,
            ["export", "a", "--to", "safetensors", "--output", &file],
        )
        .args(more)
        .succeed();
    }
    let read = |name: &str| std::fs::read(here.join(name)).unwrap();
    assert_ne!(read("plain.safetensors"), read("averaged.safetensors"));
    // The best epoch's, of which the average decided.
    Everburn::line(here, "export a --to pytorch --checkpoint best --ema").succeed();
    Everburn::train(here, "mlp")
        .args(["--steps", "1", "--run-dir", "b"])
        .succeed();
    let messages = ["ema.safetensors", "or was one without --ema"];
    Everburn::new(here, ["eval", "b", "--ema", "--data", "synthetic"]).refused(&messages);
}

#[test]
fn a_schedule_with_a_warm_up_is_that_of_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--lr-schedule step --decay-every 3 --decay-factor 0.5".split(' ');
    Everburn::train(folder.path(), "mlp")
        .args(flags)
        .words("--warmup-steps 1 --learning-rate 0.008 --steps 8")
        .args(["--log-every", "1", "--run-dir", "a"])
        .succeed();
    let rates = Run::new(folder.path().join("a")).values("step", "learning_rate");
    let expected = [0.004, 0.008, 0.008, 0.008, 0.004, 0.004, 0.004, 0.002];
    assert_eq!(rates.len(), expected.len());
    let mut pairs = rates.iter().zip(expected);
    let near = pairs.all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(near, "{rates:?}");
}

#[test]
fn what_does_not_go_together_is_refused_before_anything_starts() {
    assert_refused(
        "mnist",
        "
        --sync often | --local-steps | as in 50
        --local-steps 50 --virtual-ranks 2 | --local-steps 50 and --virtual-ranks 2 do not go together
        --local-steps 50 --ranks 2 --pipeline 2 | --mesh | --local-steps 50 do not go together
        --local-steps 50 --communication-hook fp16 | --communication-hook | --compress-outer int8
        --local-steps 50 --sync-batch-norm | --sync-batch-norm
        --local-steps 50 --outer-optimizer average --outer-momentum 0.5 | --outer-optimizer nesterov
        --local-steps 50 --outer-patience 0.5 | --outer-patience
        --local-steps 50 --outer-fragments 51 | --outer-fragments 51 | at most 50
        --local-steps 50 --outer-fragments 5 --outer-patience 2 | --outer-patience | --outer-fragments | do not go together
        --compress-outer int8 | --compress-outer is for local steps | --local-steps 50
        --ema 1.5 | --ema 1.5 must be
        --ema 0.9 --ranks 2 --pipeline 2 | --mesh | --ema do not go together
        --lr-schedule step | --decay-every
        --lr-schedule linear --warmup-steps 9 --steps 5 | a warm-up of 9 steps does not end before the run
        ",
    );
}
