//! The command line.

mod finders;
mod foreign;
mod kernels;
pub(crate) mod keys;
mod monitoring;
mod schedules;
mod writing;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use everburn_auth::{GivenToken, JobToken};
use everburn_collectives::store::EtcdAddress;
use everburn_datasets::TokenizerKind;
use everburn_monitor::MonitorCommand;
use everburn_record::invocation;
use everburn_report::{CompareCommand, ReportCommand};
use everburn_train::StateDictFile;
use serde::{Deserialize, Serialize};

use crate::bottleneck::BottleneckArguments;
use crate::chat::ChatArguments;
use crate::commands::Tool;
use crate::error::CliError;
use crate::eval::EvalArguments;
use crate::generate::GenerateArguments;
use crate::predict::PredictArguments;
use crate::simulate::SimulateArguments;
use crate::weights::{ExportArguments, ImportArguments};

pub(crate) use self::finders::FinderFlags;
pub(crate) use self::kernels::KernelFlags;
pub(crate) use self::keys::{Given, OfEvaluation, OfImport, OfTraining};
pub(crate) use self::monitoring::MonitoringFlags;
pub(crate) use self::schedules::ScheduleFlag;
pub(crate) use self::writing::{WritingFlags, for_terminal, show};

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

    /// The command line as the help of this program has it: without flags that none of its tasks uses.
    pub(crate) fn of_program() -> clap::Command {
        keys::hide_foreign(Self::command())
    }

    /// The same, or why there is nothing to do.
    pub(crate) fn try_of(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let program = || Self::of_program().bin_name(invocation::file_name());
        let words = words.into_iter().collect::<Vec<_>>();
        let command = program();
        foreign::refuse_separator(&command, &words)?;
        let matches = command.try_get_matches_from(words.clone());
        // Only an error needs it once more, with its hundreds of flags.
        let suggest = |error| foreign::suggest(error, &program(), &words);
        let mut matches = matches.map_err(suggest)?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut program()))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model, alone or on several ranks.
    Train(Box<TrainArguments>),
    /// Find where the time of a step goes, as in `bottleneck MODEL --ranks 2 --steps 50`.
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
    /// The model, one of `--list`, which also shows presets: settings of some models in place of the defaults below.
    pub(crate) model: Option<String>,

    /// List the models with inputs, outputs, parameter counts and presets, and exit.
    #[arg(long)]
    pub(crate) list: bool,

    /// Take the configuration from this file, such as a run's config.toml; flags override it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Set a key of the configuration, as in `training.epochs=5` or, for a task's own key, `MODEL.width=64`. The value
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

    #[command(flatten)]
    pub(crate) monitoring: MonitoringFlags,

    #[command(flatten)]
    pub(crate) finders: FinderFlags,

    /// Record how each rank spends its steps, in the run's folder profile; `bottleneck --of RUN` reads it.
    #[arg(long)]
    pub(crate) profile: bool,

    #[arg(long, value_name = "FILE", help = format!(
        "Start with these weights: a PyTorch state dict ({}), a run's folder, or a folder of Hugging Face's transformers, \
         whose config.json says which model it is",
        StateDictFile::endings()
    ))]
    pub(crate) init_from: Option<PathBuf>,

    /// Leave out these tensors of --init-from, by their names in PyTorch, as for a model with a new head: 'fc.*'; may be
    /// repeated.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) init_skip: Vec<String>,

    /// The old name of --lr-schedule and --pipeline-schedule.
    #[arg(long, hide = true)]
    pub(crate) schedule: Vec<ScheduleFlag>,

    /// Flags that are keys of the configuration.
    #[command(flatten)]
    pub(crate) keys: Given<OfTraining>,

    #[command(flatten)]
    pub(crate) kernels: KernelFlags,

    #[command(flatten)]
    pub(crate) ranks: RankFlags,

    /// A pipeline over N ranks: --mesh pipeline=N with as many replicas as --ranks allows.
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "parallel.mesh",
        help_heading = "Model over ranks"
    )]
    pub(crate) pipeline: Option<usize>,
}

#[cfg(test)]
impl TrainArguments {
    /// What follows `train` in a command line.
    pub(crate) fn of(words: &str) -> Self {
        let words = ["everburn", "train"]
            .into_iter()
            .chain(words.split_whitespace());
        match Arguments::parse_from(words).command {
            Command::Train(arguments) => *arguments,
            other => panic!("another command: {other:?}"),
        }
    }
}

/// The keys of `[text]` that have flags.
#[derive(Args)]
#[command(next_help_heading = "Text")]
pub(crate) struct TextKeys {
    /// The tokenizer: char (the text's characters), byte, or a file: a tokenizer.json, or a folder with GPT-2's
    /// vocab.json and merges.txt [default: char].
    #[arg(long, value_name = "char|byte|FILE")]
    tokenizer: TokenizerKind,

    /// Generate a sample every N steps, in addition to one after each epoch [default: never].
    #[arg(long, value_name = "STEPS")]
    sample_every: usize,
}

/// The keys of `[data]` that have flags.
#[derive(Args)]
#[command(next_help_heading = "Data")]
pub(crate) struct DataKeys {
    /// Images: mnist, fashion-mnist or synthetic; for resnet18, resnet50 and vit: cifar10, cifar100, a folder, or tar shards
    /// (a path or an address). For table: a CSV or Parquet file. Text: tinyshakespeare or embedded, a text file, or a file or
    /// folder of tokens (`tokenize`, llm.c; nanogpt:FILE). auto: MNIST or tinyshakespeare if available [default: auto].
    #[arg(long = "data", value_name = "NAME")]
    name: String,

    /// The folder of the data files [default: $EVERBURN_DATA_DIR/<name>, then the user's cache].
    #[arg(long = "data-dir", value_name = "DIR")]
    folder: PathBuf,

    /// Use only the first N training samples.
    #[arg(long, value_name = "N")]
    train_samples: usize,

    /// Use only the first N test samples.
    #[arg(long, value_name = "N")]
    test_samples: usize,
}

/// What a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strategy {
    /// A process of its own: distributed data parallelism.
    #[default]
    Ddp,
    /// A thread of this process, with a device of its own.
    DataParallel,
    /// A process whose model is on several devices, one block after the other.
    ModelParallel,
}

/// Flags of how ranks are started.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Ranks")]
pub(crate) struct RankFlags {
    /// One rank on each of the first N GPUs: NVIDIA's, else AMD's by ROCm, Apple's, or those with a Vulkan driver.
    #[arg(long, value_name = "N", conflicts_with_all = ["ranks.ranks", "ranks.devices"])]
    pub(crate) gpus: Option<usize>,

    /// This machine's number, from 0.
    #[arg(long, requires = "ranks.nodes")]
    pub(crate) node_rank: Option<usize>,

    /// HOST:PORT of machine 0, where the ranks meet.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) rendezvous: Option<String>,

    /// etcd://HOST:PORT,HOST:PORT[/NAME], or etcds:// for TLS, the same on all machines: keep the store of an elastic job in
    /// etcd, so that any machine may be lost.
    #[arg(long, value_name = "ETCD", conflicts_with = "rendezvous")]
    pub(crate) store: Option<EtcdAddress>,

    /// The secret of the job, 16 bytes or more, the same on all machines. Other users can read a command line: prefer
    /// EVERBURN_JOB_TOKEN [default: random, if all ranks are on this machine].
    #[arg(
        long,
        env = "EVERBURN_JOB_TOKEN",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    pub(crate) job_token: Option<GivenToken>,

    /// Serve the job's store without a secret, for PyTorch's clients. Anyone who can reach it can read and change
    /// every key.
    #[arg(long)]
    pub(crate) open_store: bool,

    /// Print plain lines even on a terminal.
    #[arg(long)]
    pub(crate) no_dashboard: bool,
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
