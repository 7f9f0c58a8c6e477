//! Tensors that are in a file under other names, transposed or joined to others.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::prelude::*;
use burn::store::bridge;
use burn::store::burn_pack::Tensor as PackedTensor;
use burn::tensor::{DType, TensorData};

use super::finite::require_finite;
use super::stated::StatedSize;
use crate::checkpoint::tensor_file::NamedTensor;
use crate::config::parameter_groups::Patterns;

/// How a model's tensors are in files of another library, where that is not as [`load_state_dict`] expects.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{StateDictLayout, TensorSource};
///
/// // Two linear layers that the file has as one, as [in, out].
/// let part = |name: &str, index| TensorSource {
///     name: format!("{name}.weight"),
///     source: "net.both.weight".to_string(),
///     transposed: true,
///     part: Some((index, 2)),
/// };
/// let layout = StateDictLayout {
///     prefix: "net.".to_string(),
///     tensors: vec![part("first", 0), part("second", 1)],
///     ignored: vec!["net.mask".to_string()],
///     ..StateDictLayout::default()
/// };
/// assert_eq!(layout.tensors.len(), 2);
/// ```
///
/// [`load_state_dict`]: crate::load_state_dict
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateDictLayout {
    /// What is before all names, and is missing in files of the model without its head.
    pub prefix: String,
    /// The place of each tensor of the model; empty if all have the names of the model.
    pub tensors: Vec<TensorSource>,
    /// Patterns of names in the file that are no parameters of the model: masks, copies of tied weights.
    pub ignored: Vec<String>,
    /// How names of copies of tied weights end, and those of what they are copies of. A file in which they differ is
    /// refused.
    pub copies: &'static [(&'static str, &'static str)],
    /// The setting, with its value, of a model whose head is no such copy; `None` if there is no such model.
    pub own_head: Option<&'static str>,
    /// Parts of names in files of other versions of the library, and what they are in those of this layout.
    pub renamed: Vec<(String, String)>,
    /// Patterns of names in files of other libraries, and why such a file is not read.
    pub other_libraries: &'static [(&'static str, &'static str)],
    /// Sizes that the `config.json` beside the file states too.
    pub sizes: &'static [StatedSize],
    /// Settings of the model that no tensor's shape shows, by their keys in `config.toml`, with the model's values: weights
    /// fit another one too, and the results are wrong.
    pub unshown: Vec<(String, String)>,
    /// How the model reads its input where no setting says it ([`Task::fixed_input`](crate::Task::fixed_input)).
    pub fixed_input: Option<&'static str>,
}

/// Where a tensor of a model is in a file.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::TensorSource;
///
/// // The model's `fc.weight` is `linear.weight` of the file, transposed.
/// let source = TensorSource {
///     name: "fc.weight".into(),
///     source: "linear.weight".into(),
///     transposed: true,
///     part: None,
/// };
/// assert!(source.transposed);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSource {
    /// Its name in a state dict of the model.
    pub name: String,
    /// The name of the file's tensor that has it.
    pub source: String,
    /// Whether the file has it as `[in, out]`.
    pub transposed: bool,
    /// Which part of how many equal ones it is, along its first dimension; the whole tensor if absent.
    pub part: Option<(usize, usize)>,
}

impl StateDictLayout {
    /// The tensors of a file by the names of the model, none of them read yet. A file that has the model's own names
    /// stays as it is.
    pub(super) fn arrange(
        &self,
        mut theirs: BTreeMap<String, PackedTensor>,
    ) -> BTreeMap<String, PackedTensor> {
        let mut own = self.tensors.iter();
        if !self.tensors.is_empty() && own.all(|tensor| theirs.contains_key(&tensor.name)) {
            return theirs;
        }
        let prefix = self.prefix_missing(theirs.keys());
        if !(prefix.is_empty() && self.renamed.is_empty()) {
            let named = theirs.into_iter().map(|(name, tensor)| {
                renamed(self.in_this_version(&format!("{prefix}{name}")), tensor)
            });
            theirs = named.collect();
        }
        let ignored = |name: &str| {
            let fits = |pattern: &String| Patterns::from(pattern.as_str()).fit(name);
            self.ignored.iter().any(fits)
        };
        theirs.retain(|name, _| !ignored(name));
        let mut arranged = BTreeMap::new();
        for tensor in &self.tensors {
            if let Some(source) = theirs.get(&tensor.source) {
                arranged.insert(tensor.name.clone(), tensor.of(source));
            }
        }
        // What is left is the model's by its own name, or nobody's, which is told then.
        theirs.retain(|name, _| !self.is_source(name));
        arranged.extend(theirs);
        arranged
    }

    /// The prefix, if none of a file's names has it.
    fn prefix_missing<'a>(&self, mut names: impl Iterator<Item = &'a String>) -> &str {
        // In the files of a Lightning module, another name comes before it.
        let nested = format!(".{}", self.prefix);
        match names.any(|name| name.starts_with(&self.prefix) || name.contains(&nested)) {
            true => "",
            false => &self.prefix,
        }
    }

    /// A name of another version as this layout has it.
    pub(super) fn in_this_version(&self, name: &str) -> String {
        let parts = self.renamed.iter();
        parts.fold(name.to_owned(), |name, (theirs, ours)| {
            name.replace(theirs, ours)
        })
    }

    /// What a file with these names calls a tensor, and that name, where it is the model's.
    pub(super) fn names_in<'a>(&'a self, names: &'a [String]) -> impl Fn(&str) -> String + 'a {
        // Single names are the same in other libraries: most are those of the layout.
        let of_layout = names.iter().filter(|their| self.is_of_file(their));
        let of_layout = of_layout.count();
        let is_of_file = of_layout > 0 && 2 * of_layout >= names.len();
        let prefix = self.prefix_missing(names.iter());
        let arranged = |their: &String| self.in_this_version(&format!("{prefix}{their}"));
        let theirs = names.iter().map(|their| (arranged(their), their));
        let theirs: BTreeMap<String, &String> = theirs.collect();
        move |name| {
            let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
            match tensor.filter(|_| is_of_file) {
                Some(tensor) if tensor.source != name => {
                    format!("{} (here {name})", tensor.source)
                }
                Some(_) => name.to_string(),
                None => theirs
                    .get(name)
                    .map_or(name, |their| their.as_str())
                    .to_string(),
            }
        }
    }

    /// What a file with these names is, if it is of a library that calls tensors otherwise.
    pub(super) fn other_library(&self, names: &[String]) -> Option<&'static str> {
        let mut others = self.other_libraries.iter();
        let has = |pattern: &str| names.iter().any(|name| Patterns::from(pattern).fit(name));
        others.find_map(|(pattern, what)| has(pattern).then_some(*what))
    }

    /// Whether a file with this name has the names of the layout.
    pub(super) fn is_of_file(&self, name: &str) -> bool {
        self.is_source(name) || self.is_source(&format!("{}{name}", self.prefix))
    }

    fn is_source(&self, name: &str) -> bool {
        self.tensors.iter().any(|tensor| tensor.source == name)
    }

    /// The tensors of a model as the file has them.
    ///
    /// # Errors
    /// If tensors that are to be one do not fit together.
    pub(super) fn restore(&self, tensors: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, String> {
        let mut own = tensors.into_iter().collect::<BTreeMap<_, _>>();
        let mut restored: Vec<NamedTensor> = Vec::new();
        for tensor in &self.tensors {
            let data = own.remove(&tensor.name);
            let data = data.ok_or_else(|| format!("the model has no tensor {}", tensor.name))?;
            let data = match (tensor.transposed, data.shape().num_dims()) {
                (true, 2) => matrix(data).transpose().into_data(),
                _ => data,
            };
            match restored.last_mut() {
                Some((name, before)) if *name == tensor.source => {
                    *before = joined(before.clone(), data, tensor.transposed)?;
                }
                _ => restored.push((tensor.source.clone(), data)),
            }
        }
        restored.extend(own);
        Ok(restored)
    }
}

impl TensorSource {
    /// The tensor, read when it is asked for, of the file's.
    fn of(&self, source: &PackedTensor) -> PackedTensor {
        if !source.dtype.is_float() {
            return renamed(self.name.clone(), source.clone()).1;
        }
        let mut shape = source.shape.to_vec();
        let transposed = self.transposed && shape.len() == 2;
        if transposed {
            shape.swap(0, 1);
        }
        let mut rows = 0..shape.first().copied().unwrap_or(0);
        if let (Some((index, parts)), [first, ..]) = (self.part, &mut shape[..])
            && first.is_multiple_of(parts)
        {
            *first /= parts;
            rows = index * *first..(index + 1) * *first;
        }
        let source = source.clone();
        let numbers = move || {
            let data = bridge::into_data(source.clone())?;
            if data.dtype() == DType::F64 {
                // What is above the range of f32 is infinite from here on.
                require_finite(&data, &source.name)?;
            }
            Ok(part(data.convert::<f32>(), transposed, rows.clone()))
        };
        let shape = Shape::from(shape);
        bridge::deferred(self.name.clone(), DType::F32, shape, None, numbers)
    }
}

/// These rows of a tensor, which is transposed before.
fn part(data: TensorData, transposed: bool, rows: Range<usize>) -> TensorData {
    match data.shape().num_dims() {
        1 => vector(data).slice_dim(0, rows).into_data(),
        2 if transposed => matrix(data).slice_dim(1, rows).transpose().into_data(),
        2 => matrix(data).slice_dim(0, rows).into_data(),
        _ => data,
    }
}

/// Two tensors after each other, in the file's layout.
fn joined(first: TensorData, second: TensorData, transposed: bool) -> Result<TensorData, String> {
    let along = match (first.shape().num_dims(), second.shape().num_dims()) {
        (1, 1) => return Ok(Tensor::cat([first, second].map(vector).to_vec(), 0).into_data()),
        (2, 2) if transposed => 1,
        (2, 2) => 0,
        _ => {
            return Err(format!(
                "{:?} and {:?} cannot be one tensor",
                first.shape(),
                second.shape()
            ));
        }
    };
    if first.shape()[1 - along] != second.shape()[1 - along] {
        return Err(format!(
            "{:?} and {:?} cannot be one tensor",
            first.shape(),
            second.shape()
        ));
    }
    Ok(Tensor::cat([first, second].map(matrix).to_vec(), along).into_data())
}

fn vector(data: TensorData) -> Tensor<1> {
    Tensor::from_data(data, &Device::flex())
}

fn matrix(data: TensorData) -> Tensor<2> {
    Tensor::from_data(data, &Device::flex())
}

fn renamed(name: String, mut tensor: PackedTensor) -> (String, PackedTensor) {
    tensor.name.clone_from(&name);
    (name, tensor)
}

#[cfg(test)]
mod tests;
