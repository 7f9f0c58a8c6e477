//! Parameters without a gradient are named.

use everburn_distributed::ShardStage;

use super::*;

/// One layer is not connected with the loss, and one is not used.
#[derive(Module, Debug)]
struct Broken {
    first: Linear,
    unused: Linear,
    last: Linear,
}

impl Broken {
    fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.last.forward(self.first.forward(inputs).detach())
    }
}

#[test]
fn parameters_without_a_gradient_are_named_once_on_any_number_of_ranks() {
    let data = data(37);
    let ways: [fn(&mut TrainingConfig); 7] = [
        |_| {},
        |config| config.sync = "every=3".parse().unwrap(),
        |config| config.sync = "every=40".parse().unwrap(),
        |config| {
            config.sync = "every=4".parse().unwrap();
            config.outer.fragments = Some(2);
        },
        |config| config.ddp.shard = Some(ShardStage::Optimizer),
        |config| config.ddp.shard = Some(ShardStage::Gradients),
        |config| config.ddp.shard = Some(ShardStage::Parameters),
    ];
    // Of few steps, the end is early enough.
    let runs = [(1, 8), (2, 8), (2, 1)];
    let runs = runs
        .into_iter()
        .flat_map(|run| ways.iter().map(move |way| (run, way)));
    for (number, ((ranks, epochs), way)) in runs.enumerate() {
        let mut config = TrainingConfig { epochs, ..config() };
        way(&mut config);
        let folder = tempfile::tempdir().unwrap();
        let results = on_ranks(ranks, &config, Some(folder.path()), |trainer| {
            let layer = |outputs: usize| LinearConfig::new(3, outputs).init(&trainer.device);
            let model = Broken {
                first: layer(3),
                unused: layer(3),
                last: layer(1),
            };
            let model = Supervised::<_, Regression>::new(model, Broken::forward);
            trainer.fit(model, &data).map(drop)
        });
        for result in results {
            result.unwrap();
        }
        let events = std::fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
        let warnings = events
            .matches("had no gradient on any rank in the ")
            .count();
        assert_eq!(warnings, 1, "run {number}: {events}");
        events.assert_contains(["first.weight`", "unused.weight`", "unused.bias`"]);
        assert!(!events.contains("last.weight"), "{events}");
    }
}
