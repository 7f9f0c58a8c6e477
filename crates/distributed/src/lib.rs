//! Data parallelism on Burn tensors.
//!
//! - [`Ddp`] keeps the replicas of a model equal: it broadcasts rank 0's parameters where those of a rank differ, and averages
//!   gradients over the samples of all ranks. It accompanies the model and does not wrap it, so parameter paths never change.
//! - [`OuterLoop`] averages ranks that take many local steps: local SGD and DiLoCo.
//! - [`ParameterShards`] shards optimizer state, gradients and parameters: ZeRO.
//! - [`DistributedSampler`] splits the samples of each global batch over the ranks, equally or by [`RankWeights`].
//! - [`DistributedLoader`] reads them, on threads of its own if asked to ([`Prefetch`]); [`Resident`] keeps whole data
//!   sets on the device.
//! - [`synchronize_batch_norms`] computes the batch norms of a model over the samples of all ranks.
//! - [`tensor_parallel`] shards the linear layers of a model over ranks.
//! - [`all_gather_object`] exchanges objects of any type.
//! - [`DeviceCommunicator`] sums gradients on GPUs: by NCCL ([`NcclCommunicator`]), which also exchanges other tensors, or
//!   through host memory ([`HostCommunicator`]).
//!
//! A training step of a rank:
//!
//! ```
//! # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
//! use burn::nn::LinearConfig;
//! use burn::optim::SgdConfig;
//! use burn::prelude::*;
//! use everburn::collectives::group::{ProcessGroup, GroupOptions};
//! use everburn::distributed::{Ddp, DdpConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let groups = ProcessGroup::over_threads(2, GroupOptions::default());
//! let ranks = groups.into_iter().map(|group| {
//!     std::thread::spawn(move || -> Result<f32, everburn::distributed::DdpError> {
//!         let device = Device::flex().autodiff();
//!         let model = LinearConfig::new(3, 1).init(&device);
//!         let (ddp, model) = Ddp::new(model, group, DdpConfig::default())?;
//!         let mut optimizer = SgdConfig::new().init();
//!
//!         let samples = 1 + ddp.group().rank(); // ranks may have different numbers of samples
//!         let step = ddp.begin(samples)?;
//!         let watched = step.with_hooks(&model, samples);
//!         let loss = watched.forward(Tensor::<2>::ones([samples, 3], &device)).mean();
//!         drop(loss.backward()); // gradients leave while it runs
//!         let synced = step.finish(&model)?;
//!         assert_eq!(synced.samples, 3);
//!         let model = ddp.tie(optimizer.step(0.1, model, synced.gradients));
//!         ddp.verify_replicas(&model)?;
//!         Ok(model.weight.val().sum().into_scalar::<f32>())
//!     })
//! });
//! let sums = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap());
//! let sums = sums.collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(sums[0], sums[1]);
//! # Ok(())
//! # }
//! ```
//!
//! # For users of PyTorch's DDP
//!
//! | PyTorch | here |
//! |---|---|
//! | `DistributedDataParallel(model)` | [`Ddp::new`], which returns the model itself |
//! | hooks on the backward pass | [`Ddp::begin`], [`Synchronization::with_hooks`], [`Synchronization::finish`] |
//! | `no_sync()` | [`Synchronization::with_hooks_no_sync`] for all micro-batches but the last |
//! | mean over ranks | mean over samples: gradients are weighted by samples |
//! | `find_unused_parameters=True` | always; `static_graph=True` is [`DdpConfig::static_graph`] |
//! | `Join` for uneven inputs | take part without samples until [`DdpError::NoSamples`] |
//! | `clip_grad_norm_` | [`DdpConfig::max_gradient_norm`] |
//! | `broadcast_buffers` | [`Ddp::synchronize_buffers`], before validation and checkpoints |
//! | `register_comm_hook` | [`DdpConfig::communication`], [`Ddp::with_hook`] |
//! | `SyncBatchNorm.convert_sync_batchnorm` | [`synchronize_batch_norms`] |

mod batch_norm;
mod bucket;
mod buffers;
mod communication_hook;
mod config;
mod ddp;
mod device;
mod divergence;
mod error;
mod gradient;
mod gradient_hook;
mod host;
mod initial_state;
mod loader;
mod module_ranks;
mod objects;
mod outer_loop;
mod placement;
mod probe;
mod rank_buffers;
mod rank_weights;
mod reducer;
mod replicas;
mod resident;
mod sampler;
mod sharding;
mod shared;
mod synchronization;
mod tensor_parallel;
#[cfg(test)]
mod test_ranks;
mod ties;
mod virtual_ranks;
mod worker_timeout;

pub use batch_norm::synchronize_batch_norms;
pub use bucket::{Bucket, BucketEntry, BucketLimits, BucketPlan};
pub use buffers::Buffers;
pub use communication_hook::{
    AllReduce, Bf16, CommunicationHook, CommunicationHookConfig, Fp16, GradientBucket,
    ParameterSlot, PowerSgd,
};
pub use config::{BufferSync, DdpConfig};
pub use ddp::Ddp;
#[cfg(any(feature = "cuda", feature = "rocm"))]
pub use device::CubeMemory;
pub use device::{
    Abilities, Choice, Connector, DeviceCollective, DeviceCommunicator, DeviceMemory, DeviceName,
    DeviceUnavailable, GpuDescription, GradientBackend, HostCommunicator, Lent, NcclCommunicator,
    NcclWait, PendingTensor, UnknownDevice, describe_gpu, gpu_names, is_gpu, kernel_timer,
};
pub use divergence::{Divergence, find_divergence, first_of_majority, hash_of_parameters};
pub use error::DdpError;
pub use initial_state::{InitialValues, placeholders};
pub use loader::{
    Augment, BatchNumber, DistributedLoader, EpochBatches, InputError, MicroBatch, Prefetch,
    SampleRng, ShareOfBatch, Weigh,
};
pub use module_ranks::ModuleRanks;
pub use objects::{all_gather_object, find_different_text};
pub use outer_loop::{
    FragmentInFlight, OuterCompression, OuterConfig, OuterLoop, OuterOptimizer, OuterStep,
    OuterStream,
};
pub use placement::name_of;
pub use probe::Probe;
pub use rank_buffers::RankBuffers;
pub use rank_weights::RankWeights;
pub use replicas::Fingerprint;
pub use resident::{Resident, ResidentSet, Row, Rows};
pub use sampler::{DistributedSampler, SamplerConfig, SamplerError, Tail, share_of};
pub use sharding::{
    GradientShards, HeldBytes, LocalShards, ParameterShards, ShardStage, ShardedPass,
};
pub use synchronization::{
    Communication, GradientNorm, SyncedGradients, Synchronization, clip_coefficient,
};
pub use tensor_parallel::{tensor_parallel, verify_whole_parameters};
pub use virtual_ranks::VirtualRanks;
