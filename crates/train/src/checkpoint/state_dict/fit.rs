//! Whether the tensors of a file are those of a model.

use std::collections::BTreeMap;
use std::path::Path;

use burn::store::burn_pack::Tensor as PackedTensor;

use super::{BATCHES, is_count};
use crate::config::parameter_groups::Patterns;
use crate::error::TrainError;

/// How many tensors of a file are named that the model does not have.
const MOST_UNKNOWN: usize = 100;

/// What is wrong with the tensors of a file, a line each; empty if nothing.
pub(in crate::checkpoint) fn problems(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
) -> String {
    let mut lines = Vec::new();
    for tensor in ours {
        let (name, shape) = (&tensor.name, &*tensor.shape);
        match theirs.get(name) {
            None => lines.push(format!(
                "{name} is not in the file, and has shape {shape:?} in the model"
            )),
            Some(their) if *their.shape != *shape => lines.push(format!(
                "{name} has shape {:?} in the file and {shape:?} in the model",
                &*their.shape
            )),
            Some(their) if tensor.dtype.is_float() && !their.dtype.is_float() => {
                lines.push(format!(
                    "{name} is {:?} in the file and {:?} in the model",
                    their.dtype, tensor.dtype
                ));
            }
            Some(_) => {}
        }
    }
    let of_the_model = lines.len();
    let known = |name: &str| ours.iter().any(|tensor| tensor.name == name);
    for (name, tensor) in theirs {
        // A count belongs to a batch norm.
        let norm = name.strip_suffix(BATCHES);
        if known(name) || norm.is_some_and(|norm| known(&format!("{norm}running_var"))) {
            continue;
        }
        // The name is the file's; no control character of it reaches a terminal.
        lines.push(format!(
            "{} has shape {:?} in the file, and is not in the model",
            name.escape_debug(),
            &*tensor.shape
        ));
    }
    let more = lines.len().saturating_sub(of_the_model + MOST_UNKNOWN);
    lines.truncate(of_the_model + MOST_UNKNOWN);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

/// Refuses a pattern of tensors to skip that fits no name of the model or the file at `path`.
pub(super) fn check_patterns<'a, I: Iterator<Item = &'a str>>(
    skip: &Patterns,
    path: &Path,
    names: impl Fn() -> I,
) -> Result<(), TrainError> {
    for pattern in skip.iter() {
        let one = Patterns::from(pattern);
        if names().any(|name| one.fit(name)) {
            continue;
        }
        let layer = format!("{pattern}.");
        let meant = match names().any(|name| name.starts_with(&layer)) {
            true => format!("; did you mean '{layer}*'?"),
            false => String::new(),
        };
        return Err(TrainError::Config(format!(
            "--init-skip {pattern} matches no parameter of the model, and no tensor of {}{meant}",
            path.display()
        )));
    }
    Ok(())
}

/// How to train with another head, if one layer of the model has other shapes than that of the file and all else fits.
pub(super) fn hint_for_a_head(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
) -> String {
    let differs = |tensor: &&PackedTensor| {
        let their = theirs.get(&tensor.name);
        their.is_none_or(|their| *their.shape != *tensor.shape)
    };
    let mut layers = ours.iter().filter(differs).map(|tensor| {
        let there = theirs.contains_key(&tensor.name);
        tensor.name.rsplit_once('.').filter(|_| there)
    });
    let Some(Some((layer, _))) = layers.next() else {
        return String::new();
    };
    let is_ours = |name: &String| is_count(name) || ours.iter().any(|own| own.name == *name);
    let alone = layers.all(|other| other.is_some_and(|(other, _)| other == layer));
    match alone && theirs.keys().all(is_ours) {
        true => format!(
            "\n  (--init-skip '{layer}.*' begins with new weights there: a head for other classes)"
        ),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use burn::prelude::*;
    use everburn_models::mlp::MlpConfig;

    use crate::{load_state_dict, save_state_dict};

    #[test]
    fn a_head_for_other_classes_gets_a_hint_and_another_model_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let device = Device::flex();
        let config = MlpConfig::new().with_inputs(6).with_hidden(vec![5, 4]);
        save_state_dict(&config.init(&device), 0, &path).unwrap();
        let refused = |config: MlpConfig| {
            let error = load_state_dict(config.init(&device), &path).unwrap_err();
            error.to_string()
        };
        let hint = "--init-skip 'layers.2.*' begins with new weights there";
        let head = refused(config.clone().with_classes(7));
        assert!(head.contains(hint), "{head}");
        for other in [
            config.clone().with_hidden(vec![5, 3]),
            config.with_hidden(vec![5]),
        ] {
            let error = refused(other);
            assert!(!error.contains("--init-skip"), "{error}");
        }
    }
}
