//! Ranks whose parameters are no longer those of the others, and which are given these.

use burn::module::{Module, ModuleMapper, Param};
use burn::prelude::*;
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_train::{Classifier, OnDivergence, TrainError, TrainingConfig};

use crate::harness::data::digits;
use crate::harness::parameters::drawn;
use crate::harness::ranks::on_ranks;

/// Makes parameters that are zeros whatever is restored into them.
struct RestoresZeros;

impl ModuleMapper for RestoresZeros {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.load_mapper(|given| given.zeros_like())
    }
}

#[test]
fn a_rank_that_restores_other_parameters_than_it_is_given_is_lost() {
    let config = TrainingConfig {
        epochs: 1,
        batch_size: 12,
        compare_every: 1,
        chaos: "corrupt=1@step:2".parse().unwrap(),
        on_divergence: OnDivergence::Repair,
        ..TrainingConfig::default()
    };
    let data = digits(3, 60, 20);
    let outcomes = on_ranks(3, &config, None, |trainer| {
        let model = drawn(MlpConfig::new().init(&Device::flex()));
        let model = match trainer.group.rank() {
            1 => model.map(&mut RestoresZeros),
            _ => model,
        };
        let model = Classifier::<Mlp, 4>::of_blocks(model);
        trainer.fit(model, &data).map(drop)
    });
    let error = outcomes[1].as_ref().unwrap_err();
    let is_expected = matches!(
        error,
        TrainError::RestoredOthers {
            taker: 1,
            giver: 0,
            step: 2,
        }
    );
    assert!(is_expected, "{error}");
    assert!(outcomes[0].is_err() && outcomes[2].is_err());
}
