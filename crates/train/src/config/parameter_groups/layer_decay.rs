//! Learning rates that fall from layer to layer.

use super::{Parameter, Parameters};
use crate::error::TrainError;

impl Parameters {
    /// The same with learning rates that fall by `decay` from each layer to the one before it (layer-wise learning-rate
    /// decay, Howard and Ruder 2018, section 3.2; Clark et al. 2020, appendix A). Layers are the items of the model's one
    /// list; what comes before the list counts as a layer below the first, and what comes behind it keeps its rate.
    ///
    /// # Errors
    /// [`TrainError::Config`] if the model has no list of layers, or several of the same length.
    pub(crate) fn decayed_by_layer(mut self, decay: Option<f64>) -> Result<Self, TrainError> {
        let Some(decay) = decay else {
            return Ok(self);
        };
        let list = self.list_of_layers()?;
        let layers = self.parameters.iter().filter_map(|it| place_in(&list, it));
        let layers = layers.max().map_or(0, |last| last + 1);
        let mut is_behind = false;
        for parameter in &mut self.parameters {
            let below = match place_in(&list, parameter) {
                Some(layer) => {
                    is_behind = true;
                    layers - layer
                }
                None if is_behind => 0,
                None => layers + 1,
            };
            let exponent = i32::try_from(below).unwrap_or(i32::MAX);
            parameter.learning_rate_factor *= decay.powi(exponent);
        }
        Ok(self)
    }

    /// What the paths of all layers begin with: `layers.` of `layers.0.norm1.weight`.
    fn list_of_layers(&self) -> Result<String, TrainError> {
        let mut lists: Vec<(String, Vec<usize>)> = Vec::new();
        for parameter in &self.parameters {
            let Some((list, layer)) = first_number(&parameter.path) else {
                continue;
            };
            match lists.iter_mut().find(|(known, _)| known == list) {
                Some((_, layers)) if layers.contains(&layer) => {}
                Some((_, layers)) => layers.push(layer),
                None => lists.push((list.to_string(), vec![layer])),
            }
        }
        let longest = lists.iter().map(|(_, layers)| layers.len()).max();
        let mut longest = lists
            .into_iter()
            .filter(|(_, layers)| Some(layers.len()) == longest);
        match (longest.next(), longest.next()) {
            (Some((list, _)), None) => Ok(list),
            _ => Err(TrainError::Config(
                "`training.optimizer.layer_decay` is for models with one list of layers, as layers.0, layers.1, ..., and this model has \
                 none, or several of the same length: give `learning_rate_factor` in [[training.optimizer.groups]]"
                    .to_string(),
            )),
        }
    }
}

/// The part of a path before its first number, and the number.
fn first_number(path: &str) -> Option<(&str, usize)> {
    let mut at = 0;
    for part in path.split('.') {
        if let Ok(number) = part.parse() {
            return Some((&path[..at], number));
        }
        at += part.len() + 1;
    }
    None
}

/// Which layer of the list a parameter belongs to.
fn place_in(list: &str, parameter: &Parameter) -> Option<usize> {
    first_number(&parameter.path)
        .filter(|(own, _)| *own == list)
        .map(|(_, layer)| layer)
}
