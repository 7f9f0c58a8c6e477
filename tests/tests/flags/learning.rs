//! Flags about the learning rate, gradients and averages.

use crate::recording::Recording;
use crate::{are_near, losses, train};

/// A model that hardly moves has the loss of its first weights in each step, if each reads all samples.
#[test]
fn gradients_are_scaled_down_to_the_largest_norm() {
    let folder = tempfile::tempdir().unwrap();
    let all = ["--batch-size", "96", "--epochs", "3", "--optimizer", "sgd"];
    let train = |name: &str, norm: &[&str]| {
        let rate = ["--learning-rate", "0.5"];
        train(
            folder.path(),
            "mlp",
            name,
            &[&all[..], &rate, norm].concat(),
        )
    };
    let (free, _) = train("free", &[]);
    assert!(free.metrics()[0]["gradient_norm"].is_null());
    let (held, _) = train("held", &["--max-gradient-norm", "1e-6"]);
    let norms = held.values("step", "gradient_norm");
    assert!(norms.iter().all(|norm| *norm > 1e-3), "{norms:?}");
    let (free, held) = (losses(&free), losses(&held));
    assert!(are_near(&held, &[held[0]; 3]), "{held:?}");
    assert!(free[2] < held[2] - 0.01, "{free:?} {held:?}");
}

#[test]
fn each_number_of_the_optimizer_counts_from_its_step_on() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, more: &[&str]| {
        let flags = ["--epochs", "1", "--optimizer", "sgd"];
        let (run, _) = train(folder.path(), "mlp", name, &[&flags[..], more].concat());
        losses(&run)
    };
    let usual = train("usual", &[]);
    for (flag, value, same_steps) in [
        ("--seed", "7", 0),
        ("--learning-rate", "0.1", 1),
        ("--weight-decay", "0.9", 1),
        // The first update has none before it.
        ("--momentum", "0.9", 2),
    ] {
        let found = train(flag.trim_start_matches('-'), &[flag, value]);
        let same = found.iter().zip(&usual).take_while(|(a, b)| a == b);
        assert_eq!(same.count(), same_steps, "{flag}: {found:?} {usual:?}");
    }
}

#[test]
fn a_schedule_of_the_learning_rate_ends_where_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let rates = |name: &str, flags: &[&str]| {
        let always = ["--steps", "5", "--epochs", "2", "--learning-rate", "0.008"];
        let (run, ended) = train(
            folder.path(),
            "mlp",
            name,
            &[&always[..], &["--lr-schedule", name], flags].concat(),
        );
        let rates = run.values("step", "learning_rate");
        assert_eq!(rates.len(), 5, "{ended}");
        assert!((rates[0] - 0.008).abs() < 1e-9, "{rates:?}");
        rates
    };
    let constant = rates("constant", &[]);
    assert!(constant.iter().all(|rate| *rate == constant[0]));
    for name in ["linear", "cosine"] {
        let rates = rates(name, &["--final-learning-rate", "0.004"]);
        assert!(rates.is_sorted_by(|a, b| a > b), "{name}: {rates:?}");
        // Half of the way down is where the middle step is; to the end it is one step more at the most.
        assert!((0.004..0.0052).contains(&rates[4]), "{name}: {rates:?}");
        assert!((0.0055..0.0072).contains(&rates[2]), "{name}: {rates:?}");
    }
}

#[test]
fn an_average_that_ranks_share_is_the_same_average() {
    let folder = tempfile::tempdir().unwrap();
    let average = |name: &str, more: &[&str]| {
        let flags = ["--ranks", "2", "--epochs", "1", "--ema", "0.9"];
        let flags = [&flags[..], more].concat();
        let run = everburn_tests::Everburn::new(folder.path(), ["train", "mlp"])
            .words(crate::FEW)
            .args(["--run-dir", name])
            .args(flags)
            .env("EVERBURN_LOG", "warn,everburn=debug")
            .succeed();
        let path = folder.path().join(name);
        let kept = [0, 1].map(|rank| {
            let log = std::fs::read_to_string(path.join(format!("logs/rank-{rank}.log"))).unwrap();
            let said = format!("rank {rank} keeps the average of ");
            let told = log.split_once(&said).unwrap_or_else(|| panic!("{run}")).1;
            told.split_once(' ').unwrap().0.parse::<usize>().unwrap()
        });
        (kept, std::fs::read(path.join("ema.safetensors")).unwrap())
    };
    let (kept, whole) = average("whole", &[]);
    assert_eq!(kept, [6, 0], "three weights and three biases");
    let ([first, second], shared) = average("shared", &["--ema-sharded"]);
    assert!(first > 0 && second > 0, "{first} {second}");
    assert_eq!(first + second, 6);
    assert!(whole == shared, "the averages differ");
}

#[test]
fn activations_that_are_computed_again_take_operations_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, more: &[&str]| {
        let flags = ["--epochs", "1", "--profile"];
        let (run, _) = train(folder.path(), "mlp", name, &[&flags[..], more].concat());
        (losses(&run), Recording::of(&run, 0).operations())
    };
    let (plain, once) = train("plain", &[]);
    let (again, more) = train("again", &["--activation-checkpointing", "blocks"]);
    assert_eq!(plain, again);
    assert!(more > once + once / 5, "{once} {more}");
}

#[test]
fn any_key_of_the_configuration_is_set_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "2", "--set", "training.epochs=1"];
    let (run, ended) = train(folder.path(), "mlp", "set", &flags);
    assert_eq!(run.report()["epochs"], 1, "{ended}");
}
