//! Checkpoints do not depend on how a run is sharded.

use super::training::try_train;
use super::*;

#[test]
fn a_run_goes_on_at_any_stage_on_any_number_of_ranks() {
    let (model, data) = (net(), images(220));
    let config = changed(adam_w(20), |config| {
        config.checkpoint_every = "5steps".parse().unwrap();
    });
    let at_once = train::<_, Classification<4>, _>(&model, &data, &config, 1);
    let none = (None, 1);
    let stage = |stage, ranks| (Some(stage), ranks);
    let ways = [
        [
            none,
            stage(ShardStage::Optimizer, 2),
            stage(ShardStage::Parameters, 4),
        ],
        [
            stage(ShardStage::Optimizer, 4),
            stage(ShardStage::Gradients, 3),
            none,
        ],
        [
            stage(ShardStage::Parameters, 3),
            (None, 2),
            stage(ShardStage::Gradients, 1),
        ],
    ];
    for way in ways {
        let folder = tempfile::tempdir().unwrap();
        let mut trained = None;
        for (number, (stage, ranks)) in way.into_iter().enumerate() {
            let config = changed(with(&config, stage), |config| {
                config.steps = Some([7, 13, 20][number]);
            });
            let folder = folder.path();
            let resume = number > 0;
            let result =
                try_train::<_, Classification<4>, _>(&model, &data, &config, ranks, folder, resume);
            trained = Some(result.unwrap());
        }
        assert_within(1e-3, &trained.unwrap(), &at_once, &format!("{way:?}"));
    }
}

#[test]
fn a_checkpoint_is_the_same_file_for_file() {
    let (model, data) = (net(), images(100));
    let files = |shard: Option<ShardStage>, ranks: usize| {
        let folder = tempfile::tempdir().unwrap();
        let config = with(&adam_w(5), shard);
        let trained = try_train::<_, Classification<4>, _>(
            &model,
            &data,
            &config,
            ranks,
            folder.path(),
            false,
        );
        trained.unwrap();
        let checkpoints = std::fs::read_dir(folder.path().join("checkpoints")).unwrap();
        let checkpoint = checkpoints
            .map(|entry| entry.unwrap().path())
            .max()
            .unwrap();
        [
            "model.safetensors",
            "optimizer.safetensors",
            "scheduler.bpk",
        ]
        .map(|name| std::fs::read(checkpoint.join(name)).unwrap())
    };
    // On one rank no sum is made in another order.
    let plain = files(None, 1);
    for stage in STAGES {
        assert!(files(Some(stage), 1) == plain, "{stage}");
    }
    // Two ranks' sums have one order only.
    let plain = files(None, 2);
    for stage in STAGES {
        assert!(files(Some(stage), 2) == plain, "{stage}");
    }
}
