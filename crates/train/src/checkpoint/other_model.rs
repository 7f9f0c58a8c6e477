//! How the parameters of a checkpoint differ from those of a model.

use std::collections::BTreeMap;

use burn::module::{Module, ParamId};
use burn::prelude::*;
use burn::store::burn_pack::Tensor as PackedTensor;
use burn::tensor::{Bytes, DType};
use everburn_nn::{ParameterPath, parameter_identities};

use crate::checkpoint::Checkpoint;
use crate::checkpoint::state_dict::differences;
use crate::checkpoint::training_state::{MODEL, tensors_of};
use crate::error::TrainError;

/// The parameters of a model by their paths, with their shapes. None is initialised by it.
pub(crate) struct Shapes(Vec<(String, ParamId, PackedTensor)>);

impl Shapes {
    pub(crate) fn of<M: Module>(model: &M) -> Self {
        let found = parameter_identities(model).into_iter();
        let found = found.map(|(ParameterPath { path, shape }, id)| {
            let tensor = carrier(&path, shape);
            (path, id, tensor)
        });
        Self(found.collect())
    }

    /// What differs in a file of a checkpoint, a line each; empty if nothing does. Tensors that only the model or only the
    /// file has count if this is `whole`.
    pub(crate) fn differences(
        &self,
        checkpoint: &Checkpoint,
        file: &str,
        whole: bool,
    ) -> Result<String, TrainError> {
        let views = tensors_of(checkpoint, file)?.into_iter();
        let theirs = views.map(|view| (view.name.clone(), carrier(&view.name, view.shape)));
        let mut theirs: BTreeMap<String, PackedTensor> = theirs.collect();
        let ours = self.0.iter();
        let ours = ours.filter(|(path, id, _)| match theirs.contains_key(path) {
            true => true,
            // A parameter with two paths may have one in the file.
            false => {
                whole
                    && !self
                        .0
                        .iter()
                        .any(|(path, other, _)| other == id && theirs.contains_key(path))
            }
        });
        let ours: Vec<PackedTensor> = ours.map(|(.., tensor)| tensor.clone()).collect();
        if !whole {
            theirs.retain(|name, _| ours.iter().any(|own| own.name == *name));
        }
        Ok(differences(&ours, &theirs))
    }
}

/// A name and a shape, without numbers.
fn carrier(name: &str, shape: impl Into<Shape>) -> PackedTensor {
    PackedTensor::new(
        name.to_string(),
        DType::F32,
        shape,
        None,
        Bytes::from_bytes_vec(Vec::new()),
    )
}

/// How the parameters of a checkpoint differ from those of a model, a line for each of the first; empty if they do not.
/// Those that only one of both has count if this is `whole`. No parameter is drawn.
///
/// # Errors
/// [`TrainError::Checkpoint`] if the checkpoint has no parameters.
pub fn parameter_differences<M: Module>(
    model: &M,
    checkpoint: &Checkpoint,
    whole: bool,
) -> Result<String, TrainError> {
    Shapes::of(model).differences(checkpoint, MODEL, whole)
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;
    use crate::checkpoint::Progress;
    use crate::checkpoint::weights::to_safetensors;
    use crate::{TrainingConfig, with_parameters};

    #[derive(Module, Debug)]
    struct Net {
        first: Linear,
        output: Option<Linear>,
    }

    fn net(hidden: usize, output: bool) -> Net {
        let device = Device::flex();
        Net {
            first: LinearConfig::new(4, hidden).init(&device),
            output: output.then(|| LinearConfig::new(hidden, 3).init(&device)),
        }
    }

    fn checkpoint(of: &Net) -> Checkpoint {
        let progress = Progress::start("net", &TrainingConfig::default(), 10);
        let files = [(MODEL.to_string(), to_safetensors(of).unwrap())];
        Checkpoint {
            progress,
            files: files.into_iter().collect(),
        }
    }

    #[test]
    fn a_model_of_another_size_is_refused_with_both_shapes() {
        let there = checkpoint(&net(64, true));
        let differences = |model: &Net, whole| parameter_differences(model, &there, whole).unwrap();
        assert_eq!(differences(&net(64, true), true), "");
        let other = differences(&net(32, true), true);
        let line = "first.weight has shape [4, 64] in the file and [4, 32] in the model";
        assert!(other.contains(line), "{other}");
        let fewer = differences(&net(64, false), true);
        assert!(fewer.contains("output.weight"), "{fewer}");
        assert_eq!(differences(&net(64, false), false), "");
        let error = with_parameters(net(32, true), &there).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("it is of another model:"), "{error}");
        assert!(error.contains(line), "{error}");
    }
}
