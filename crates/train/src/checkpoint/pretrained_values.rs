//! Pretrained weights that are read a tensor at a time, by ranks that keep a part of each.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use burn::store::ModuleSnapshot;
use burn::store::burn_pack::Tensor as PackedTensor;
use everburn_distributed::{InitialValues, placeholders};
use everburn_nn::parameter_paths;
use everburn_record::sync::lock;

use super::state_dict::{
    Fitting, StateDictLayout, fitting_tensors, from_pytorch, in_pytorch_terms,
};
use crate::config::parameter_groups::Patterns;
use crate::error::TrainError;

/// A model whose pretrained weights are yet to be read, and where they are: for
/// [`Trainer::initial_values`](crate::Trainer::initial_values).
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::train::{
///     Patterns, StateDictLayout, WithInitialValues, open_state_dict_except, save_state_dict,
/// };
///
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("weights.safetensors");
/// let (config, device) = (LinearConfig::new(3, 2), Device::flex());
/// let saved = config.init(&device);
/// save_state_dict(&saved, 0, &path).unwrap();
/// let (skip, layout) = (Patterns::default(), StateDictLayout::default());
/// let (model, values): WithInitialValues<_> =
///     open_state_dict_except(config.init(&device), &path, &skip, &layout, false).unwrap();
/// assert_eq!(model.weight.val().into_data(), TensorData::zeros::<f32, _>([3, 2]));
/// assert_eq!(values.value("weight").unwrap(), saved.weight.val().into_data());
/// ```
pub type WithInitialValues<M> = (M, Arc<dyn InitialValues>);

/// As [`load_state_dict_except`](crate::load_state_dict_except), but no tensor is read yet, and those of the model that
/// will be take no memory. `model` must be as it was built; where `draws`, all its weights are drawn, one at a time, so
/// that those that the file does not replace are as in a whole model.
///
/// # Errors
/// As [`load_state_dict_except`](crate::load_state_dict_except).
pub fn open_state_dict_except<M: Module + 'static>(
    model: M,
    path: &Path,
    skip: &Patterns,
    layout: &StateDictLayout,
    draws: bool,
) -> Result<WithInitialValues<M>, TrainError> {
    let unmaterialised = unmaterialised(&model);
    let fitting = fitting_tensors(&unmaterialised, path, skip, layout)?;
    let names = match fitting.of_pytorch {
        true => in_pytorch_terms(&unmaterialised),
        false => unmaterialised.collect(None, None, true),
    };
    let names = names.into_iter().map(|tensor| tensor.name).collect();
    Ok(PretrainedValues::new(unmaterialised, names, fitting).beside(model, draws))
}

/// `model` without any values.
pub(crate) fn unmaterialised<M: Module>(model: &M) -> M {
    let paths = parameter_paths(model).into_iter();
    let paths = paths.map(|parameter| parameter.path).collect();
    placeholders(model.clone(), &paths, false)
}

/// The tensors of a file that a model has.
struct PretrainedValues<M> {
    /// The model without values, into which one is loaded at a time.
    unmaterialised: Mutex<M>,
    /// The file's tensors by their paths in the model.
    tensors: HashMap<String, PackedTensor>,
    /// They are PyTorch's.
    of_pytorch: bool,
}

impl<M: Module + 'static> PretrainedValues<M> {
    /// The tensors of a file by their `names`, which are those of the model's tensors in order.
    fn new(
        unmaterialised: M,
        names: Vec<String>,
        Fitting {
            mut tensors,
            of_pytorch,
            ..
        }: Fitting,
    ) -> Self {
        let paths = unmaterialised.collect(None, None, false).into_iter();
        let named = paths.map(|tensor| tensor.name).zip(names);
        let tensors = named.filter_map(|(path, name)| Some((path, tensors.remove(&name)?)));
        Self {
            tensors: tensors.collect(),
            unmaterialised: Mutex::new(unmaterialised),
            of_pytorch,
        }
    }

    fn beside(self, model: M, draws: bool) -> WithInitialValues<M> {
        let paths: HashSet<String> = self.tensors.keys().cloned().collect();
        (placeholders(model, &paths, draws), Arc::new(self))
    }
}

impl<M> fmt::Debug for PretrainedValues<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pretrained tensors", self.tensors.len())
    }
}

impl<M: Module + 'static> InitialValues for PretrainedValues<M> {
    fn paths(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn value(&self, path: &str) -> Result<TensorData, String> {
        let tensor = self.tensors.get(path).cloned();
        let tensor = tensor.ok_or_else(|| "the file does not have it".to_string())?;
        // As into a whole model, so that layers that keep their weights in another layout are given that.
        let mut model = lock(&self.unmaterialised).clone();
        let adapter = self.of_pytorch.then(from_pytorch);
        let result = model.apply(vec![tensor], None, adapter, true);
        if let Some(error) = result.errors.first() {
            return Err(error.to_string());
        }
        let mut find = Find {
            wanted: path,
            path: Vec::new(),
            found: None,
        };
        model.visit(&mut find);
        find.found
            .unwrap_or_else(|| Err("the model does not have it".to_string()))
    }
}

struct Find<'a> {
    wanted: &'a str,
    path: Vec<String>,
    found: Option<Result<TensorData, String>>,
}

impl Find<'_> {
    fn visit(&mut self, read: impl FnOnce() -> Result<TensorData, String>) {
        if self.path.join(".") == self.wanted {
            self.found = Some(read());
        }
    }
}

impl ModuleVisitor for Find<'_> {
    everburn_nn::walking! { path }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.visit(|| {
            let value = param.base().without_autodiff().try_into_data();
            value.map_err(|error| error.to_string())
        });
    }

    everburn_nn::walking! { visit others self, param => {
        self.visit(|| {
            param
                .base()
                .try_into_data()
                .map_err(|error| error.to_string())
        });
    } }
}
