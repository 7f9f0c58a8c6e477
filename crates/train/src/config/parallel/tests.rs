//! Tests of what a configuration becomes, and of what is refused.

use everburn_tests::AssertContains;

use super::*;

const NAMES: [&str; 4] = ["conv1", "conv2", "fc1", "fc2"];

fn config(mesh: &str) -> ParallelConfig {
    ParallelConfig {
        mesh: Some(mesh.parse().unwrap()),
        ..ParallelConfig::default()
    }
}

#[test]
fn without_a_mesh_each_rank_has_a_whole_model() {
    let resolved = ParallelConfig::default().resolve(3, 64).unwrap();
    assert_eq!(resolved.mesh, Mesh::of_replicas(3));
    assert_eq!((resolved.micro_batches, resolved.num_stages()), (1, 1));
}

#[test]
fn what_is_left_open_divides_the_share() {
    for (mesh, batch_size, expected) in [
        ("pipeline=2", 64, 8),
        ("pipeline=3", 64, 8), // not 12
        ("data=2,pipeline=2", 32, 8),
        ("pipeline=4", 10, 10),
        ("pipeline=2", 7, 7),
        ("pipeline=2", 11, 1), // a prime above 8
    ] {
        let config = config(mesh);
        let ranks = config.mesh.unwrap().world_size();
        let resolved = config.resolve(ranks, batch_size).unwrap();
        assert_eq!(resolved.micro_batches, expected, "{mesh} {batch_size}");
    }
    let interleaved = ParallelConfig {
        schedule: Some(ScheduleKind::Interleaved1F1B),
        ..config("pipeline=2")
    };
    assert_eq!(interleaved.resolve(2, 64).unwrap().num_stages(), 4);
}

#[test]
fn numbers_that_do_not_go_together_are_refused() {
    let refused = |config: &ParallelConfig, ranks, batch_size| {
        let error = config.resolve(ranks, batch_size).unwrap_err();
        (error.to_string(), error)
    };
    let (text, _) = refused(&config("data=2,pipeline=2"), 6, 64);
    text.assert_contains(["4 places", "6 ranks"]);
    let (text, _) = refused(&config("data=3,pipeline=2"), 6, 64);
    text.assert_contains(["64 samples", "3 replicas"]);

    let five = ParallelConfig {
        micro_batches: Some(5),
        ..config("data=2,pipeline=2")
    };
    let (text, error) = refused(&five, 4, 32);
    assert_eq!(
        text,
        "5 micro-batches do not divide a replica's local batch of 16 samples"
    );
    let ParallelError::MicroBatches { nearest, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(nearest, Some(4));
    let none = ParallelConfig {
        micro_batches: Some(0),
        ..config("pipeline=2")
    };
    let (text, _) = refused(&none, 2, 32);
    assert!(text.starts_with("0 micro-batches"), "{text}");

    let chunks = ParallelConfig {
        chunks: Some(2),
        schedule: Some(ScheduleKind::GPipe),
        ..config("pipeline=2")
    };
    let (text, _) = refused(&chunks, 2, 32);
    assert_eq!(
        text,
        "`parallel.chunks = 2` goes with `parallel.schedule = interleaved` only, not with gpipe"
    );
    let no_chunks = ParallelConfig {
        chunks: Some(0),
        schedule: Some(ScheduleKind::Interleaved1F1B),
        ..config("pipeline=2")
    };
    let (text, _) = refused(&no_chunks, 2, 32);
    assert!(text.contains("at least one chunk"), "{text}");
}

#[test]
fn stages_begin_where_they_are_told_to() {
    let stages = |text: &str, ranks: usize| Parallelism {
        stages: text.parse().unwrap(),
        ..config(&format!("pipeline={ranks}"))
            .resolve(ranks, 64)
            .unwrap()
    };
    let costs = [1.0, 5.0, 1.0, 1.0];
    let cut = |text: &str, ranks| stages(text, ranks).cuts(&NAMES, &costs);
    assert_eq!(cut("fc1", 2).unwrap(), [0..2, 2..4]);
    assert_eq!(cut("conv2,fc2", 3).unwrap(), [0..1, 1..3, 3..4]);
    assert_eq!(cut("auto", 3).unwrap(), [0..1, 1..2, 2..4]);

    let refused = |text: &str, ranks| cut(text, ranks).unwrap_err().to_string();
    assert!(refused("fc9", 2).contains("`fc9` of `parallel.stages` is no block"));
    assert!(refused("conv1", 2).contains("begins the first stage anyway"));
    assert!(refused("fc1,conv2", 3).contains("`conv2` of `parallel.stages` does not come after"));
    assert!(refused("fc1,fc1", 3).contains("does not come after"));
    let text = refused("fc1", 3);
    text.assert_contains(["names 1", "3 stages need 2"]);
    let text = refused("auto", 5);
    text.assert_contains(["4 blocks cannot be cut into 5 stages"]);
}

#[test]
fn a_configuration_is_read_as_it_is_written() {
    let whole = ParallelConfig {
        micro_batches: Some(8),
        schedule: Some(ScheduleKind::ZeroBubbleH1),
        chunks: Some(1),
        stages: "conv2".parse().unwrap(),
        ..config("data=2,pipeline=2")
    };
    for config in [whole, ParallelConfig::default()] {
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<ParallelConfig>(&text).unwrap(), config);
    }
}
