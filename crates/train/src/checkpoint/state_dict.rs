//! State dicts of PyTorch: a model's tensors by PyTorch's names and in PyTorch's layouts.
//!
//! Names are paths, as here; what differs is translated by `burn-store`: weights of linear layers are
//! transposed, and scale and shift of norms are called `weight` and `bias`. Batch norms have a count of
//! batches, `num_batches_tracked`, which PyTorch needs only where there is no momentum: it is written, as the
//! steps of the run, and not read.

mod copies;
mod file;
mod finite;
mod fit;
mod folder;
mod layout;
mod prefix;
mod pytorch;
mod stated;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use burn::module::Module;
use burn::store::burn_pack::Tensor as PackedTensor;
use burn::store::{
    BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleSnapshot, PyTorchToBurnAdapter,
    bridge,
};
use burn::tensor::{DType, TensorData};
use everburn_record::sync::lock;

use self::file::kind_of;
pub(super) use self::file::{BURNS_TERMS, why_not_safetensors};
use self::fit::check_patterns;
pub(super) use self::fit::{differences, mismatch};
use self::prefix::without_prefix;
use crate::checkpoint::pretrained_values::unmaterialised;
use crate::checkpoint::tensor_file::{self, NamedTensor};
use crate::checkpoint::weights::run_tensors;
use crate::config::parameter_groups::Patterns;
use crate::error::TrainError;
use crate::record::run_directory::{unread, write_output};

pub use file::StateDictFile;
pub use fit::WeightsMismatch;
pub(crate) use folder::write_folder;
pub use folder::{PRETRAINED_CONFIG, save_pretrained, weights_of};
pub use layout::{StateDictLayout, TensorSource};
pub use stated::{ShownBy, StatedSize, shown_sizes};

/// What PyTorch calls a batch norm's count of batches.
const BATCHES: &str = "num_batches_tracked";

/// Writes the parameters and running statistics of `model` as a state dict, atomically; the path's ending
/// says as which [`StateDictFile`]. `batches` is how many batches batch norms have seen.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::train::{load_state_dict, save_state_dict};
///
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("weights.pt");
/// let config = LinearConfig::new(3, 2);
/// let device = Device::flex();
/// let model = config.init(&device);
/// save_state_dict(&model, 0, &path).unwrap();
/// let loaded = load_state_dict(config.init(&device), &path).unwrap();
/// assert_eq!(loaded.weight.val().into_data(), model.weight.val().into_data());
///
/// let error = load_state_dict(LinearConfig::new(4, 2).init(&device), &path).unwrap_err();
/// assert!(error.to_string().contains("weight has shape [2, 3] in the file and [2, 4] in the model"));
/// ```
///
/// # Errors
/// [`TrainError::Write`] if the path has another ending or cannot be written.
#[doc(alias = "torch.save")]
pub fn save_state_dict<M: Module>(model: &M, batches: u64, path: &Path) -> Result<(), TrainError> {
    let kind = kind_of(path).map_err(|reason| TrainError::write(path, reason))?;
    let parts = named_tensors(model, batches, path)?;
    let bytes = match kind {
        StateDictFile::Safetensors => safetensors(&parts),
        StateDictFile::PyTorch => pytorch::to_bytes(&parts),
    };
    let bytes = bytes.map_err(|error| TrainError::write(path, error))?;
    write_output(path, &bytes)
}

/// The tensors of a model by PyTorch's names.
fn named_tensors<M: Module>(
    model: &M,
    batches: u64,
    path: &Path,
) -> Result<Vec<NamedTensor>, TrainError> {
    let mut tensors = Vec::new();
    for tensor in in_pytorch_terms(model) {
        let of_norm = tensor.name.strip_suffix("running_var");
        let count = of_norm.map(|norm| {
            let data = TensorData::new(vec![batches.cast_signed()], [0; 0]);
            bridge::from_data(data, format!("{norm}{BATCHES}"), None)
        });
        tensors.push(tensor);
        tensors.extend(count);
    }
    let parts = tensors.into_iter().map(|tensor| {
        let name = tensor.name.clone();
        let data = bridge::into_data(tensor).map_err(|error| TrainError::write(path, error))?;
        Ok((name, data))
    });
    parts.collect()
}

/// The model with the parameters and running statistics of a state dict. A first part
/// of the path that all names have and the model has not is left out: `module.` of `DistributedDataParallel`,
/// `_orig_mod.` of `torch.compile`, `model.` of a Lightning module. In a `.pt` file the dict may be an entry of a
/// checkpoint: `state_dict`, `model_state_dict` or `model`, or the only one that holds weights. Numbers become
/// `f32`. Of a `.pt` file of a stranger nothing is called, and it takes memory in proportion to its size
/// (see [`everburn_pytorch_weights`]).
///
/// # Errors
/// [`TrainError::File`] if the file cannot be read, and [`TrainError::Weights`] if it is of another model, or has NaN or
/// infinite weights: the error names the tensors that are missing, unknown, of another shape, or not finite.
#[doc(alias = "torch.load")]
pub fn load_state_dict<M: Module>(model: M, path: &Path) -> Result<M, TrainError> {
    load_state_dict_except(
        model,
        path,
        &Patterns::default(),
        &StateDictLayout::default(),
    )
}

/// As [`load_state_dict`], but for tensors whose names match `skip`: those of the model stay as they are, and those of the
/// file are not read. A pretrained model gets a new head this way. The file may have its tensors as `layout` says. `path`
/// may also be a folder of Hugging Face's transformers, with one file of weights or several, or such an index of several
/// (`model.safetensors.index.json`), or the folder of a run, whose model has this project's names and layouts.
///
/// # Errors
/// As [`load_state_dict`]; also if a pattern matches no tensor of the model or the file, and if a run has no model yet.
pub fn load_state_dict_except<M: Module>(
    mut model: M,
    path: &Path,
    skip: &Patterns,
    layout: &StateDictLayout,
) -> Result<M, TrainError> {
    // Shapes first, on a model without values: drawing the weights of a large one takes long.
    fitting_tensors(&unmaterialised(&model), path, skip, layout)?;
    let fitting = fitting_tensors(&model, path, skip, layout)?;
    let result = model.apply(
        fitting.tensors.into_values().collect(),
        None,
        fitting.of_pytorch.then(from_pytorch),
        true,
    );
    if let Some(reason) = lock(&fitting.wrong_numbers).first() {
        return Err(unread(path, reason));
    }
    let mut problems = String::new();
    for error in &result.errors {
        // Writing to a string does not fail.
        let _ = write!(problems, "\n  {error}");
    }
    if result.missing.len() != fitting.skipped.len() {
        for (path, _) in &result.missing {
            let _ = write!(problems, "\n  {path} was not found");
        }
    }
    match problems.is_empty() {
        true => Ok(model),
        false => Err(TrainError::Weights {
            path: path.to_path_buf(),
            mismatch: WeightsMismatch::Tensors,
            problems,
        }),
    }
}

/// What makes tensors of the model's of PyTorch's.
pub(super) fn from_pytorch() -> Box<dyn ModuleAdapter> {
    Box::new(PyTorchToBurnAdapter.chain(FloatCastAdapter::to(DType::F32)))
}

/// The tensors of weights that go into a model, none of them read yet.
pub(super) struct Fitting {
    pub(super) tensors: BTreeMap<String, PackedTensor>,
    /// The names of the model's tensors that are skipped.
    pub(super) skipped: Vec<String>,
    /// The names and layouts are PyTorch's, not those of a run.
    pub(super) of_pytorch: bool,
    /// What reading them finds wrong with their numbers.
    wrong_numbers: finite::WrongNumbers,
}

/// The tensors of the weights at `path` that go into `model`.
///
/// # Errors
/// As [`load_state_dict_except`].
pub(super) fn fitting_tensors<M: Module>(
    model: &M,
    path: &Path,
    skip: &Patterns,
    layout: &StateDictLayout,
) -> Result<Fitting, TrainError> {
    let of_pytorch = match path.is_dir() {
        true => path.join(PRETRAINED_CONFIG).is_file() || !everburn_record::is_run(path),
        false => !file::is_in_burns_terms(path),
    };
    file::refuse_plain_folder(path)?;
    let (all, mut read) = match of_pytorch {
        false => (model.collect(None, None, true), run_tensors(path)?),
        true => (in_pytorch_terms(model), folder::read(path)?),
    };
    let names: Vec<String> = read.keys().cloned().collect();
    // What is no part of the model keeps others from sharing a prefix, in a Lightning module say.
    read.retain(|name, _| !skip.fit(name) || layout.is_of_file(name));
    layout.check_copies(path, &read, skip)?;
    let mut tensors = match of_pytorch {
        true => layout.arrange(read),
        false => read,
    };
    // By their names in the file, and below by those without a shared prefix: what is skipped need not have it.
    tensors.retain(|name, _| !skip.fit(name));
    let known: BTreeSet<&str> = all.iter().map(|tensor| &*tensor.name).collect();
    let mut forms: Vec<String> = names.iter().chain(tensors.keys()).cloned().collect();
    let (prefix, tensors) = without_prefix(tensors, skip, &mut forms, |prefix, theirs| {
        // A wrapper may call the model as the model calls a part of itself: `model.model.layers.0`.
        let without = |name: &String| known.contains(&name[prefix.len()..]);
        let is_of_model = known.iter().any(|name| name.starts_with(prefix));
        is_of_model && !theirs.keys().all(without)
    });
    check_patterns(skip, path, || {
        let of_file = forms.iter().map(String::as_str);
        of_file.chain(all.iter().map(|tensor| &*tensor.name))
    })?;
    let (skipped, ours): (Vec<_>, Vec<_>) = all.into_iter().partition(|tensor| {
        skip.fit(&tensor.name) || skip.fit(&format!("{prefix}{}", tensor.name))
    });
    let their_name = layout.names_in(&names);
    // The layout may have added one.
    let of_all = names.iter().all(|name| name.starts_with(&prefix));
    let of_all = if of_all { &*prefix } else { "" };
    let mismatch = mismatch(&ours, &tensors, of_all, &|name| match of_pytorch {
        true => their_name(name),
        false => name.to_string(),
    });
    if let Some(mismatch) = mismatch {
        if of_pytorch {
            refuse_others(path, &names, skip, layout)?;
        }
        let shared = match of_all.escape_debug().to_string() {
            none if none.is_empty() => none,
            all => format!("\n  (all names in the file begin with `{all}`)"),
        };
        let (mismatch, problems) = match of_pytorch && path.is_dir() {
            true => stated::with_contradictions(mismatch, path, layout, &folder::read(path)?),
            false => mismatch,
        };
        return Err(TrainError::Weights {
            path: path.to_path_buf(),
            mismatch,
            problems: problems + &shared,
        });
    }
    let read = tensors.into_iter().filter(|(name, _)| !is_count(name));
    let wrong_numbers = finite::WrongNumbers::default();
    let read = read.map(|(name, tensor)| (name, finite::checked(tensor, &wrong_numbers)));
    Ok(Fitting {
        tensors: read.collect(),
        skipped: skipped.into_iter().map(|tensor| tensor.name).collect(),
        of_pytorch,
        wrong_numbers,
    })
}

/// Refuses files that cannot be the model's whatever its size: factors of PEFT, one of several files, another library's.
fn refuse_others(
    path: &Path,
    names: &[String],
    skip: &Patterns,
    layout: &StateDictLayout,
) -> Result<(), TrainError> {
    let is_factor = |name: &String| name.contains(".lora_A.") && !skip.fit(name);
    if names.iter().any(is_factor) {
        return Err(unread(path, &file::WRAPPED_BY_PEFT));
    }
    if let Some(index) = folder::index_of(path) {
        let reason = format!(
            "it is one of several files of weights: name their folder, or {}, which says what is in which",
            index.display().to_string().escape_debug()
        );
        return Err(unread(path, &reason));
    }
    if file::is_part(path) {
        let reason = "it is one of several files of weights, by its name, and no index is beside it, which says what is in \
                      which: copy model.safetensors.index.json, too, and name the folder";
        return Err(unread(path, &reason));
    }
    match layout.other_library(names) {
        Some(what) => Err(unread(path, &what)),
        None => Ok(()),
    }
}

/// The names of the model's tensors that [`load_state_dict_except`] would leave as they are, for the same arguments. No
/// tensor is read.
///
/// # Errors
/// As [`load_state_dict_except`].
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::train::{Patterns, StateDictLayout, missing_keys, save_state_dict};
///
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("weights.safetensors");
/// let model = LinearConfig::new(3, 2).init(&Device::flex());
/// save_state_dict(&model, 0, &path).unwrap();
/// let (skip, layout) = (Patterns::from("bias"), StateDictLayout::default());
/// assert_eq!(missing_keys(&model, &path, &skip, &layout).unwrap(), ["bias"]);
/// ```
pub fn missing_keys<M: Module>(
    model: &M,
    path: &Path,
    skip: &Patterns,
    layout: &StateDictLayout,
) -> Result<Vec<String>, TrainError> {
    Ok(fitting_tensors(model, path, skip, layout)?.skipped)
}

/// The shapes of the tensors at `path` by the names that `layout` gives them, for a model whose sizes are not known yet. No
/// tensor is read. A first part of the path that all names have stays, but for what PyTorch's wrappers add.
///
/// # Errors
/// [`TrainError::File`] if the file cannot be read.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::train::{StateDictLayout, save_state_dict, state_dict_shapes};
///
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("weights.pt");
/// save_state_dict(&LinearConfig::new(3, 2).init(&Device::flex()), 0, &path).unwrap();
/// let shapes = state_dict_shapes(&path, &StateDictLayout::default()).unwrap();
/// assert_eq!(shapes["weight"], [2, 3]);
/// ```
pub fn state_dict_shapes(
    path: &Path,
    layout: &StateDictLayout,
) -> Result<BTreeMap<String, Vec<usize>>, TrainError> {
    file::refuse_plain_folder(path)?;
    let tensors = layout.arrange(folder::read(path)?).into_iter();
    Ok(tensors
        .map(|(name, tensor)| (name, tensor.shape.to_vec()))
        .collect())
}

/// The names that a model's parameters and running statistics have in PyTorch.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::train::state_dict_names;
///
/// let model = LinearConfig::new(3, 2).init(&Device::flex());
/// assert_eq!(state_dict_names(&model), ["weight", "bias"]);
/// ```
pub fn state_dict_names<M: Module>(model: &M) -> Vec<String> {
    let tensors = in_pytorch_terms(model).into_iter();
    tensors.map(|tensor| tensor.name).collect()
}

/// The model's tensors as PyTorch would have them. None is read from its device yet.
pub(super) fn in_pytorch_terms<M: Module>(model: &M) -> Vec<PackedTensor> {
    model.collect(None, Some(Box::new(BurnToPyTorchAdapter)), true)
}

fn is_count(name: &str) -> bool {
    name.rsplit('.').next() == Some(BATCHES)
}

fn safetensors(tensors: &[NamedTensor]) -> Result<Vec<u8>, String> {
    // By this, Hugging Face's libraries know whose names and layouts these are.
    let format = ("format".to_string(), "pt".to_string());
    tensor_file::write(tensors, &[format].into())
}
