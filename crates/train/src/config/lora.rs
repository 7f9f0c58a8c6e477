//! Low-rank adaptation.

use burn::module::{Lora, Module, ParamGroup};
use clap::Args;
use everburn_nn::parameter_paths;
use serde::{Deserialize, Serialize};

use super::parameter_groups::Patterns;
use crate::error::TrainError;

/// Low-rank adaptation (LoRA, Hu et al. 2021): all parameters stay as they are, and beside each weight `[in, out]` that
/// is named two factors `[in, rank]` and `[rank, out]` are trained, whose product, times `alpha / rank`, is added to it.
/// Only these, and parameters of [`modules_to_save`](Self::modules_to_save), have gradients and states of an optimizer. When a training has ended they are merged into the weights,
/// and kept beside them as an [`Adapter`](crate::Adapter); checkpoints have both.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::train::{LoraConfig, Patterns};
///
/// let lora = LoraConfig { rank: 2, alpha: None, targets: Patterns::from("weight"), modules_to_save: Patterns::default() };
/// let model = LinearConfig::new(8, 4).init(&Device::flex());
/// let adapted = lora.adapt(model).unwrap();
/// assert_eq!(adapted.num_params(), 8 * 4 + 4 + 2 * (8 + 4));
/// assert_eq!(adapted.materialize().num_params(), 8 * 4 + 4);
/// ```
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Fine-tuning")]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// Train low-rank factors of this rank for the weights of --init-from, and merge them at the end (LoRA).
    #[arg(long = "lora", value_name = "RANK")]
    #[serde(default)]
    pub rank: usize,
    /// The scale of the factors' product is ALPHA / RANK [default: twice the rank].
    #[arg(long = "lora-alpha", value_name = "ALPHA")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// The weights to adapt: names on their paths, or patterns of whole paths [default: q,v,q_proj,v_proj].
    #[arg(long = "lora-targets", value_name = "NAME", value_delimiter = ',')]
    #[serde(default = "queries_and_values")]
    pub targets: Patterns,
    /// Parameters that are trained whole, not adapted: those that `init_skip` leaves new.
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "Patterns::is_absent")]
    pub modules_to_save: Patterns,
}

/// As Hu et al. 2021, section 5.1, by the names of `gpt` and of `llama`.
fn queries_and_values() -> Patterns {
    let names = ["q", "v", "q_proj", "v_proj"];
    Patterns::from(names.map(str::to_string).to_vec())
}

impl LoraConfig {
    pub(super) fn check(&self) -> Result<(), TrainError> {
        let refuse = |message: &str| Err(TrainError::Config(message.to_string()));
        if self.rank == 0 {
            return refuse("`training.lora.rank` must be given, and be at least 1");
        }
        if self
            .alpha
            .is_some_and(|alpha| !(alpha.is_finite() && alpha > 0.0))
        {
            return refuse("training.lora.alpha must be a number above 0");
        }
        Ok(())
    }

    /// The factor of the product, times the rank: twice the rank, unless it is given.
    pub fn alpha(&self) -> f64 {
        self.alpha.unwrap_or(2.0 * self.rank as f64)
    }

    /// The model with factors beside its weights. It computes the same: one of the factors begins at zero.
    ///
    /// # Errors
    /// [`TrainError::Config`] if a number is out of range, or a target names no weight.
    pub fn adapt<M: Module>(&self, model: M) -> Result<M, TrainError> {
        let (paths, saved) = self.targets_in(&model)?;
        let group = ParamGroup::from_paths(paths);
        let adapted = model.apply_lora(Lora::new(self.rank, self.alpha()).set_param_group(group));
        Ok(match saved.is_empty() {
            true => adapted,
            false => adapted.unfreeze_group(ParamGroup::from_paths(saved)),
        })
    }

    /// Checks that [`adapt`](Self::adapt) adapts the model. No parameter is drawn.
    ///
    /// # Errors
    /// As [`adapt`](Self::adapt).
    pub fn check_targets<M: Module>(&self, model: &M) -> Result<(), TrainError> {
        self.targets_in(model).map(drop)
    }

    /// The paths of the weights that get factors, and of the parameters that are trained whole.
    fn targets_in<M: Module>(&self, model: &M) -> Result<(Vec<String>, Vec<String>), TrainError> {
        self.check()?;
        let all = parameter_paths(model);
        let is_saved = |path: &str| self.modules_to_save.fit(path);
        let saved = all.iter().map(|parameter| parameter.path.clone());
        let saved = saved.filter(|path| is_saved(path)).collect::<Vec<_>>();
        if saved.is_empty() && !self.modules_to_save.is_absent() {
            return Err(TrainError::Config(format!(
                "`training.lora.modules_to_save = {}` names no parameter of the model: what begins with new weights would \
                 never be trained",
                self.modules_to_save
            )));
        }
        let weights = all.into_iter();
        let weights = weights.filter(|parameter| parameter.shape.len() == 2);
        let weights = weights.filter(|parameter| !is_saved(&parameter.path));
        let smaller_side = |shape: &[usize]| shape.iter().copied().min().unwrap_or(0);
        let weights = weights.map(|it| (smaller_side(&it.shape), it.path));
        let (sides, weights): (Vec<usize>, Vec<String>) = weights.unzip();
        for target in self.targets.iter() {
            let is_default = self.targets == queries_and_values();
            if !is_default && !weights.iter().any(|path| names(target, path)) {
                return Err(TrainError::Config(format!(
                    "`training.lora.targets = {target}` names no layer that factors can be put beside, which are those with a \
                     weight of two dimensions: {}",
                    layer_names(&weights)
                )));
            }
        }
        let named = |path: &String| self.targets.iter().any(|target| names(target, path));
        let adapted = sides.iter().zip(&weights).filter(|(_, path)| named(path));
        let (sides, paths): (Vec<usize>, Vec<String>) =
            adapted.map(|(side, path)| (*side, path.clone())).unzip();
        if paths.is_empty() {
            return Err(TrainError::Config(format!(
                "`training.lora.targets` is needed: the model has no layers called {}; its layers are {}",
                self.targets,
                layer_names(&weights)
            )));
        }
        let largest = sides.into_iter().max().unwrap_or(0);
        if self.rank > largest {
            return Err(TrainError::Config(format!(
                "`training.lora.rank = {}` is more than the {largest} rows or columns that the adapted weights have at most: a \
                 smaller rank, such as 8, or train all parameters, without `training.lora.rank`",
                self.rank
            )));
        }
        Ok((paths, saved))
    }
}

/// The most names of layers in an error.
const MOST_NAMES: usize = 16;

/// What weights at these paths can be called: the names of their layers, each once, as in `q_proj, v_proj`.
fn layer_names(weights: &[String]) -> String {
    let mut names = Vec::<&str>::new();
    for path in weights {
        let layer = path.rsplit_once('.').map_or(&**path, |(layer, _)| layer);
        let name = layer.rsplit('.').next().unwrap_or(layer);
        // A number in a list names nothing alone.
        let name = if name.parse::<usize>().is_ok() {
            layer
        } else {
            name
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    match more {
        0 => names.join(", "),
        _ => format!("{} and {more} more", names.join(", ")),
    }
}

fn names(target: &str, path: &str) -> bool {
    match target.contains(['*', '.']) {
        true => Patterns::from(target).fit(path),
        false => path.split('.').any(|part| part == target),
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::prelude::*;
    use everburn_tests::AssertContains;

    use super::*;

    #[derive(Module, Debug)]
    struct Net {
        q: Linear,
        out: Linear,
    }

    fn net() -> Net {
        let linear = || LinearConfig::new(6, 6).init(&Device::flex().autodiff());
        Net {
            q: linear(),
            out: linear(),
        }
    }

    fn lora(targets: &[&str]) -> LoraConfig {
        let targets = targets.iter().map(ToString::to_string).collect::<Vec<_>>();
        LoraConfig {
            rank: 2,
            alpha: None,
            targets: Patterns::from(targets),
            modules_to_save: Patterns::default(),
        }
    }

    #[test]
    fn only_the_factors_of_what_is_named_are_trained() {
        let model = lora(&["q"]).adapt(net()).unwrap();
        assert_eq!(model.num_params(), 2 * (36 + 6) + 2 * 12);
        assert!(model.q.weight.adapter().is_some() && model.out.weight.adapter().is_none());
        let gradients = model
            .q
            .forward(Tensor::<2>::ones([1, 6], &Device::flex().autodiff()));
        let gradients = (gradients + model.out.bias.as_ref().unwrap().val().unsqueeze())
            .sum()
            .backward();
        assert!(model.q.weight.base().grad(&gradients).is_none());
        assert!(
            model
                .out
                .bias
                .as_ref()
                .unwrap()
                .val()
                .grad(&gradients)
                .is_none()
        );
        let adapter = model.q.weight.adapter().unwrap();
        assert!(adapter.b.val().grad(&gradients).is_some());
    }

    #[test]
    fn what_is_new_is_trained_whole_beside_the_factors() {
        let new = LoraConfig {
            modules_to_save: Patterns::from("out.*"),
            ..lora(&["q"])
        };
        let model = new.adapt(net()).unwrap();
        let device = Device::flex().autodiff();
        let scores = model
            .out
            .forward(model.q.forward(Tensor::<2>::ones([1, 6], &device)));
        let gradients = scores.sum().backward();
        let bias = model.out.bias.as_ref().unwrap().val();
        assert!(bias.grad(&gradients).is_some());
        assert!(
            model.out.weight.val().grad(&gradients).is_some()
                && model.out.weight.adapter().is_none()
        );
        assert!(model.q.weight.base().grad(&gradients).is_none());
        assert!(
            model
                .q
                .weight
                .adapter()
                .unwrap()
                .b
                .val()
                .grad(&gradients)
                .is_some()
        );
        let nowhere = LoraConfig {
            modules_to_save: Patterns::from("head.*"),
            ..lora(&["q"])
        };
        let error = nowhere.adapt(net()).unwrap_err().to_string();
        assert!(error.contains("head.*"), "{error}");
    }

    #[test]
    fn factors_with_more_numbers_than_a_weight_are_refused() {
        let of_rank = |rank| {
            LoraConfig {
                rank,
                ..lora(&["q"])
            }
            .adapt(net())
        };
        of_rank(6).unwrap();
        let error = of_rank(7).unwrap_err().to_string();
        error.assert_contains(["rank = 7` is more than the 6 rows or columns"]);
    }

    #[test]
    fn targets_that_are_not_there_are_refused_with_those_that_are() {
        let refused = |targets: &[&str]| lora(targets).adapt(net()).unwrap_err().to_string();
        assert!(refused(&["k"]).contains("two dimensions: q, out"));
        assert!(refused(&["q", "*.k.*"]).contains("targets = *.k.*`"));
        let defaults: LoraConfig = toml::from_str("rank = 4").unwrap();
        assert!(defaults.adapt(net()).is_ok());
        assert!(lora(&["out.*"]).adapt(net()).is_ok());
    }
}
