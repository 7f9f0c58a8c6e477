//! Flags of outer steps, between which ranks learn by themselves.

use everburn_tests::Everburn;

use crate::{FEW, are_near, losses, train};

#[test]
fn the_outer_rate_and_momentum_decide_how_far_an_outer_step_goes() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, flags: &[&str]| {
        let always = ["--ranks", "2", "--local-steps", "3", "--epochs", "3"];
        let sgd = ["--optimizer", "sgd", "--learning-rate", "0.1"];
        let (run, _) = train(
            folder.path(),
            "mlp",
            name,
            &[&always[..], &sgd, flags].concat(),
        );
        losses(&run)
    };
    let average = train("average", &["--outer-optimizer", "average"]);
    let rate = ["--outer-learning-rate", "1"];
    let momentum = ["--outer-momentum", "0"];
    // The rule of nesterov, with which each outer step goes to the mean.
    let same = train("same", &[rate, momentum].concat());
    assert!(are_near(&same, &average), "{same:?} {average:?}");
    for (name, flags) in [("rate", rate), ("momentum", momentum)] {
        let found = train(name, &flags);
        assert_eq!(found[..3], average[..3], "{name}: before an outer step");
        assert!(found.len() == average.len() && found.len() > 3, "{found:?}");
        let later = found[3..].iter().zip(&average[3..]);
        assert!(
            later.into_iter().all(|(a, b)| (a - b).abs() > 1e-5 * b),
            "{name}: {found:?} {average:?}"
        );
    }
    let stays = ["--outer-learning-rate", "1e-9", "--batch-size", "96"];
    let stays = train("stays", &[&stays[..], &["--local-steps", "1"]].concat());
    assert!(are_near(&stays, &[stays[0]; 3]), "{stays:?}");
}

#[test]
fn a_slow_rank_joins_the_others_with_the_steps_that_it_has_made() {
    let folder = tempfile::tempdir().unwrap();
    let slow = ["--chaos", "slow=1@step:5:400ms", "--batch-size", "8"];
    let told = |name: &str, patience: &[&str]| {
        let ended = Everburn::new(folder.path(), ["train", "mlp", "--ranks", "2"])
            .words(FEW)
            .args(["--local-steps", "4", "--steps", "8", "--run-dir", name])
            .args(slow)
            .args(patience)
            .succeed();
        let joined = "rank 1 has joined an outer step with ";
        let told = ended.stderr.contains(joined);
        (told, ended)
    };
    let (late, ended) = told("waited-for", &[]);
    assert!(!late, "{ended}");
    let (late, ended) = told("late", &["--outer-patience", "1.5"]);
    assert!(late, "{ended}");
}
