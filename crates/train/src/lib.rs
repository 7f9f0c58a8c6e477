//! burn-train over ranks.
//!
//! [`Trainer`] is the entry: every rank of a process group calls [`Trainer::fit`] with the same
//! model and data, and gets the same model and [`TrainingReport`] back. Underneath,
//! burn-train's `SupervisedTraining` runs with a strategy for ranks: its metrics count the
//! samples of all ranks, its dashboard shows them on rank 0, and all ranks decide when to stop.
//!
//! | type | what it is for |
//! |---|---|
//! | [`Supervised`] | a Burn module, its forward function and an [`Objective`], as burn-train wants it |
//! | [`Classifier`], [`LanguageModel`] | [`Supervised`] with cross entropy |
//! | [`Loss`], [`MetricSums`] | the loss, and any metrics by name |
//! | [`TrainingConfig`] | how to train, as written to `config.toml` |
//! | [`InputConfig`], [`ReadMetrics`] | how samples get to the device, and losses from it |
//! | [`ActivationCheckpointing`], [`PeakMemory`] | less memory for more time, and how much memory |
//! | [`ParallelConfig`], [`Parallelism`], [`Mesh`] | how a model is divided over ranks |
//! | [`keep_kernels`], [`Trainer::warm_up`] | GPU kernels, compiled once and kept |
//! | [`data_parallel()`] | several devices in one process |
//! | [`Hook`], [`Run`] | your own code that is called after steps, epochs, checkpoints and failures |
//! | [`RunDirectory`] | the files of a run |
//! | [`checkpoint`] | how an interrupted run continues |
//! | [`load_state_dict`], [`save_state_dict`] | weights from PyTorch and for it |
//! | [`renderer`] | the output of a run: dashboard or lines |
//! | [`Samples`], [`GenerationConfig`] | texts of a language model, while it trains and afterwards |

pub mod checkpoint;
mod config;
mod data_fingerprint;
mod device;
mod elastic;
mod error;
mod evaluation;
mod hook;
mod metrics;
mod model;
mod parallel;
mod record;
pub mod renderer;
mod seeds;
mod task;
mod trainer;
mod training_loop;

pub use burn_train::Interrupter;
pub use checkpoint::adapter::Adapter;
pub use checkpoint::ema::EmaConfig;
pub use checkpoint::other_model::parameter_differences;
pub use checkpoint::pretrained_values::{WithInitialValues, open_state_dict_except};
pub use checkpoint::state_dict::{
    PRETRAINED_CONFIG, ShownBy, StateDictFile, StateDictLayout, StatedSize, TensorSource,
    WeightsMismatch, load_state_dict, load_state_dict_except, missing_keys, save_pretrained,
    save_state_dict, shown_sizes, state_dict_names, state_dict_shapes, weights_of,
};
pub use checkpoint::state_hashes::StateHashes;
pub use checkpoint::training_state::{with_averaged_parameters, with_parameters};
pub use checkpoint::weights::{load_averaged, load_safetensors, save_safetensors};
pub use config::activation_checkpointing::ActivationCheckpointing;
pub use config::balance::Balance;
pub use config::best_by::{BestBy, Direction};
pub use config::chaos::{Chaos, Fault};
pub use config::checkpoint_every::CheckpointEvery;
pub use config::checkpoint_failure::OnCheckpointFailure;
pub use config::conflicts::RunFeatures;
pub use config::divergence::OnDivergence;
pub use config::fault::{configuration_fault, configuration_of, nearest_name, unknown_key};
pub use config::input::InputConfig;
pub use config::lora::LoraConfig;
pub use config::loss_scaling::{LossScaling, scaled_loss};
pub use config::optimizer::{MuonRate, OptimizerConfig, OptimizerKind};
pub use config::parallel::{ParallelConfig, ParallelError, Parallelism, StageSplit};
pub use config::parameter_groups::{ParameterGroup, Patterns};
pub use config::precision::Precision;
pub use config::read_metrics::ReadMetrics;
pub use config::schedule::{LrSchedule, ScheduleNumbers};
pub use config::sync_interval::SyncInterval;
pub use config::{EarlyStopping, TrainingConfig};
pub use data_fingerprint::DataFingerprint;
pub use device::compute_threads::compute_on_this_thread;
pub use device::kernels::{KernelCache, keep_kernels};
pub use device::memory::PeakMemory;
pub use device::verification::{WrongNumbers, verify_device};
pub use elastic::elasticity::Elasticity;
pub use elastic::group::ElasticGroup;
pub use elastic::regroup::Regroup;
pub use error::TrainError;
pub use everburn_record::{
    BestEpoch, MetricKind, MetricLine, OuterReport, ShardingReport, StepCost, StopSignal,
    TrainingReport, Versions,
};
pub use hook::{EpochLines, Hook, HookError, Hooks};
pub use metrics::RankMetric;
pub use metrics::named_sum::{Amount, NamedSum};
pub use metrics::rank_times::{ForwardPass, PassTimes};
pub use metrics::step_report::StepReport;
pub use metrics::sums::{ACCURACY, LOSS, MetricSums, WeightedSum};
pub use model::draw::draw_parameters;
pub use model::erased::{AnyBatch, AnyData, AnyItem, AnyModel, AnyModelOverRanks, Trainable};
pub use model::finite::{DivergenceSign, NotFiniteInput};
pub use model::generation::{GenerationConfig, TokenStream, whole_text};
pub use model::labels::WrongLabel;
pub use model::objective::{
    ClassTargets, Classification, Loss, MaskedNextToken, NextToken, Objective,
};
pub use model::predictions::{Classes, Predictions};
pub use model::samples::Samples;
pub use model::supervised::{
    Classifier, LabeledBatch, LanguageModel, MaskedTextBatch, Supervised, TextBatch,
};
pub use parallel::data_parallel::data_parallel;
pub use parallel::mesh::{Axis, Coordinates, Mesh};
pub use parallel::mesh_parallel::{MeshParallel, MeshParallelConfig};
pub use parallel::model::ParallelModel;
pub use record::live_file::RankStatuses;
pub use record::run_directory::RunDirectory;
pub use record::run_lock::RunLock;
pub use task::{
    AnyTask, BlocksOf, ConfiguredTask, Conversation, DrawnBlocks, Language, LoadedData,
    ModelBlocks, NoSettings, OnDevice, OtherClasses, Predict, Predictor, Pretrained,
    PretrainedFormat, Scorer, Task, TaskData, TaskError, block_loss, settings_by_path,
};
pub use trainer::{
    BatchSizeLimit, BatchSizeSearch, ComputeSeconds, FreeMemory, LearningRateRange,
    LearningRateSweep, PredictionInput, SweepPoint, Trainer, TrainingData, TriedBatchSize, WarmUp,
};
pub use training_loop::Run;
