//! burn-train over ranks.
//!
//! [`Trainer`] is the entry: every rank of a process group calls [`Trainer::fit`] with the same
//! model and data, and gets the same model and [`TrainingReport`] back. Underneath,
//! burn-train's `SupervisedTraining` runs with a strategy of ours for ranks: its metrics count the
//! samples of all ranks, its dashboard shows them on rank 0, and stopping is decided by all.
//!
//! | type | what it is for |
//! |---|---|
//! | [`Supervised`] | a Burn module, its forward function and an [`Objective`], as burn-train wants it |
//! | [`Classifier`], [`LanguageModel`] | the two objectives that there are |
//! | [`Loss`], [`MetricSums`] | what is measured: the loss, and any metrics by name |
//! | [`TrainingConfig`] | how to train, as written to `config.toml` |
//! | [`InputConfig`], [`ReadMetrics`] | how samples come to the device, and losses from there |
//! | [`ActivationCheckpointing`], [`PeakMemory`] | less memory for more time, and how much memory |
//! | [`ParallelConfig`], [`Parallelism`], [`Mesh`] | how a model is shared out over ranks |
//! | [`keep_kernels`], [`Trainer::warm_up`] | what a GPU is given, compiled once |
//! | [`data_parallel()`] | several devices in one process |
//! | [`Hook`], [`Run`] | code of one's own that is called behind steps, epochs, checkpoints and failures |
//! | [`RunDirectory`] | what a run leaves behind |
//! | [`checkpoint`] | how an interrupted run goes on |
//! | [`load_state_dict`], [`save_state_dict`] | weights from PyTorch and for it |
//! | [`renderer`] | what a run looks like |
//! | [`Samples`], [`Generation`] | what a language model writes, while it trains and after |

mod activation_checkpointing;
mod agreement;
mod best_by;
mod chaos;
pub mod checkpoint;
mod checkpoint_every;
mod checkpoint_failure;
mod checkpoint_writer;
mod common_clock;
mod compute_threads;
mod config;
mod data_parallel;
mod divergence;
mod elastic_group;
mod ema;
mod erased;
mod error;
mod evaluation;
mod finite;
mod generation;
mod hook;
mod input;
mod kernels;
mod live_file;
mod loss_scaling;
mod memory;
mod mesh;
mod mesh_parallel;
mod metric_layout;
mod metric_line;
mod metric_sums;
mod metrics;
mod named_sum;
mod objective;
mod optimizer_config;
mod optimizer_states;
mod outcome;
mod parallel_config;
mod parallel_model;
mod parameter_groups;
mod placement;
mod precision;
mod predictions;
mod rank_times;
mod read_metrics;
mod record_files;
mod regroup;
pub mod renderer;
mod report;
mod run_directory;
mod samples;
mod schedule;
mod seeds;
mod snapshot;
mod state_dict;
mod state_hashes;
mod step_exchange;
mod step_report;
mod stop;
mod strategy;
mod supervised;
mod sync_interval;
mod task;
mod tensor_board;
mod tensor_file;
mod trainer;
mod training_state;
mod virtual_sums;
mod weights;

pub use activation_checkpointing::{ActivationCheckpointing, InvalidActivationCheckpointing};
pub use best_by::{BestBy, Direction, InvalidBestBy};
pub use burn_train::Interrupter;
pub use chaos::{Chaos, Fault, InvalidChaos};
pub use checkpoint_every::{CheckpointEvery, InvalidCheckpointEvery};
pub use checkpoint_failure::{InvalidOnCheckpointFailure, OnCheckpointFailure};
pub use compute_threads::compute_on_this_thread;
pub use config::{EarlyStopping, TrainingConfig};
pub use data_parallel::data_parallel;
pub use divergence::OnDivergence;
pub use elastic_group::ElasticGroup;
pub use ema::EmaConfig;
pub use erased::{AnyBatch, AnyData, AnyItem, AnyModel, AnyModelOverRanks, Trainable};
pub use error::TrainError;
pub use generation::Generation;
pub use hook::{EpochLines, Hook, HookError, Hooks};
pub use input::InputConfig;
pub use kernels::{KernelCache, keep_kernels};
pub use live_file::Signs;
pub use loss_scaling::{
    GROWTH_INTERVAL, INITIAL_LOSS_SCALE, LEAST_LOSS_SCALE, LossScaling, scaled_loss,
};
pub use memory::PeakMemory;
pub use mesh::{Axis, Coordinates, InvalidMesh, Mesh};
pub use mesh_parallel::{MeshParallel, MeshParallelConfig};
pub use metric_line::{MetricKind, MetricLine, MetricsFile};
pub use metric_sums::{ACCURACY, LOSS, MetricSums, WeightedSum};
pub use metrics::RankMetric;
pub use named_sum::{Amount, NamedSum};
pub use objective::{Classification, Loss, NextToken, Objective};
pub use optimizer_config::{MuonRate, OptimizerConfig, OptimizerKind};
pub use parallel_config::{InvalidStages, ParallelConfig, ParallelError, Parallelism, Stages};
pub use parallel_model::ParallelModel;
pub use parameter_groups::{ParameterGroup, Patterns};
pub use precision::{InvalidPrecision, Precision};
pub use predictions::{Classes, Predictions};
pub use rank_times::{ForwardPass, PassTimes};
pub use read_metrics::ReadMetrics;
pub use regroup::Regroup;
pub use report::{BestEpoch, OuterReport, ShardingReport, TrainingReport, Versions};
pub use run_directory::{RunDirectory, RunLock, configuration_fault};
pub use samples::Samples;
pub use schedule::{Schedule, ScheduleNumbers};
pub use state_dict::{StateDictFile, load_state_dict, save_state_dict};
pub use state_hashes::StateHashes;
pub use step_report::{Report, StepCost, StepReport};
pub use stop::StopSignal;
pub use strategy::Run;
pub use supervised::{Classifier, LabeledBatch, LanguageModel, Supervised, TextBatch};
pub use sync_interval::{InvalidSyncInterval, SyncInterval};
pub use task::{
    AnyTask, BlockRunner, BlocksOf, ConfiguredTask, DrawnBlocks, Language, LoadedData, MeshModel,
    ModelBlocks, OnDevice, Predict, Predictor, Task, TaskData, TaskError, block_loss,
};
pub use trainer::{PredictionInput, Trainer, TrainingData, WarmUp};
pub use training_state::{with_averaged_parameters, with_parameters};
pub use weights::{load_averaged, load_safetensors, save_safetensors};
