//! What `tests/parity/make_golden.py` has left: PyTorch's losses and norms of gradients, and how to make the same
//! weights and samples from integers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::store::{BurnToPyTorchAdapter, ModuleSnapshot, PyTorchToBurnAdapter, bridge};
use burn::tensor::TensorData;
use everburn_datasets::{ImageItem, TextItem};
use everburn_distributed::{DistributedSampler, SamplerConfig, Tail};
use everburn_train::{OptimizerConfig, OptimizerKind};
use serde::Deserialize;

/// How many steps a curve has.
pub const STEPS: usize = 100;

/// The streams of samples; those of tensors count from 0.
const PIXELS: u64 = 1000;
const LABELS: u64 = 1001;
const TOKENS: u64 = 1002;

/// A file of `tests/parity/golden`.
#[derive(Debug, Clone, Deserialize)]
pub struct Golden {
    pub batch: usize,
    pub optimizer: Optimizer,
    pub state: Vec<FirstTensor>,
    pub losses: Losses,
    pub gradient_norms: Norms,
}

/// By PyTorch's name of a parameter that learns: the norm of its gradient at steps 0 and 1.
pub type Norms = BTreeMap<String, [f64; 2]>;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    kind: OptimizerKind,
    learning_rate: f64,
    #[serde(default)]
    momentum: f64,
    #[serde(default)]
    weight_decay: f64,
}

/// A tensor of a state dict before the first step.
#[derive(Debug, Clone, Deserialize)]
pub struct FirstTensor {
    name: String,
    shape: Vec<usize>,
    stream: u64,
    middle: f64,
    reach: f64,
}

/// The mean loss of each global batch, by the number of ranks of `DistributedDataParallel`; one curve for
/// all numbers where there is batch norm (the script says why).
#[derive(Debug, Clone, Deserialize)]
pub struct Losses {
    #[serde(rename = "1")]
    one: Vec<f64>,
    #[serde(rename = "2")]
    two: Option<Vec<f64>>,
    #[serde(rename = "4")]
    four: Option<Vec<f64>>,
}

/// `tests/parity` of the workspace.
pub fn parity_folder() -> PathBuf {
    std::path::absolute("../../tests/parity").unwrap()
}

impl Golden {
    /// Reads `tests/parity/golden/<case>.json`.
    pub fn read(case: &str) -> Self {
        let path = parity_folder().join(format!("golden/{case}.json"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub fn losses_of(&self, world_size: usize) -> &[f64] {
        let losses = match world_size {
            1 => &self.losses.one,
            2 => self.losses.two.as_ref().unwrap_or(&self.losses.one),
            4 => self.losses.four.as_ref().unwrap_or(&self.losses.one),
            _ => panic!("no curve of {world_size} ranks"),
        };
        assert_eq!(losses.len(), STEPS);
        losses
    }

    pub fn optimizer(&self) -> OptimizerConfig {
        let Optimizer {
            kind,
            learning_rate,
            momentum,
            weight_decay,
        } = self.optimizer;
        OptimizerConfig {
            kind,
            learning_rate,
            momentum: Some(momentum),
            weight_decay,
            ..OptimizerConfig::default()
        }
    }

    /// The model with PyTorch's first weights, by PyTorch's names and in its layouts.
    pub fn initialised<M: Module>(&self, mut model: M) -> M {
        let tensors = self.state.iter().map(|tensor| {
            let data = TensorData::new(tensor.values(), tensor.shape.clone());
            bridge::from_data(data, tensor.name.clone(), None)
        });
        let adapter = Box::new(PyTorchToBurnAdapter);
        let result = model.apply(tensors.collect(), None, Some(adapter), false);
        assert!(result.errors.is_empty(), "{:?}", result.errors);
        assert!(result.missing.is_empty(), "{:?}", result.missing);
        assert!(result.unused.is_empty(), "{:?}", result.unused);
        model
    }
}

/// The numbers of a model's parameters and running statistics, by PyTorch's names and in its layouts.
pub fn numbers_of<M: Module>(model: &M) -> BTreeMap<String, Vec<f32>> {
    let tensors = model.collect(None, Some(Box::new(BurnToPyTorchAdapter)), true);
    let tensors = tensors.into_iter().map(|tensor| {
        let name = tensor.name.clone();
        let data = bridge::into_data(tensor).unwrap();
        (name, data.try_into_vec().unwrap())
    });
    tensors.collect()
}

/// Samples, made when they are read: a training of few steps makes few.
pub struct Samples<I> {
    pub sample: fn(u64) -> I,
    /// Which of them is at each place.
    pub numbers: Vec<u64>,
}

impl<I: Clone + Send + Sync + 'static> Samples<I> {
    /// What the trainer is given, so that it reads the samples from `first` on one after the other in spite of its
    /// shuffle by `seed`.
    pub fn in_order_of(seed: u64, batch: usize, first: u64, sample: fn(u64) -> I) -> Self {
        let count = STEPS * batch;
        let config = SamplerConfig {
            num_samples: count,
            batch_size: batch,
            shuffle: Some(seed),
            tail: Tail::Keep,
        };
        let sampler = DistributedSampler::new(config, 0, 1).unwrap();
        let mut numbers = vec![0; count];
        for (number, place) in (first..).zip(sampler.permutation(1)) {
            numbers[place] = number;
        }
        Self { sample, numbers }
    }
}

impl<I: Clone + Send + Sync> Dataset<I> for Samples<I> {
    fn get(&self, index: usize) -> Result<I, DatasetError> {
        Ok((self.sample)(self.numbers[index]))
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }
}

impl FirstTensor {
    fn values(&self) -> Vec<f32> {
        let count: usize = self.shape.iter().product();
        let value = |index| self.middle + self.reach * (2.0 * uniform(self.stream, index) - 1.0);
        (0..count as u64).map(|index| value(index) as f32).collect()
    }
}

/// SplitMix64 (Steele et al. 2014) at place `index` of a stream.
fn integer(stream: u64, index: u64) -> u64 {
    let z = stream.wrapping_mul(0xD134_2543_DE82_EF95);
    let z = z.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// In `[0, 1)`, a multiple of 2^-24.
fn uniform(stream: u64, index: u64) -> f64 {
    (integer(stream, index) >> 40) as f64 / f64::from(1 << 24)
}

/// Image `n`: stripes in a direction for each class, under noise.
pub fn digit(n: u64) -> ImageItem {
    let label = integer(LABELS, n) % 10;
    let pixel = |pixel: u64| {
        let (row, column) = (pixel / 28, pixel % 28);
        let noise = integer(PIXELS, n * 784 + pixel) % 128;
        let stripe = (row * (label + 1) + column * (label * label + 1)) % 10 < 4;
        (noise + 127 * u64::from(stripe)) as u8
    };
    ImageItem {
        pixels: std::array::from_fn(|index| pixel(index as u64)),
        label: label as u8,
    }
}

/// Window `n`: tokens that go up by a stride, with some thrown in by chance.
pub fn text(n: u64, context: u64, vocabulary: u64) -> TextItem {
    let start = integer(TOKENS, n * 4096 + 4095);
    let stride = 1 + (start >> 32) % 3;
    let token = |place: u64| {
        let drawn = integer(TOKENS, n * 4096 + place);
        let by_chance = (drawn >> 32).is_multiple_of(8);
        match by_chance {
            true => drawn % vocabulary,
            false => (start % vocabulary + stride * place) % vocabulary,
        }
    };
    TextItem::new((0..=context).map(|place| token(place) as u32).collect())
}
