//! Flags about a model that several ranks hold together.

use everburn_tests::Run;

use crate::recording::Recording;
use crate::{are_near, losses, train};

/// A step of `mnist` on the two ranks of a pipeline, recorded.
fn step(folder: &std::path::Path, name: &str, flags: &[&str]) -> (Run, [Recording; 2]) {
    let pipeline = ["--ranks", "2", "--pipeline", "2", "--steps", "1"];
    let flags = [&pipeline[..], &["--profile"], flags].concat();
    let (run, _) = train(folder, "mnist", name, &flags);
    let ranks = [0, 1].map(|rank| Recording::of(&run, rank));
    (run, ranks)
}

#[test]
fn each_schedule_has_an_order_of_its_own_in_which_passes_come_to_micro_batches() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, _) = train(folder.path(), "mnist", "alone", &["--steps", "1"]);
    for (schedule, first, second) in [
        ("gpipe", "FFFFBBBB", "FFFFBBBB"),
        ("1f1b", "FFBFBFBB", "FBFBFBFB"),
        // The gradients of the second rank's weights come one micro-batch later.
        ("zb-h1", "FFBFBFBB", "FFBFBFBB"),
    ] {
        let stages = ["--micro-batches", "4", "--stages", "fc1"];
        let flags = [&["--pipeline-schedule", schedule], &stages[..]].concat();
        let (run, ranks) = step(folder.path(), schedule, &flags);
        assert_eq!(ranks[0].passes("conv1"), first, "{schedule}");
        assert_eq!(ranks[1].passes("fc2"), second, "{schedule}");
        assert!(are_near(&losses(&run), &losses(&alone)), "{schedule}");
    }
}

#[test]
fn an_interleaved_schedule_gives_each_rank_as_many_stages_as_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, _) = train(folder.path(), "mnist", "alone", &["--steps", "1"]);
    let schedule = ["--pipeline-schedule", "interleaved", "--micro-batches", "2"];
    for (chunks, orders) in [
        (
            "2",
            ["conv1:FF fc1:FFBB conv1:BB", "conv2:FF fc2:FBFB conv2:BB"],
        ),
        (
            "1",
            [
                "conv1:F conv2:F conv1:F conv2:FB conv1:B conv2:B conv1:B",
                "fc1:F fc2:FB fc1:BF fc2:FB fc1:B",
            ],
        ),
    ] {
        let flags = [&schedule[..], &["--chunks", chunks, "--stages", "even"]].concat();
        let (run, ranks) = step(folder.path(), chunks, &flags);
        assert_eq!(ranks.len(), orders.len());
        for (rank, order) in ranks.iter().zip(orders) {
            assert_eq!(rank.order(), order, "{chunks} chunks");
        }
        assert!(are_near(&losses(&run), &losses(&alone)), "{chunks}");
    }
}

#[test]
fn stages_begin_at_the_blocks_that_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (begin, first) in [("conv2", "conv1"), ("fc1", "conv2"), ("fc2", "fc1")] {
        let (_, ranks) = step(folder.path(), begin, &["--stages", begin]);
        for (layer, owner) in [(first, 0), (begin, 1)] {
            assert_ne!(ranks[owner].passes(layer), "", "{layer} at {begin}");
            assert_eq!(ranks[1 - owner].passes(layer), "", "{layer} at {begin}");
        }
    }
}

#[test]
fn meshes_of_two_axes_learn_what_one_rank_does() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, _) = train(folder.path(), "mlp", "alone", &["--epochs", "1"]);
    for mesh in [
        "data=2,pipeline=2",
        "data=2,tensor=2",
        "pipeline=2,tensor=2",
    ] {
        let mut flags = vec!["--epochs", "1", "--ranks", "4", "--mesh", mesh];
        if mesh.contains("pipeline") {
            // A pair of layers that ranks share stays together.
            flags.extend(["--stages", "layers.2"]);
        }
        let (run, ended) = train(folder.path(), "mlp", mesh, &flags);
        assert_eq!(run.report()["world_size"], 4, "{ended}");
        assert!(are_near(&losses(&run), &losses(&alone)), "{mesh}: {ended}");
        let said = run.text("config.toml");
        let axes = mesh.split(',').filter(|axis| !said.contains(axis));
        assert_eq!(axes.count(), 0, "{said}");
    }
}
