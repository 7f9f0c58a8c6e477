//! `adapter.safetensors`: what low-rank adaptation has learned, beside the weights; and the same as Hugging Face's PEFT
//! reads it.
//!
//! Here a layer computes `x W + scale x A B` with `W [in, out]`, `A [in, rank]` and `B [rank, out]`. PEFT has the linear
//! layers of PyTorch: `lora_A [rank, in]` and `lora_B [out, rank]`, which are `A` and `B` transposed. Where its model has
//! several of our layers as one (`c_attn` of GPT-2 has queries, keys and values), their factors become one pair: the `A` below
//! each other, the `B` in blocks, each in the rows of its layer and the columns of its `A`.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use serde_json::{Map, Value, json};

use crate::checkpoint::state_dict::{StateDictLayout, write_folder};
use crate::checkpoint::tensor_file::{self, NamedTensor};
use crate::checkpoint::weights::require_newest;
use crate::config::lora::LoraConfig;
use crate::error::TrainError;
use crate::record::run_directory::{RunDirectory, unread, write_file, write_output};

/// The ends of the paths of factors, behind the path of their weight.
const ENDS: [&str; 2] = [".lora.a", ".lora.b"];

/// The largest file that is read: the factors of the largest models have some GB.
const LARGEST_FILE: u64 = 16 << 30;

/// Layers that are no linear ones in transformers: PEFT stores their factors otherwise.
const EMBEDDINGS: [&str; 3] = ["wte", "wpe", "embed_tokens"];

/// The factors of low-rank adaptation that a model has, by the path of their weight: see [`LoraConfig`].
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::train::{Adapter, LoraConfig};
///
/// let lora: LoraConfig = toml::from_str("rank = 2\ntargets = 'weight'").unwrap();
/// let model = LinearConfig::new(8, 4).init(&Device::flex());
/// let adapter = Adapter::of(&lora.adapt(model).unwrap());
/// assert_eq!(adapter.weights().collect::<Vec<_>>(), ["weight"]);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Adapter {
    /// By the path of the weight: `[in, rank]` and `[rank, out]`.
    factors: BTreeMap<String, [TensorData; 2]>,
}

impl Adapter {
    /// The factors that a model has; none, if it is not adapted.
    pub fn of<M: Module>(model: &M) -> Self {
        let mut collect = Collect::default();
        model.visit(&mut collect);
        Self::of_named(collect.found).unwrap_or_default()
    }

    /// The paths of the weights that have factors.
    pub fn weights(&self) -> impl Iterator<Item = &str> {
        self.factors.keys().map(String::as_str)
    }

    fn of_named(named: Vec<NamedTensor>) -> Result<Self, String> {
        let mut all = named.into_iter().collect::<BTreeMap<_, _>>();
        let mut factors = BTreeMap::new();
        while let Some((name, first)) = all.pop_first() {
            let alone = || format!("{name} is not one of two factors");
            let weight = name.strip_suffix(ENDS[0]).ok_or_else(alone)?;
            let second = all.remove(&format!("{weight}{}", ENDS[1]));
            let pair = [first, second.ok_or_else(alone)?];
            let [a, b] = pair.each_ref().map(|factor| factor.shape().to_vec());
            if a.len() != 2 || b.len() != 2 || a[1] != b[0] {
                return Err(format!("{weight} has factors of shapes {a:?} and {b:?}"));
            }
            factors.insert(weight.to_string(), pair);
        }
        Ok(Self { factors })
    }

    /// The factors as a file has them.
    ///
    /// # Errors
    /// If numbers have a type that files have not.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let named = self.factors.iter().flat_map(|(weight, pair)| {
            let named = ENDS.into_iter().zip(pair);
            named.map(move |(end, factor)| (format!("{weight}{end}"), factor.clone()))
        });
        tensor_file::write(&named.collect::<Vec<_>>(), &BTreeMap::new())
    }

    /// Those of a run that has ended.
    ///
    /// # Errors
    /// [`TrainError::File`] if there are none, or the file is damaged.
    pub fn read(run: &RunDirectory) -> Result<Self, TrainError> {
        let path = run.adapter_path();
        require_newest(run, &path)?;
        let failed = |reason: String| unread(&path, &reason);
        let size = std::fs::metadata(&path).map_err(|_| {
            failed(
                "the run has no adapter: it was trained without `training.lora.rank`, or has not ended; `checkpoint = best`, \
                 or the number of an epoch, takes the factors of a checkpoint"
                    .to_string(),
            )
        })?;
        if size.len() > LARGEST_FILE {
            return Err(failed(format!("it has {} bytes", size.len())));
        }
        let bytes = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
        let tensors = tensor_file::read(&bytes).map_err(failed)?;
        let tensors = tensors
            .iter()
            .map(|view| (view.name.clone(), view.to_data()));
        Self::of_named(tensors.collect()).map_err(failed)
    }

    /// Writes a folder, which is made, as PEFT reads it: `adapter_model.safetensors` and `adapter_config.json`. The
    /// model's tensors are called as `layout` says; `task` is PEFT's name for what the model does, such as `CAUSAL_LM`, and
    /// `None` for a classifier of images; `base` is where the weights that were adapted came from, if that is known.
    ///
    /// # Errors
    /// [`TrainError::File`] if there is something at `folder`, [`TrainError::Write`] if it cannot be written, and [`TrainError::Config`] if
    /// there are no factors, or PEFT has none like them.
    pub fn save_peft(
        &self,
        lora: &LoraConfig,
        layout: &StateDictLayout,
        task: Option<&str>,
        base: Option<&Path>,
        folder: &Path,
    ) -> Result<(), TrainError> {
        let (tensors, config) = self.peft(lora, layout, task, base)?;
        let bytes = tensor_file::write(&tensors, &[("format".into(), "pt".into())].into());
        let bytes = bytes.map_err(|reason| TrainError::write(folder, reason))?;
        let json = format!("{config:#}\n").into_bytes();
        write_folder(folder, |written| {
            write_output(&written.join("adapter_model.safetensors"), &bytes)?;
            write_output(&written.join("adapter_config.json"), &json)
        })
    }

    /// The tensors by PEFT's names, and its configuration.
    fn peft(
        &self,
        lora: &LoraConfig,
        layout: &StateDictLayout,
        task: Option<&str>,
        base: Option<&Path>,
    ) -> Result<(Vec<NamedTensor>, Value), TrainError> {
        let refuse = |message: String| Err(TrainError::Config(message));
        let (mut layers, mut any_transposed) = (BTreeMap::<String, Vec<Part>>::new(), false);
        for (weight, pair) in &self.factors {
            let source = layout.tensors.iter().find(|tensor| tensor.name == *weight);
            let name = source.map_or(weight.as_str(), |source| source.source.as_str());
            let layer = name.strip_suffix(".weight").unwrap_or(name);
            if layer.split('.').any(|part| EMBEDDINGS.contains(&part)) {
                return refuse(format!(
                    "{weight} is not a linear layer in transformers, so PEFT has no adapter for it; export the merged model by \
                     `save_pretrained`"
                ));
            }
            any_transposed |= source.is_some_and(|source| source.transposed);
            let (index, count) = source.and_then(|source| source.part).unwrap_or((0, 1));
            let parts = layers.entry(layer.to_string()).or_default();
            parts.push(Part { index, count, pair });
        }
        let Some(first) = layers.values().next() else {
            return refuse("there are no factors: no weight was adapted".to_string());
        };
        let scale = lora.alpha() / lora.rank as f64;
        let rank_of = |parts: &[Part]| parts.iter().map(Part::rank).sum::<usize>();
        let alpha_of = |rank: usize| whole(scale * rank as f64);
        let rank = rank_of(first);
        let (mut ranks, mut alphas) = (Map::new(), Map::new());
        let mut tensors = Vec::new();
        for (layer, parts) in &layers {
            let own = rank_of(parts);
            if own != rank {
                ranks.insert(layer.clone(), json!(own));
                alphas.insert(layer.clone(), alpha_of(own));
            }
            for (name, factor) in ["lora_A", "lora_B"].into_iter().zip(joined(parts)) {
                tensors.push((format!("base_model.model.{layer}.{name}.weight"), factor));
            }
        }
        let config = json!({
            "peft_type": "LORA",
            "task_type": task,
            "base_model_name_or_path": base.map(|base| base.display().to_string()),
            "r": rank,
            "lora_alpha": alpha_of(rank),
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": any_transposed,
            "target_modules": layers.keys().collect::<Vec<_>>(),
            "rank_pattern": ranks,
            "alpha_pattern": alphas,
            "modules_to_save": null,
            "use_rslora": false,
            "use_dora": false,
            "init_lora_weights": true,
            "inference_mode": true,
        });
        Ok((tensors, config))
    }
}

/// Writes a run's `adapter.safetensors`, if there is an adapter.
pub(crate) fn write_adapter(
    adapter: Option<&Adapter>,
    run: &RunDirectory,
) -> Result<(), TrainError> {
    let Some(adapter) = adapter else {
        return Ok(());
    };
    let path = run.adapter_path();
    let bytes = adapter.to_bytes();
    let bytes = bytes.map_err(|reason| TrainError::write(&path, reason))?;
    write_file(&path, &bytes)
}

/// A number without a point if it is a whole one: PEFT expects such.
fn whole(number: f64) -> Value {
    match number.fract() == 0.0 && number.abs() < 1e9 {
        true => json!(number as i64),
        false => json!(number),
    }
}

/// The factors of a layer, which is one of `count` equal parts of PEFT's layer.
struct Part<'a> {
    index: usize,
    count: usize,
    pair: &'a [TensorData; 2],
}

impl Part<'_> {
    fn rank(&self) -> usize {
        self.pair[0].shape()[1]
    }
}

/// The factors of PEFT's layer: `[ranks, in]` and `[count * out, ranks]`.
fn joined(parts: &[Part]) -> [TensorData; 2] {
    let device = Device::flex();
    let matrix = |data: &TensorData| Tensor::<2>::from_data(data.clone().convert::<f32>(), &device);
    let first = parts.iter().map(|part| matrix(&part.pair[0]).transpose());
    let second = parts.iter().map(|part| {
        let b = matrix(&part.pair[1]).transpose(); // [out, rank]
        let [out, rank] = b.dims();
        let zeros = |parts: usize| Tensor::zeros([parts * out, rank], &device);
        let rows = [
            (part.index > 0).then(|| zeros(part.index)),
            Some(b),
            (part.index + 1 < part.count).then(|| zeros(part.count - part.index - 1)),
        ];
        Tensor::cat(rows.into_iter().flatten().collect(), 0)
    });
    [
        Tensor::cat(first.collect(), 0).into_data(),
        Tensor::cat(second.collect(), 1).into_data(),
    ]
}

/// Collects factors with their paths.
#[derive(Default)]
struct Collect {
    path: Vec<String>,
    found: Vec<NamedTensor>,
}

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        if ENDS.iter().any(|end| path.ends_with(end)) {
            self.found.push((path, param.val().into_data()));
        }
    }

    everburn_nn::walking! { path }
}

#[cfg(test)]
mod tests;
