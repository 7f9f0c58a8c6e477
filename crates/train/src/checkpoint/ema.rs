//! A moving average of a model's parameters, which often is the better model.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::prelude::*;
use burn::tensor::{DType, TensorData};
use clap::Args;
use everburn_collectives::group::ProcessGroup;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// A moving average of the trained parameters (Polyak and Juditsky 1992), besides the parameters
/// themselves: after step `t`, `average := d average + (1 - d) parameters`, where `d` is the decay, or
/// `(1 + t) / (10 + t)` while that is less (as TensorFlow's `ExponentialMovingAverage` has it), so that the
/// first parameters do not count for long.
///
/// Running statistics are not averaged: those of the model go with the averaged parameters.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::EmaConfig;
///
/// let config: EmaConfig = toml::from_str("decay = 0.999").unwrap();
/// assert!(!config.sharded && !config.validate);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Training")]
#[serde(deny_unknown_fields)]
#[doc(alias = "AveragedModel")]
pub struct EmaConfig {
    /// Keep an exponential moving average of the parameters with this decay per step, such as 0.999
    /// [default: none].
    #[arg(long = "ema", value_name = "DECAY", allow_negative_numbers = true)]
    pub decay: f64,
    /// With --ema: shard the average over the ranks; otherwise, rank 0 keeps all of it.
    #[arg(long = "ema-sharded")]
    #[serde(default)]
    pub sharded: bool,
    /// With --ema: validate and test the averaged model; it decides which epoch is the best, and when to
    /// stop early.
    #[arg(long = "ema-validate")]
    #[serde(default)]
    pub validate: bool,
}

impl EmaConfig {
    pub(crate) fn validate(&self) -> Result<(), TrainError> {
        match (0.0..1.0).contains(&self.decay) {
            true => Ok(()),
            false => Err(TrainError::Config(format!(
                "`training.ema.decay = {}` must be at least 0 and below 1, as in 0.999",
                self.decay
            ))),
        }
    }
}

/// Which ranks keep the average of which parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keepers {
    /// Rank 0 that of all.
    First,
    /// Each rank about as many numbers.
    Shared,
    /// Each rank that of all: any of them may be lost.
    Every,
}

/// This rank's part of the average.
#[derive(Clone)]
pub(crate) struct MovingAverage {
    decay: f64,
    keepers: Keepers,
    /// By path, of the parameters that this rank keeps: flat, in `f32`, on the parameter's device.
    own: BTreeMap<String, Tensor<1>>,
}

impl MovingAverage {
    pub(crate) fn of<M: Module>(
        model: &M,
        decay: f64,
        keepers: Keepers,
        group: &ProcessGroup,
    ) -> Self {
        let trained = trained(model);
        let owners = owners(&trained, keepers, group.world_size());
        let own = trained.into_iter().zip(owners);
        let own = own.filter(|(_, owner)| owner.is_none_or(|owner| owner == group.rank()));
        let own: BTreeMap<_, _> = own.map(|(it, _)| (it.path, it.values)).collect();
        tracing::debug!(
            "rank {} keeps the average of {} parameters",
            group.rank(),
            own.len()
        );
        Self {
            decay,
            keepers,
            own,
        }
    }

    /// Takes in the parameters after `steps`, at whose end all ranks have the same.
    pub(crate) fn follow<M: Module>(&mut self, model: &M, steps: RangeInclusive<usize>) {
        if self.own.is_empty() {
            return;
        }
        let kept = |step: usize| self.decay.min((1 + step) as f64 / (10 + step) as f64);
        let taken = 1.0 - steps.map(kept).product::<f64>();
        for Trained { path, values, .. } in trained(model) {
            if let Some(average) = self.own.get_mut(&path) {
                let old = average.clone();
                *average = old.clone() + (values - old).mul_scalar(taken);
            }
        }
    }

    /// `model`, without gradients, with the averaged parameters, where this rank has all of them.
    pub(crate) fn here<M: Module>(&self, model: &M) -> Option<M> {
        let all = trained(model).len() == self.own.len();
        all.then(|| with_values(model.valid(), &self.own))
    }

    /// Whether no rank has all of it.
    pub(crate) fn is_shared(&self) -> bool {
        self.keepers == Keepers::Shared
    }

    /// The same on every rank, all of which call it.
    pub(crate) fn everywhere<M: Module>(
        &self,
        model: &M,
        group: &ProcessGroup,
    ) -> Result<M, TrainError> {
        if self.keepers == Keepers::Every || group.world_size() == 1 {
            return Ok(with_values(model.valid(), &self.own));
        }
        let trained = trained(model);
        let owners = owners(&trained, self.keepers, group.world_size());
        let mut numbers = Vec::new();
        for Trained { path, .. } in &trained {
            if let Some(average) = self.own.get(path) {
                let data = average.clone().try_into_data();
                let data =
                    data.map_err(|error| TrainError::Device(format!("`{path}`: {error}")))?;
                numbers.extend(data.iter::<f32>());
            }
        }
        let all = group.all_gather_varied(numbers).wait()?;
        let mut rest = all.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let mut averages = BTreeMap::new();
        for (Trained { path, values, .. }, owner) in trained.into_iter().zip(owners) {
            let rest = &mut rest[owner.unwrap_or(0)];
            let length = values.dims()[0];
            let (own, others) = rest.split_at_checked(length).ok_or_else(|| {
                TrainError::Config(format!(
                    "the average of `{path}` has not come from its rank"
                ))
            })?;
            *rest = others;
            let data = TensorData::new(own.to_vec(), [length]);
            averages.insert(path, Tensor::from_data(data, &values.device()));
        }
        Ok(with_values(model.valid(), &averages))
    }
}

struct Trained {
    path: String,
    /// Flat, in `f32`.
    values: Tensor<1>,
    length: usize,
}

/// The trained parameters, each once, at the first of its places.
fn trained<M: Module>(model: &M) -> Vec<Trained> {
    #[derive(Default)]
    struct Visitor {
        path: Vec<String>,
        known: Vec<ParamId>,
        found: Vec<Trained>,
    }
    impl ModuleVisitor for Visitor {
        everburn_nn::walking! { path }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !param.is_require_grad() || self.known.contains(&param.id) {
                return;
            }
            self.known.push(param.id);
            let values = param.val().without_autodiff().cast(DType::F32);
            let length = values.dims().iter().product();
            self.found.push(Trained {
                path: self.path.join("."),
                values: values.reshape([length]),
                length,
            });
        }
    }
    let mut visitor = Visitor::default();
    model.visit(&mut visitor);
    visitor.found
}

/// Which rank keeps the average of each parameter; `None` for all of them.
fn owners(trained: &[Trained], keepers: Keepers, ranks: usize) -> Vec<Option<usize>> {
    let mut kept = vec![0; ranks.max(1)];
    let owner = |it: &Trained| match keepers {
        Keepers::Every => None,
        Keepers::First => Some(0),
        Keepers::Shared => {
            // The first of those that have least.
            let least = (0..kept.len()).min_by_key(|rank| kept[*rank])?;
            kept[least] += it.length;
            Some(least)
        }
    };
    trained.iter().map(owner).collect()
}

/// `model` with these values, by the path of a parameter's first place.
fn with_values<M: Module>(model: M, values: &BTreeMap<String, Tensor<1>>) -> M {
    struct Mapper<'a> {
        path: Vec<String>,
        values: &'a BTreeMap<String, Tensor<1>>,
        /// By a parameter's identity, the path of its first place.
        first: HashMap<ParamId, String>,
    }
    impl ModuleMapper for Mapper<'_> {
        everburn_nn::walking! { path }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let here = self.path.join(".");
            let first = self.first.entry(param.id).or_insert(here);
            match self.values.get(first) {
                None => param,
                Some(value) => param.map(|old| value.clone().reshape(old.dims()).cast(old.dtype())),
            }
        }
    }
    model.map(&mut Mapper {
        path: Vec::new(),
        values,
        first: HashMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use everburn_collectives::group::GroupOptions;
    use everburn_tests::in_parallel;

    use super::*;

    /// A layer all of whose numbers are `value`.
    fn layer(value: f32, device: &Device) -> Linear {
        let layer = LinearConfig::new(3, 2).init(device);
        struct Fill(f32);
        impl ModuleMapper for Fill {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                param.map(|old| {
                    let trained = old.is_require_grad();
                    let device = old.device();
                    Tensor::full(old.dims(), self.0, &device).set_require_grad(trained)
                })
            }
        }
        layer.map(&mut Fill(value))
    }

    fn numbers(layer: &Linear) -> Vec<f32> {
        let weight = layer
            .weight
            .val()
            .into_data()
            .iter::<f32>()
            .collect::<Vec<_>>();
        let bias = layer.bias.as_ref().unwrap().val().into_data();
        weight.into_iter().chain(bias.iter::<f32>()).collect()
    }

    #[test]
    fn an_average_follows_by_its_decay_and_faster_at_first() {
        let device = Device::flex().autodiff();
        let group = ProcessGroup::alone(GroupOptions::default());
        let first = layer(1.0, &device);
        let mut average = MovingAverage::of(&first, 0.75, Keepers::First, &group);
        // Decays of (1 + t) / (10 + t), then 0.75.
        let mut expected = 1.0_f64;
        for (steps, value) in [(1..=1, 3.0), (2..=3, -1.0), (100..=100, 5.0)] {
            for step in steps.clone() {
                let kept = (f64::from(1 + step) / f64::from(10 + step)).min(0.75);
                expected = kept * expected + (1.0 - kept) * value;
            }
            let steps = *steps.start() as usize..=*steps.end() as usize;
            average.follow(&layer(value as f32, &device), steps);
        }
        let found = numbers(&average.here(&first).unwrap());
        assert_eq!(found.len(), 8);
        for value in found {
            assert!(
                (f64::from(value) - expected).abs() < 1e-5,
                "{value}, not {expected}"
            );
        }
    }

    #[test]
    fn who_keeps_what_does_not_change_it() {
        let device = Device::flex().autodiff();
        let of = |ranks: usize, keepers| {
            let groups = ProcessGroup::over_threads(ranks, GroupOptions::default());
            let (first, second) = (layer(1.0, &device), layer(2.0, &device));
            in_parallel(groups, |group| {
                let mut average = MovingAverage::of(&first, 0.9, keepers, &group);
                average.follow(&second, 7..=7);
                let kept = average.own.len();
                let whole = average.everywhere(&first, &group).unwrap();
                (kept, average.here(&first).is_some(), numbers(&whole))
            })
        };
        let (_, _, expected) = of(1, Keepers::First).swap_remove(0);
        for (keepers, kept) in [
            (Keepers::First, [2, 0, 0]),
            (Keepers::Shared, [1, 1, 0]),
            (Keepers::Every, [2, 2, 2]),
        ] {
            let found = of(3, keepers);
            for ((own, whole, numbers), kept) in found.into_iter().zip(kept) {
                assert_eq!((own, whole), (kept, kept == 2), "{keepers:?}");
                assert_eq!(numbers, expected, "{keepers:?}");
            }
        }
    }

    #[test]
    fn a_decay_out_of_range_is_refused() {
        for decay in [-0.1, 1.0, f64::NAN] {
            let config = EmaConfig {
                decay,
                sharded: false,
                validate: false,
            };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains("`training.ema.decay = "), "{error}");
        }
    }
}
