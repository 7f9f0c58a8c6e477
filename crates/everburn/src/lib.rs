//! Training on many devices with [Burn](burn).
//!
//! This is the crate to depend on; it is a façade over smaller ones:
//!
//! | module | what it is |
//! |---|---|
//! | [`collectives`] | stores, rendezvous, process groups: ranks exchange bytes |
//! | [`datasets`] | images in folders and tar shards, CIFAR, MNIST, tables, text |
//! | [`distributed`] | DDP, samplers and loaders on Burn tensors |
//! | [`models`], [`tasks`] | the models of the program `everburn`, and how they are trained |
//! | [`nn`] | `burn::nn` with faster layers on CPUs; modules that compute over several ranks |
//! | [`tensor`] | `burn::tensor` with faster activations on CPUs |
//! | [`pipeline`] | one model over several ranks, in stages |
//! | [`schedules`] | the actions of each rank of a pipeline, and how long they take |
//! | [`train`] | burn-train over ranks, checkpoints, run directories |
//! | [`nccl`] | the GPUs of a machine, and NCCL |
//! | [`profile`] | where the time of a step goes |
//! | [`launch`] | one process per rank, started, watched and ended together |
//! | [`devices`] | devices by name: `flex`, `cuda:0` |
//! | [`auth`] | the secret of a job; chains of entries and their signatures |
//! | [`kernels`] | where compiled GPU kernels are kept |
//!
//! The [`prelude`] has what a training program needs. A rank may be a process ([`launch::run`]) or a thread. Here two
//! threads sum a number:
//!
//! ```
//! use everburn::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ranks = ProcessGroup::over_threads(2, GroupOptions::default());
//! let workers = ranks.into_iter().map(|group| {
//!     std::thread::spawn(move || -> Result<f64, CollectiveError> {
//!         let mine = vec![group.rank() as f64 + 1.0];
//!         Ok(group.all_reduce(mine, ReduceOp::Sum).wait()?[0])
//!     })
//! });
//! for worker in workers.collect::<Vec<_>>() {
//!     assert_eq!(worker.join().unwrap()?, 3.0);
//! }
//! # Ok(())
//! # }
//! ```

pub mod tasks;

pub use burn;
pub use everburn_auth as auth;
pub use everburn_cli::{App, devices, kernels};
pub use everburn_collectives as collectives;
pub use everburn_datasets as datasets;
pub use everburn_distributed as distributed;
pub use everburn_launch as launch;
pub use everburn_models as models;
pub use everburn_nn as nn;
pub use everburn_nn::tensor;
pub use everburn_pipeline as pipeline;
pub use everburn_profile as profile;
pub use everburn_schedules as schedules;
pub use everburn_train as train;

/// The GPUs of a machine, and NCCL, which is found at run time: a backend of process groups, by which a
/// [`NcclCommunicator`](crate::distributed::NcclCommunicator) moves tensors.
pub mod nccl {
    pub use everburn_nccl::{
        ApiDriver, CudaVersion, DeviceBuffer, Gpu, GpuMemory, GpuReading, GpuSensor, Inventory,
        Library, LibraryError, LibraryPaths, MissingDriver, NCCL_VARIABLE, NcclBackend,
        NcclVersion, Status, Vendor, Work, api, drivers, find_library, gpu_uuid, gpus,
        nvidia_driver, nvrtc, vulkan_drivers,
    };
}

/// What a training program needs.
pub mod prelude {
    pub use everburn_cli::App;
    pub use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup, ReduceOp};
    pub use everburn_collectives::rendezvous::{Rendezvous, RendezvousRequest};
    pub use everburn_collectives::store::Store;
    pub use everburn_datasets::{ImageAugmentation, ImageFolder, RgbBatcher, RgbItem};
    pub use everburn_distributed::{
        Ddp, DdpConfig, DistributedLoader, DistributedSampler, SamplerConfig, Tail,
    };
    pub use everburn_launch::Rank;
    pub use everburn_train::{
        Classifier, EpochLines, Hook, HookError, LanguageModel, Loss, MetricLine, NoSettings,
        Predict, Predictor, Run, RunDirectory, Supervised, Task, TaskData, TaskError, TrainError,
        Trainer, TrainingConfig, TrainingData, TrainingReport, data_parallel,
    };
}

/// The README's program, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The page for those who come from PyTorch: its lines of Rust are compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/from-pytorch.md")]
pub struct FromPyTorch;

/// The page on a module of PyTorch, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/your-own-pytorch-module.md")]
pub struct YourOwnPyTorchModule;

/// The page on custom loops, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/own-loop.md")]
pub struct OwnLoop;

/// The page on your own images, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/images.md")]
pub struct YourOwnImages;

/// The page on your own data, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/your-own-data.md")]
pub struct YourOwnData;

/// The page on a model in another program, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/your-model-in-another-program.md")]
pub struct InAnotherProgram;

/// The page on optimizers, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/optimizers.md")]
pub struct Optimizers;

/// The page for those who come from burn-train, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/from-burn-train.md")]
pub struct FromBurnTrain;

/// The page on half precision, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/mixed-precision.md")]
pub struct MixedPrecision;
