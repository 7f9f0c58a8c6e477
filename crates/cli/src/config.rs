//! A run's configuration: flags, then the file, then the model's preset, then the defaults.

mod checks;
mod evaluation;
mod flags;
pub(crate) mod foreign_sections;
mod layers;
mod no_model;
mod of_run;
mod optimizer;
mod unshown;

use std::path::{Path, PathBuf};

use crate::prelude::RunDirectory;
use clap::Args;
use everburn_collectives::group::TransportKind;
use everburn_distributed::GradientBackend;
use everburn_launch::RankEnvironment;
use everburn_record::folder_of_machine;
use everburn_train::{
    Chaos, ConfiguredTask, ParallelConfig, Parallelism, Patterns, TrainingConfig, configuration_of,
};
use serde::{Deserialize, Serialize};
use toml::Table;

use self::checks::refuse_flags_of_rounds;
pub(crate) use self::flags::{first_weights, key_of};
pub(crate) use self::layers::read_table;
use self::layers::{fault, layered, unknown_model};
use crate::arguments::{Strategy, TrainArguments};
use crate::elastic::ElasticRange;
use crate::error::CliError;
use crate::{mesh, rank, tasks};

/// On what a run runs.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Ranks")]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RanksConfig {
    /// The number of ranks on this machine [default: 1].
    #[arg(long)]
    pub(crate) ranks: usize,
    /// ddp: each rank is a process. data-parallel: each rank is a thread of one process. model-parallel: the model of a
    /// rank is divided over several --devices [default: ddp].
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) strategy: Strategy,
    /// The number of machines, each with --ranks ranks [default: 1].
    #[arg(long)]
    pub(crate) nodes: usize,
    /// The device of each rank, in turn: flex, cuda:0, cuda:1, rocm:0, metal:0, vulkan:0, webgpu:0, ...; with
    /// model-parallel, the devices of a rank's model [default: flex].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) devices: Vec<String>,
    /// CPU threads of each rank [default: cores / ranks].
    #[arg(long, value_name = "N")]
    pub(crate) threads_per_rank: Option<usize>,
    /// The timeout of every wait for another rank, in seconds; a store in etcd is tried for 300 s, and a rank of an elastic run
    /// waits 60 s for the others [default: 300].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: u64,
    /// A rank without a heartbeat for this many seconds counts as lost; 0: no heartbeats [default: 30].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) heartbeat_timeout: u64,
    /// Continue with MIN to MAX ranks. Lost ranks are restarted and rejoin; no step is lost. With --virtual-ranks, the
    /// result has the same bits as an undisturbed run.
    #[arg(long, value_name = "MIN:MAX")]
    pub(crate) elastic: Option<ElasticRange>,
    /// The number of restarts of a lost rank, with --elastic [default: 3].
    #[arg(long, value_name = "N")]
    pub(crate) max_restarts: usize,
    /// The exchange of gradients between GPUs: nccl, host (through host memory), or auto: nccl if each rank has its own
    /// GPU and NCCL is installed [default: auto].
    #[arg(long, value_name = "WAY")]
    pub(crate) backend: GradientBackend,
    /// The connection between ranks: shm (shared memory), tcp, or auto: shared memory within a machine, TCP between
    /// machines [default: auto].
    #[arg(long, value_name = "KIND")]
    #[serde(with = "as_text")]
    pub(crate) transport: TransportKind,
}

impl Default for RanksConfig {
    fn default() -> Self {
        Self {
            ranks: 1,
            strategy: Strategy::Ddp,
            nodes: 1,
            devices: vec!["flex".to_string()],
            threads_per_rank: None,
            timeout: 300,
            heartbeat_timeout: 30,
            elastic: None,
            max_restarts: 3,
            backend: GradientBackend::Auto,
            transport: TransportKind::Auto,
        }
    }
}

/// The whole configuration of a run: the contents of `config.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RunConfig {
    pub(crate) model: String,
    /// Where the first weights come from, if not from the seed.
    pub(crate) init_from: Option<PathBuf>,
    /// The tensors of `init_from` that are left out, by their names in PyTorch.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) init_skip: Patterns,
    pub(crate) ranks: RanksConfig,
    pub(crate) training: TrainingConfig,
    /// How the model is shared out over ranks.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) parallel: ParallelConfig,
    /// The sections that are the task's own.
    #[serde(flatten)]
    pub(crate) sections: Table,
}

/// The configuration of the run in `run_dir`. Another machine than the first, whose disk is its own, has a folder of its
/// own.
fn config_to_resume(run_dir: &Path, arguments: &TrainArguments) -> Result<PathBuf, CliError> {
    let own = folder_of_machine(run_dir, arguments.ranks.node_rank.unwrap_or(0));
    let found = [run_dir, &own].into_iter().find(|folder| folder.exists());
    if let Some(folder) = found {
        let path = RunDirectory::open(folder)?.config_path();
        return match read_table(&path)?.contains_key("model") {
            true => Ok(path),
            false => Err(CliError::usage_with_help(
                format!(
                    "{} names no model, as that of every run does: it was emptied or damaged",
                    path.display()
                ),
                "begin a run with the same command and another --run-dir, stop it, and copy its config.toml here",
            )),
        };
    }
    let what = format!("there is no run in {} to resume", run_dir.display());
    Err(match own == run_dir {
        true => CliError::usage_with_help(
            what,
            "check --run-dir; leave out --resume to begin a run there",
        ),
        false => CliError::usage_with_help(
            format!("{what}, and none in {}", own.display()),
            format!(
                "check --run-dir, which is the same on all machines; a machine that is new to the run needs the config.toml of \
                 machine 0 in {}",
                own.display()
            ),
        ),
    })
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl RunConfig {
    /// What is trained, with its settings.
    pub(crate) fn task(&self) -> Result<Box<dyn ConfiguredTask>, CliError> {
        let task = tasks::find(&self.model).ok_or_else(|| unknown_model(&self.model))?;
        self.refuse_foreign_sections(task)?;
        Ok(task.configure(&self.sections)?)
    }

    pub(crate) fn world_size(&self) -> usize {
        self.ranks.ranks.saturating_mul(self.ranks.nodes)
    }

    /// Whether a training starts its ranks as processes.
    pub(crate) fn starts_ranks(&self) -> bool {
        let alone = self.world_size() == 1 && self.ranks.elastic.is_none();
        !alone && self.ranks.strategy != Strategy::DataParallel
    }

    /// Resolves what `arguments` ask for. Where torchrun, srun or a person has started this process as a
    /// rank, `environment` says how many ranks there are.
    ///
    /// # Errors
    /// [`CliError`] naming the flag, file or value that cannot be used.
    pub(crate) fn resolve(
        arguments: &TrainArguments,
        environment: Option<&RankEnvironment>,
    ) -> Result<Self, CliError> {
        let file = match (&arguments.config, &arguments.run_dir, arguments.resume) {
            (Some(path), ..) => Some(path.clone()),
            (None, Some(run_dir), true) => Some(config_to_resume(run_dir, arguments)?),
            _ => None,
        };
        let file_layer = file
            .as_deref()
            .map(read_table)
            .transpose()?
            .unwrap_or_default();
        let (task, table) = layered(arguments, file_layer)?;
        let fault_of = |reason: &str, task| fault(reason, task, &arguments.set, file.as_deref());
        let fault = |reason: String| fault_of(&reason, Some(task));
        let mut config: Self = configuration_of(table).map_err(fault)?;
        let foreign = config.refuse_foreign_sections(task);
        foreign.map_err(|error| match error {
            CliError::Usage { message, help } if message.starts_with("unknown key") => {
                // What may be meant has been looked for.
                match fault_of(&message, None) {
                    CliError::Usage { message, .. } => CliError::Usage { message, help },
                    of_file => of_file,
                }
            }
            other => other,
        })?;
        let configured = task.configure(&config.sections);
        let configured = configured.map_err(|error| match error.help() {
            Some(_) => error.into(),
            None => fault(error.to_string()),
        })?;
        config.sections = configured.sections()?;
        config.settle_ranks(arguments, environment);
        config.check(arguments)?;
        Ok(config)
    }

    /// What a launcher decides, and the default range of an elastic job.
    fn settle_ranks(&mut self, arguments: &TrainArguments, environment: Option<&RankEnvironment>) {
        if let Some(environment) = environment.filter(|rank| rank.launcher_pid.is_none()) {
            // Machines need not have equal numbers of ranks; the product must be right.
            if arguments.resume {
                rank::say_who_has_started(environment, self.world_size());
            }
            let (all, here) = (environment.world_size, environment.local_world_size.max(1));
            let (ranks, nodes) = match all % here {
                0 => (here, all / here),
                _ => (all, 1),
            };
            (self.ranks.ranks, self.ranks.nodes) = (ranks, nodes);
        }
        if arguments.resume && environment.is_none() && !arguments.keys.has("training.chaos") {
            // What went wrong on purpose went wrong once.
            self.training.chaos = Chaos::default();
        }
        let one_machine = arguments.ranks.node_rank.is_none() && !arguments.keys.has("ranks.nodes");
        if arguments.resume && environment.is_none() && one_machine {
            // A run continues on any number of ranks: where no machine is named, on this one.
            let nodes = std::mem::replace(&mut self.ranks.nodes, 1);
            if !arguments.keys.has("ranks.ranks") {
                rank::say_who_starts_ranks(self.ranks.ranks, nodes);
            }
        }
        if !arguments.keys.has("ranks.elastic") {
            self.ranks.elastic = self.ranks.elastic.map(|range| range.of(self.world_size()));
        }
    }

    /// Refuses what does not go together.
    fn check(&mut self, arguments: &TrainArguments) -> Result<(), CliError> {
        self.validate_ranks()?;
        let Parallelism { mesh, .. } = mesh::settle(self, arguments)?;
        let features = self.features(mesh, arguments);
        self.training.check_conflicts(features)?;
        self.training.validate(mesh.data)?;
        refuse_flags_of_rounds(self, arguments)?;
        self.settle_lora()?;
        for device in &self.ranks.devices {
            self.training.precision.check_device(device)?;
        }
        Ok(())
    }
}

/// Values that a flag spells like the file does.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?
            .parse()
            .map_err(Error::custom)
    }
}

#[cfg(test)]
mod tests;
