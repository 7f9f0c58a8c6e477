//! The parameters of a model, with the settings of their groups.

use std::collections::BTreeMap;

use burn::module::{Flag, Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::prelude::*;

use super::ParameterGroup;
use super::pattern::fits;
use crate::checkpoint::training_state::identity;
use crate::error::TrainError;

/// A parameter, or a flag of a module, with the settings of its groups.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    pub(super) path: String,
    id: ParamId,
    pub(crate) dimensions: usize,
    pub(super) learning_rate_factor: f64,
    weight_decay: Option<f64>,
    frozen: bool,
}

/// The parameters of a model, each at the first of its places, and the flags of its modules.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parameters {
    pub(super) parameters: Vec<Parameter>,
    flags: Vec<Parameter>,
}

impl Parameters {
    /// The parameters of `model` with the settings of `groups`. Lazy parameters stay uninitialised.
    ///
    /// # Errors
    /// [`TrainError::Config`] if a pattern fits no parameter, or all are frozen.
    pub(crate) fn of<M: Module>(model: &M, groups: &[ParameterGroup]) -> Result<Self, TrainError> {
        let mut found = Find::default();
        model.visit(&mut found);
        let mut parameters = found.found;
        for pattern in groups.iter().flat_map(|group| group.matches.iter()) {
            let all = &parameters.parameters;
            if !all.iter().any(|parameter| fits(pattern, &parameter.path)) {
                return Err(no_match(pattern, all));
            }
        }
        let all = parameters.parameters.iter_mut();
        for parameter in all.chain(&mut parameters.flags) {
            let path = parameter.path.clone();
            let about = groups.iter().filter(|group| group.matches.fit(&path));
            about.for_each(|group| parameter.apply(group));
        }
        let frozen = parameters
            .parameters
            .iter()
            .all(|parameter| parameter.frozen);
        if frozen && !parameters.parameters.is_empty() {
            return Err(TrainError::Config(
                "[[training.optimizer.groups]] freeze every parameter of the model, and nothing is left to learn: \
                 leave some out"
                    .to_string(),
            ));
        }
        Ok(parameters)
    }

    /// The `wanted` parameters; `None` if there are none.
    pub(crate) fn group(&self, wanted: impl Fn(&Parameter) -> bool) -> Option<ParamGroup> {
        group(self.parameters.iter().filter(|it| wanted(it)))
    }

    pub(crate) fn frozen(&self) -> Option<ParamGroup> {
        let all = self.parameters.iter().chain(&self.flags);
        group(all.filter(|it| it.frozen))
    }

    /// The `wanted` parameters with a weight decay other than `usual`, by weight decay.
    pub(crate) fn by_weight_decay(
        &self,
        usual: f64,
        wanted: impl Fn(&Parameter) -> bool,
    ) -> Vec<(f64, ParamGroup)> {
        let decays = self.parameters.iter().filter(|it| wanted(it));
        by_number(
            decays.map(|it| (it.weight_decay.unwrap_or(usual), it)),
            usual,
        )
    }

    /// The parameters with a learning rate of their own, by its factor.
    pub(crate) fn by_learning_rate(&self) -> Vec<(f64, ParamGroup)> {
        let all = self.parameters.iter();
        by_number(all.map(|it| (it.learning_rate_factor, it)), 1.0)
    }
}

impl Parameter {
    fn apply(&mut self, group: &ParameterGroup) {
        if let Some(factor) = group.learning_rate_factor {
            self.learning_rate_factor = factor;
        }
        self.weight_decay = group.weight_decay.or(self.weight_decay);
        self.frozen = group.frozen.unwrap_or(self.frozen);
    }
}

/// The parameters with a number other than `usual`, by number.
fn by_number<'a>(
    numbered: impl Iterator<Item = (f64, &'a Parameter)>,
    usual: f64,
) -> Vec<(f64, ParamGroup)> {
    let mut found: BTreeMap<u64, Vec<&Parameter>> = BTreeMap::new();
    for (number, parameter) in numbered.filter(|(number, _)| *number != usual) {
        found.entry(number.to_bits()).or_default().push(parameter);
    }
    let groups = found.into_iter().filter_map(|(bits, parameters)| {
        let group = group(parameters.into_iter())?;
        Some((f64::from_bits(bits), group))
    });
    groups.collect()
}

/// A group by path (shards have none) and by identity: the parameter's own, and the one that a checkpoint derives from
/// its path.
fn group<'a>(parameters: impl Iterator<Item = &'a Parameter>) -> Option<ParamGroup> {
    let parameters = parameters.collect::<Vec<_>>();
    if parameters.is_empty() {
        return None;
    }
    let paths = parameters.iter().map(|it| it.path.as_str()).collect();
    let ids = parameters.iter().flat_map(|it| [it.id, identity(&it.path)]);
    Some(ParamGroup::from_ids(ids.collect()).fuse(&ParamGroup::from_paths(paths)))
}

fn no_match(pattern: &str, parameters: &[Parameter]) -> TrainError {
    let letters = pattern.replace('*', "");
    let likeness = |path: &str| strsim::sorensen_dice(&letters, path);
    let nearest = parameters
        .iter()
        .map(|it| it.path.as_str())
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let hint = nearest.map_or_else(String::new, |path| format!("; the nearest is `{path}`"));
    TrainError::Config(format!(
        "`match = \"{pattern}\"` of [[training.optimizer.groups]] matches no parameter of the model{hint}"
    ))
}

#[derive(Default)]
struct Find {
    path: Vec<String>,
    found: Parameters,
}

impl Find {
    fn here(&self, id: ParamId, dimensions: usize) -> Parameter {
        Parameter {
            path: self.path.join("."),
            id,
            dimensions,
            learning_rate_factor: 1.0,
            weight_decay: None,
            frozen: false,
        }
    }
}

impl ModuleVisitor for Find {
    everburn_nn::walking! { path }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.found.parameters.iter().all(|it| it.id != param.id) {
            let here = self.here(param.id, D);
            self.found.parameters.push(here);
        }
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        let here = self.here(flag.id, 0);
        self.found.flags.push(here);
    }
}
