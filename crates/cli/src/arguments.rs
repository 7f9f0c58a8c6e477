//! The command line.

mod gradients;
mod input;
mod lora;
mod outer;
mod schedules;
mod writing;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use everburn_auth::{GivenToken, JobToken};
use everburn_collectives::group::TransportKind;
use everburn_datasets::TokenizerKind;
use everburn_distributed::GradientBackend;
use everburn_monitor::MonitorCommand;
use everburn_record::invocation;
use everburn_report::{CompareCommand, ReportCommand};
use everburn_schedules::ScheduleKind;
use everburn_train::{
    BestBy, Chaos, CheckpointEvery, Mesh, OnCheckpointFailure, OnDivergence, OptimizerKind,
    Schedule, Stages,
};
use serde::{Deserialize, Serialize};

use crate::bottleneck::BottleneckArguments;
use crate::chat::ChatArguments;
use crate::commands::Tool;
use crate::elastic::ElasticRange;
use crate::error::CliError;
use crate::eval::EvalArguments;
use crate::generate::GenerateArguments;
use crate::predict::PredictArguments;
use crate::simulate::SimulateArguments;
use crate::weights::{ExportArguments, ImportArguments};

pub(crate) use self::gradients::GradientFlags;
pub(crate) use self::input::InputFlags;
pub(crate) use self::lora::LoraFlags;
pub(crate) use self::outer::{EmaFlags, SyncFlags};
pub(crate) use self::schedules::{RateFlags, ScheduleFlag};
pub(crate) use self::writing::WritingFlags;

/// Trains models on any number of ranks: GPUs, cores, machines.
#[derive(Debug, Parser)]
#[command(name = "everburn", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// The command line of these words, under the name by which the user has called the program. Ends the process,
    /// with help or an error, where there is nothing to do.
    pub(crate) fn of(words: impl IntoIterator<Item = OsString>) -> Self {
        Self::try_of(words).unwrap_or_else(|error| error.exit())
    }

    /// The same, or why there is nothing to do.
    pub(crate) fn try_of(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command().bin_name(invocation::name());
        let mut matches = command.clone().try_get_matches_from(words)?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model, alone or on several ranks.
    Train(Box<TrainArguments>),
    /// Find where the time of a step goes, as in `bottleneck mnist --ranks 2 --steps 50`.
    Bottleneck(Box<BottleneckArguments>),
    /// Evaluate a trained model on the test samples, each counted once.
    Eval(Box<EvalArguments>),
    /// Write a trained model's predictions for test samples or a file, as lines of JSON.
    Predict(Box<PredictArguments>),
    /// Generate text with a trained language model.
    Generate(GenerateArguments),
    /// Chat with a trained language model in the terminal; reads lines from standard input.
    Chat(ChatArguments),
    /// Export a run's model as a PyTorch state dict.
    Export(ExportArguments),
    /// Import a PyTorch state dict as a run.
    Import(ImportArguments),
    /// Monitor a run, live or finished: curves, ranks, events.
    Monitor(MonitorCommand),
    /// Write a run's report: one HTML file with curves, ranks, events, configuration and results.
    Report(ReportCommand),
    /// Compare runs: configurations, results, speed.
    Compare(CompareCommand),
    /// Simulate a pipeline: draw a step of its ranks, or compare schedules.
    Simulate(SimulateArguments),
    #[command(flatten)]
    Tool(Tool),
}

impl Command {
    /// Whether it takes the same memory again and again.
    pub(crate) fn trains(&self) -> bool {
        matches!(
            self,
            Self::Train(_)
                | Self::Bottleneck(_)
                | Self::Eval(_)
                | Self::Predict(_)
                | Self::Generate(_)
                | Self::Chat(_)
        )
    }
}

/// Flags win over the config file, the file over the model's preset, the preset over the defaults.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TrainArguments {
    /// The model, one of `--list`. Some have presets, which config.toml of a run shows.
    pub(crate) model: Option<String>,

    /// List the models with their parameter counts and exit.
    #[arg(long)]
    pub(crate) list: bool,

    /// Take the configuration from this file, such as a run's config.toml; flags override it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Set a key of the configuration, as in `training.epochs=5` or, for a task's own key, `flowers.width=64`. The value
    /// is TOML, or else a string. Overrides everything else; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// The folder of the run [default: runs/<model>-<number>]. An existing run is moved aside, never overwritten.
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    /// Print an estimate of the run (memory, messages, bubble, time per step) and exit. Measures each block of the model
    /// briefly; writes nothing.
    #[arg(long)]
    pub(crate) plan: bool,

    /// Estimate from the figures in this TOML file, without measuring.
    #[arg(long, requires = "plan", value_name = "FILE")]
    pub(crate) plan_figures: Option<PathBuf>,

    /// Resume from the newest good checkpoint of --run-dir, with that run's configuration.
    #[arg(long, requires = "run_dir")]
    pub(crate) resume: bool,

    /// Serve the run to monitors on other machines (`monitor HOST:PORT`). Needs a --job-token (or EVERBURN_JOB_TOKEN)
    /// on both sides. On this machine, monitors need no server: `monitor RUN`.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) monitor: Option<String>,

    /// Record where the time of each step goes on each rank, in the run's folder profile; `bottleneck --of RUN` reads it.
    #[arg(long)]
    pub(crate) profile: bool,

    /// Start with these weights: a PyTorch state dict (.safetensors, .pt, .pth, .ckpt, .bin), a run's folder, or a folder of Hugging
    /// Face's transformers, whose config.json says which model it is.
    #[arg(long, value_name = "FILE")]
    pub(crate) init_from: Option<PathBuf>,

    /// Leave these tensors of --init-from out, by their names in PyTorch, for a model with a new head: 'fc.*'.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) init_skip: Vec<String>,

    #[command(flatten)]
    pub(crate) training: TrainingFlags,

    #[command(flatten)]
    pub(crate) data: DataFlags,

    #[command(flatten)]
    pub(crate) input: InputFlags,

    #[command(flatten)]
    pub(crate) ranks: RankFlags,

    #[command(flatten)]
    pub(crate) parallel: ParallelFlags,
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct TrainingFlags {
    /// The number of epochs [default: 3].
    #[arg(long)]
    pub(crate) epochs: Option<usize>,

    /// Stop after this many steps, if that comes first.
    #[arg(long)]
    pub(crate) steps: Option<usize>,

    /// Samples per step, over all ranks together [default: 64].
    #[arg(long)]
    pub(crate) batch_size: Option<usize>,

    /// adam, adam-w, sgd, adagrad, adafactor, adan, lamb, lion, muon or rmsprop [default: adam]. For its other settings
    /// use --set, as in --set optimizer.beta_1=0.95.
    #[arg(long, value_parser = kebab::<OptimizerKind>)]
    pub(crate) optimizer: Option<OptimizerKind>,

    /// The learning rate at the start [default: 0.001].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) learning_rate: Option<f64>,

    /// The schedule of the learning rate: constant, cosine, linear or step [default: constant].
    #[arg(long, value_parser = kebab::<Schedule>)]
    pub(crate) lr_schedule: Option<Schedule>,

    /// The old name of --lr-schedule and --pipeline-schedule.
    #[arg(long, hide = true)]
    pub(crate) schedule: Vec<ScheduleFlag>,

    /// The momentum of sgd, rmsprop and muon [default: 0; rmsprop 0.9, muon 0.95].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) momentum: Option<f64>,

    /// The weight decay [default: 0].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) weight_decay: Option<f64>,

    /// The seed of initial weights, shuffling and dropout [default: 42].
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// The number of training samples held out for validation [default: a tenth, at most 5000].
    #[arg(long)]
    pub(crate) validation_samples: Option<usize>,

    /// Stop after this many epochs without improvement of --best-by [default: never].
    #[arg(long, value_name = "EPOCHS")]
    pub(crate) early_stopping: Option<usize>,

    /// The validation metric of the best epoch, whose checkpoint is kept: loss, accuracy, or another metric as min:NAME
    /// or max:NAME [default: loss].
    #[arg(long, value_name = "METRIC")]
    pub(crate) best_by: Option<BestBy>,

    /// The number of checkpoints to keep besides the best [default: 2].
    #[arg(long)]
    pub(crate) keep_checkpoints: Option<usize>,

    /// How often to write a checkpoint: 100steps, 10min or 1epoch. Steps and minutes write one at the end of each epoch,
    /// too, and all write the best epoch [default: 1epoch].
    #[arg(long, value_name = "HOW OFTEN")]
    pub(crate) checkpoint_every: Option<CheckpointEvery>,

    /// What to do when a checkpoint cannot be written, as on a full disk: stop with the error, or continue with
    /// a warning and try again when the next one is due [default: continue].
    #[arg(long, value_name = "stop|continue")]
    pub(crate) on_checkpoint_failure: Option<OnCheckpointFailure>,

    /// Write a line of metrics.jsonl every N steps [default: 10].
    #[arg(long)]
    pub(crate) log_every: Option<usize>,

    /// Compare the parameters of the ranks every N steps; 0: never [default: 100].
    #[arg(long, value_name = "STEPS")]
    pub(crate) compare_every: Option<usize>,

    /// What to do with a rank whose parameters differ from the others': stop the run, or repair it with the state of
    /// the majority [default: stop].
    #[arg(long, value_name = "WHAT", value_parser = kebab::<OnDivergence>)]
    pub(crate) on_divergence: Option<OnDivergence>,

    /// Inject faults, as in kill=2@step:100,stall=1@step:50,slow=3@step:10:200ms,drop=0-2@step:30,
    /// corrupt=1@step:70.
    #[arg(long, value_name = "FAULTS")]
    pub(crate) chaos: Option<Chaos>,

    /// Write hashes of all parameters, buffers and optimizer states to hashes.jsonl every N steps, to compare runs to
    /// the bit [default: never].
    #[arg(long, value_name = "STEPS")]
    pub(crate) hash_every: Option<usize>,

    /// Also write the metrics for TensorBoard, to the run's folder tensorboard.
    #[arg(long)]
    pub(crate) tensorboard: bool,

    #[command(flatten)]
    pub(crate) rates: RateFlags,

    #[command(flatten)]
    pub(crate) ema: EmaFlags,

    #[command(flatten)]
    pub(crate) text: TextFlags,

    #[command(flatten)]
    pub(crate) lora: LoraFlags,

    #[command(flatten)]
    pub(crate) gradients: GradientFlags,

    #[command(flatten)]
    pub(crate) sync: SyncFlags,
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Text")]
pub(crate) struct TextFlags {
    /// The tokenizer: char (the text's characters), byte, or a file: a tokenizer.json, or a folder with GPT-2's
    /// vocab.json and merges.txt [default: char].
    #[arg(long, value_name = "char|byte|FILE")]
    pub(crate) tokenizer: Option<TokenizerKind>,

    /// Generate a sample every N steps, besides after each epoch [default: never].
    #[arg(long, value_name = "STEPS")]
    pub(crate) sample_every: Option<usize>,
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Data")]
pub(crate) struct DataFlags {
    /// Images: mnist, fashion-mnist or synthetic, or a folder for resnet18. Text: tinyshakespeare or embedded, a text file,
    /// or a file or folder of tokens (`tokenize`, llm.c; nanogpt:FILE). auto: MNIST or tinyshakespeare if available
    /// [default: auto].
    #[arg(long, value_name = "NAME")]
    pub(crate) data: Option<String>,

    /// The folder of the data files [default: $EVERBURN_DATA_DIR/<name>, then the user's cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Use only the first N training samples.
    #[arg(long, value_name = "N")]
    pub(crate) train_samples: Option<usize>,

    /// Use only the first N test samples.
    #[arg(long, value_name = "N")]
    pub(crate) test_samples: Option<usize>,
}

/// What a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strategy {
    /// A process of its own: distributed data parallelism.
    #[default]
    Ddp,
    /// A thread of this process, with a device of its own.
    DataParallel,
    /// A process whose model lies on several devices, one block after the other.
    ModelParallel,
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Ranks")]
pub(crate) struct RankFlags {
    /// The number of ranks on this machine [default: 1].
    #[arg(long)]
    pub(crate) ranks: Option<usize>,

    /// ddp: each rank is a process. data-parallel: each rank is a thread of one process. model-parallel: the model of a
    /// rank is divided over several --devices [default: ddp].
    #[arg(long, value_parser = kebab::<Strategy>)]
    pub(crate) strategy: Option<Strategy>,

    /// One rank on each of the first N GPUs: NVIDIA's, else AMD's by ROCm, Apple's, or those with a Vulkan driver.
    #[arg(long, value_name = "N", conflicts_with_all = ["ranks", "devices"])]
    pub(crate) gpus: Option<usize>,

    /// The device of each rank, in turn: flex, cuda:0, cuda:1, rocm:0, metal:0, vulkan:0, webgpu:0, ...; with
    /// model-parallel, the devices of a rank's model [default: flex].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) devices: Option<Vec<String>>,

    /// CPU threads of each rank [default: cores / ranks].
    #[arg(long, value_name = "N")]
    pub(crate) threads_per_rank: Option<usize>,

    /// The number of machines, each with --ranks ranks [default: 1].
    #[arg(long)]
    pub(crate) nodes: Option<usize>,

    /// This machine's number, from 0.
    #[arg(long, requires = "nodes")]
    pub(crate) node_rank: Option<usize>,

    /// HOST:PORT of machine 0, where the ranks rendezvous.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) rendezvous: Option<String>,

    /// The secret of the job, 16 bytes or more, the same on all machines. Other users can read a command line: prefer
    /// EVERBURN_JOB_TOKEN [default: random, if all ranks are on this machine].
    #[arg(
        long,
        env = "EVERBURN_JOB_TOKEN",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    pub(crate) job_token: Option<GivenToken>,

    /// Serve the job's store without a secret, for PyTorch's clients. Everybody who can reach it can read and change
    /// every key.
    #[arg(long)]
    pub(crate) open_store: bool,

    /// The timeout of every wait for another rank, in seconds [default: 300].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,

    /// A rank without a heartbeat for this many seconds counts as lost; 0: no heartbeats [default: 30].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) heartbeat_timeout: Option<u64>,

    /// Continue with MIN to MAX ranks. Lost ranks are restarted and rejoin; no step is lost. With --virtual-ranks, the
    /// result has the same bits as an undisturbed run.
    #[arg(long, value_name = "MIN:MAX")]
    pub(crate) elastic: Option<ElasticRange>,

    /// The number of restarts of a lost rank, with --elastic [default: 3].
    #[arg(long, value_name = "N")]
    pub(crate) max_restarts: Option<usize>,

    /// The exchange of gradients between GPUs: nccl, host (through host memory), burn (Burn's own collective, with
    /// --strategy data-parallel), or auto: nccl if each rank has its own GPU and NCCL is installed [default: auto].
    #[arg(long, value_name = "WAY")]
    pub(crate) backend: Option<GradientBackend>,

    /// The connection between ranks: shm (shared memory), tcp, or auto: shared memory within a machine, TCP between
    /// machines [default: auto].
    #[arg(long, value_name = "KIND")]
    pub(crate) transport: Option<TransportKind>,

    /// Print plain lines even on a terminal.
    #[arg(long)]
    pub(crate) no_dashboard: bool,
}

/// How a model is shared out over ranks.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model over ranks")]
pub(crate) struct ParallelFlags {
    /// The device mesh, as in data=2,pipeline=2,tensor=1: replicas of the model, stages of a pipeline per replica, ranks
    /// per layer [default: data=<all ranks>].
    #[arg(long, value_name = "AXES")]
    pub(crate) mesh: Option<Mesh>,

    /// A pipeline over N ranks: --mesh pipeline=N with as many replicas as --ranks allows.
    #[arg(long, value_name = "N", conflicts_with = "mesh")]
    pub(crate) pipeline: Option<usize>,

    /// The number of micro-batches per step of a replica's pipeline [default: 4 per rank of the pipeline, or the next
    /// smaller divisor of the local batch].
    #[arg(long, value_name = "M")]
    pub(crate) micro_batches: Option<usize>,

    /// The order of the passes in a pipeline: gpipe, 1f1b, interleaved or zb-h1 [default: 1f1b].
    #[arg(long, value_name = "SCHEDULE")]
    pub(crate) pipeline_schedule: Option<ScheduleKind>,

    /// The number of stages per rank with --pipeline-schedule interleaved [default: 2].
    #[arg(long, value_name = "V")]
    pub(crate) chunks: Option<usize>,

    /// The stages: auto (balanced by measured times within a rank's memory), even (by numbers of parameters), or the
    /// first block of each further stage, as in conv2,fc1 [default: auto].
    #[arg(long, value_name = "WHERE")]
    pub(crate) stages: Option<Stages>,
}

/// Parses what serde calls a unit variant in kebab case, so that flags and files agree.
fn kebab<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let deserializer = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(text);
    T::deserialize(deserializer).map_err(|error| error.to_string())
}

impl RankFlags {
    /// The secret of the job, if one was given.
    ///
    /// # Errors
    /// [`CliError`] when it is none.
    pub(crate) fn token(&self) -> Result<Option<JobToken>, CliError> {
        let given = self.job_token.as_ref().map(GivenToken::token).transpose();
        let given = given.map_err(|error| CliError::usage(error.to_string()))?;
        Ok(given.flatten())
    }
}
