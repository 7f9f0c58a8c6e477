//! Known numbers, computed on a GPU and on the processor, before anything is trained there.
//!
//! Drivers exist that compile generated kernels wrongly and say nothing: training continues, with gradients that are wrong
//! by orders of magnitude. So products, convolutions, norms and reductions run forward and backward on the GPU first, and
//! are compared with Burn's flex back end.

use std::fmt;
use std::path::{Path, PathBuf};

use burn::module::Param;
use burn::prelude::*;
use burn::tensor::activation::{gelu, log_softmax, relu};
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Int, TensorData, try_read_sync};
use everburn_distributed::{GpuDescription, describe_gpu, name_of};
use everburn_nn::{LayerNormConfig, argmax, causal_softmax, cross_entropy};
use everburn_record::file;
use sha2::{Digest, Sha256};

use crate::device::kernels::KernelCache;
use crate::error::TrainError;

/// How far a number may be from the processor's, as a part of the largest of its tensor: CubeCL may multiply in `tf32`,
/// of 11 significant binary digits.
const TOLERANCE: f64 = 1e-2;

/// What a device must compute as the processor does: outputs and gradients, in a fixed order.
struct Probe {
    what: &'static str,
    compute: fn(&Device) -> Vec<Tensor<1>>,
}

const PROBES: [Probe; 7] = [
    Probe {
        what: "a matrix product",
        compute: product,
    },
    Probe {
        what: "a convolution",
        compute: convolution,
    },
    Probe {
        what: "a norm over channels",
        compute: norm,
    },
    Probe {
        what: "an embedding with softmax",
        compute: softmax,
    },
    Probe {
        what: "sums over a long axis",
        compute: sums,
    },
    Probe {
        what: "attention's softmax, or layer norm",
        compute: rows,
    },
    Probe {
        what: "a loss of classes",
        compute: classes,
    },
];

/// A GPU whose numbers are not those of the processor.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::WrongNumbers;
///
/// fn show(wrong: &WrongNumbers) {
///     eprintln!("{}: {} is off by {:e}", wrong.device, wrong.what, wrong.apart);
/// }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct WrongNumbers {
    /// `vulkan:0 (name of the part, wgpu<spirv>)`.
    pub device: String,
    /// What was computed.
    pub what: String,
    /// The largest difference, as a part of the largest number; not a number where one of them was none.
    pub apart: f64,
}

impl fmt::Display for WrongNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} computes wrongly: {} is off by {:.1e} of its largest number (allowed: {TOLERANCE:.0e}). Update its driver, \
             or train on another device, such as `ranks.devices = flex`",
            self.device, self.what, self.apart
        )
    }
}

/// Checks that `device` has the CPU's results. What passed is noted in the folder of `kernels`, for this device,
/// driver and version of Everburn, and not computed again. Does nothing on the processor.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::Device;
/// use everburn::train::{KernelCache, verify_device};
///
/// verify_device(&Device::flex(), &KernelCache::Nowhere("an example".into()))?;
/// # Ok::<(), everburn_train::TrainError>(())
/// ```
///
/// # Errors
/// [`TrainError::WrongNumbers`] if it does not.
pub fn verify_device(device: &Device, kernels: &KernelCache) -> Result<(), TrainError> {
    let device = device.clone().inner();
    let Some(description) = describe_gpu(&device) else {
        return Ok(());
    };
    let name = name_of(&device);
    let note = match kernels {
        KernelCache::Folder(folder) => Some(Note::of(folder, &name, &description)),
        _ => None,
    };
    if note.as_ref().is_some_and(Note::is_there) {
        return Ok(());
    }
    let began = std::time::Instant::now();
    let called = format!("{name} ({}, {})", description.name, description.runtime);
    tracing::info!(
        "{called} is compared with the CPU first, once for each driver and version: the kernels for that are compiled for up \
         to a minute"
    );
    for probe in &PROBES {
        let here = numbers(&(probe.compute)(&Device::flex().autodiff()));
        let there = numbers(&(probe.compute)(&device.clone().autodiff()));
        let wrong = |apart| WrongNumbers {
            device: called.clone(),
            what: probe.what.to_string(),
            apart,
        };
        let (Ok(here), Ok(there)) = (here, there) else {
            return Err(TrainError::WrongNumbers(wrong(f64::NAN)));
        };
        let apart = worst(&here, &there);
        if apart.is_nan() || apart > TOLERANCE {
            return Err(TrainError::WrongNumbers(wrong(apart)));
        }
    }
    tracing::info!(
        "{called} has the CPU's results (checked in {:.1} s)",
        began.elapsed().as_secs_f64()
    );
    if let Some(note) = note {
        note.write();
    }
    Ok(())
}

/// The file that says that a device was checked.
struct Note {
    file: PathBuf,
    text: String,
}

impl Note {
    fn of(folder: &Path, name: &str, description: &GpuDescription) -> Self {
        let text = format!(
            "everburn {}\n{name}\n{}\n{}\n{}\n{}\n",
            env!("CARGO_PKG_VERSION"),
            description.name,
            description.runtime,
            description.fingerprint,
            drivers()
        );
        let digest = Sha256::digest(text.as_bytes());
        let short: String = digest
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let file = folder.join("checked").join(short);
        Self { file, text }
    }

    fn is_there(&self) -> bool {
        std::fs::read_to_string(&self.file).is_ok_and(|text| text == self.text)
    }

    /// That it cannot be written costs the next start some seconds, and nothing else.
    fn write(&self) {
        let written = match self.file.parent() {
            Some(folder) => std::fs::create_dir_all(folder)
                .and_then(|()| file::write(&self.file, self.text.as_bytes())),
            None => Ok(()),
        };
        if let Err(error) = written {
            tracing::debug!("{}: {error}", self.file.display());
        }
    }
}

/// What tells one version of the drivers from another, as far as the system says it in files.
fn drivers() -> String {
    let nvidia = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // A package of graphics drivers changes its manifests.
    let mut manifests = Vec::new();
    for folder in ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let changed = entry.metadata().and_then(|data| data.modified()).ok();
            let age = changed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            manifests.push(format!("{:?} {age:?}", entry.file_name()));
        }
    }
    manifests.sort();
    let named = std::env::var("VK_DRIVER_FILES").or_else(|_| std::env::var("VK_ICD_FILENAMES"));
    format!("{nvidia} {kernel} {manifests:?} {named:?}")
}

fn numbers(tensors: &[Tensor<1>]) -> Result<Vec<Vec<f64>>, String> {
    let read = |tensor: &Tensor<1>| match try_read_sync(tensor.clone().into_data_async()) {
        Some(Ok(data)) => Ok(data.iter::<f64>().collect()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("this platform cannot wait for a device".to_string()),
    };
    tensors.iter().map(read).collect()
}

/// The largest difference between tensors, each as a part of its largest number.
fn worst(here: &[Vec<f64>], there: &[Vec<f64>]) -> f64 {
    let mut worst = 0.0_f64;
    for (here, there) in here.iter().zip(there) {
        let largest = here.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
        for (one, other) in here.iter().zip(there) {
            let apart = (one - other).abs() / largest.max(f64::MIN_POSITIVE);
            if apart.is_nan() || here.len() != there.len() {
                return f64::NAN;
            }
            worst = worst.max(apart);
        }
    }
    worst
}

/// Numbers between -1 and 1 without a pattern that a wrong index would hide.
fn input<const D: usize>(shape: [usize; D], seed: u32, device: &Device) -> Tensor<D> {
    let numbers = (0..shape.iter().product::<usize>() as u32).map(|index| {
        let mixed = (index.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)).rotate_left(13);
        mixed.wrapping_mul(2_246_822_519) as f32 / u32::MAX as f32 * 2.0 - 1.0
    });
    Tensor::from_data(TensorData::new(numbers.collect::<Vec<_>>(), shape), device)
}

/// The output and the gradients of `inputs`, where the output's own gradient is no constant.
macro_rules! outcome {
    ($output:expr, $($input:expr),+) => {{
        let output = $output;
        let weights = input(output.dims(), 99, &output.device());
        let gradients = (output.clone() * weights).sum().backward();
        vec![
            flat(output.inner()),
            $(flat($input.grad(&gradients).expect("the input is part of the graph"))),+
        ]
    }};
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let length = tensor.dims().iter().product::<usize>();
    tensor.reshape([length])
}

fn product(device: &Device) -> Vec<Tensor<1>> {
    // Rows that end within a tile, and columns by four, as those of layers are: others take four times as long to compile.
    let a = input([2, 67, 128], 1, device).require_grad();
    let b = input([2, 128, 36], 2, device).require_grad();
    outcome!(relu(a.clone().matmul(b.clone())), a, b)
}

fn convolution(device: &Device) -> Vec<Tensor<1>> {
    let image = input([3, 4, 15, 17], 3, device).require_grad();
    let kernel = input([8, 4, 3, 3], 4, device).require_grad();
    let bias = input([8], 5, device).require_grad();
    let options = ConvOptions::new([2, 1], [1, 1], [1, 1], 1);
    let output = conv2d(image.clone(), kernel.clone(), Some(bias.clone()), options);
    let pooled = max_pool2d(relu(output), MaxPoolOptions::new([2, 2]));
    outcome!(pooled, image, kernel, bias)
}

fn norm(device: &Device) -> Vec<Tensor<1>> {
    let image = input([5, 6, 7, 9], 6, device).require_grad();
    let scale = input([1, 6, 1, 1], 7, device).require_grad();
    let mean = image.clone().mean_dim(0).mean_dim(2).mean_dim(3);
    let centred = image.clone() - mean;
    let variance = centred.clone().square().mean_dim(0).mean_dim(2).mean_dim(3);
    let normal = centred / (variance + 1e-5).sqrt();
    outcome!(gelu(normal * scale.clone()), image, scale)
}

fn softmax(device: &Device) -> Vec<Tensor<1>> {
    let table = input([37, 24], 8, device).require_grad();
    let rows: Vec<i64> = (0..40).map(|index| index * 11 % 37).collect();
    let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [40]), device);
    let logits = table.clone().select(0, rows);
    outcome!(log_softmax(logits, 1), table)
}

fn sums(device: &Device) -> Vec<Tensor<1>> {
    let long = input([3, 5003], 9, device).require_grad();
    let sum = long.clone().exp().sum_dim(1).sqrt();
    outcome!(sum, long)
}

/// By `everburn-nn`'s own kernels, which share rows among threads.
fn rows(device: &Device) -> Vec<Tensor<1>> {
    let scores = input([2, 3, 45, 45], 10, device).require_grad();
    let mut found = outcome!(causal_softmax(scores.clone(), 3.0), scores);
    let long = input([131, 300], 11, device).require_grad();
    let mut norm = LayerNormConfig::new(300).init(device);
    norm.gamma = Param::from_tensor(input([300], 12, device));
    let gamma = norm.gamma.val();
    let beta = norm.beta.as_ref().map(Param::val).expect("it has a bias");
    found.extend(outcome!(norm.forward(long.clone()), long, gamma, beta));
    found
}

/// A loss of rows that are longer than a cube has threads, and the classes that are most likely.
fn classes(device: &Device) -> Vec<Tensor<1>> {
    let logits = input([37, 601], 13, device).require_grad();
    let targets: Vec<i64> = (0..37).map(|index| index * 211 % 601).collect();
    let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [37]), device);
    let mut found = outcome!(cross_entropy(logits.clone() * 5.0, targets), logits);
    found.push(argmax(logits).inner().float());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_agrees_with_itself_and_every_probe_has_gradients() {
        let device = Device::flex().autodiff();
        for probe in &PROBES {
            let computed = numbers(&(probe.compute)(&device)).unwrap();
            assert!(computed.len() >= 2, "{}", probe.what);
            for numbers in &computed {
                assert!(
                    numbers.iter().any(|number| *number != 0.0),
                    "{}",
                    probe.what
                );
                assert!(
                    numbers.iter().all(|number| number.is_finite()),
                    "{}",
                    probe.what
                );
            }
            assert_eq!(worst(&computed, &computed), 0.0);
        }
    }

    #[test]
    fn a_wrong_number_anywhere_is_seen() {
        let right = vec![vec![1.0, -4.0], vec![0.5]];
        let mut wrong = right.clone();
        wrong[1][0] = 0.6;
        assert!((worst(&right, &wrong) - 0.2).abs() < 1e-9);
        wrong[0][1] = f64::NAN;
        assert!(worst(&right, &wrong).is_nan());
        assert!(worst(&right, &[vec![1.0], vec![0.5]]).is_nan());
        let error = WrongNumbers {
            device: "vulkan:0 (a part, wgpu<spirv>)".to_string(),
            what: "a convolution".to_string(),
            apart: 1200.0,
        };
        let text = error.to_string();
        assert!(
            text.starts_with("vulkan:0 (a part, wgpu<spirv>) computes wrongly: a convolution"),
            "{text}"
        );
    }

    #[test]
    fn what_was_checked_is_noted_for_one_device_and_driver() {
        let folder = tempfile::tempdir().unwrap();
        let description = |name: &str| GpuDescription {
            name: name.to_string(),
            memory_bytes: None,
            runtime: "wgpu<wgsl>",
            fingerprint: "spirv_1_2".to_string(),
        };
        let note = Note::of(folder.path(), "vulkan:0", &description("a part"));
        assert!(!note.is_there());
        note.write();
        assert!(note.is_there());
        assert!(!Note::of(folder.path(), "vulkan:0", &description("another part")).is_there());
        std::fs::write(&note.file, "damaged").unwrap();
        assert!(!note.is_there());
    }
}
