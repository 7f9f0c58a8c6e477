//! A run's configuration: flags, then the file, then the model's preset, then the defaults.

mod checks;
mod flags;
mod optimizer;

use std::path::{Path, PathBuf};

use crate::prelude::RunDirectory;
use clap::Args;
use everburn_collectives::group::TransportKind;
use everburn_collectives::printable;
use everburn_distributed::GradientBackend;
use everburn_launch::RankEnvironment;
use everburn_train::{
    Chaos, ConfiguredTask, ParallelConfig, Parallelism, Patterns, TrainingConfig,
    configuration_fault, nearest_name,
};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use self::checks::refuse_flags_of_rounds;
use self::flags::{complete, flags_layer};
use crate::arguments::keys::nearest_key;
use crate::arguments::{Given, OfEvaluation, RankFlags, Strategy, TrainArguments};
use crate::elastic::ElasticRange;
use crate::error::CliError;
use crate::{mesh, pretrained, tasks};

/// How much of a name that nobody knows is shown, in characters.
const LONGEST_NAME: usize = 80;

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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads_per_rank: Option<usize>,
    /// The timeout of every wait for another rank, in seconds [default: 300].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: u64,
    /// A rank without a heartbeat for this many seconds counts as lost; 0: no heartbeats [default: 30].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) heartbeat_timeout: u64,
    /// Continue with MIN to MAX ranks. Lost ranks are restarted and rejoin; no step is lost. With --virtual-ranks, the
    /// result has the same bits as an undisturbed run.
    #[arg(long, value_name = "MIN:MAX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) elastic: Option<ElasticRange>,
    /// The number of restarts of a lost rank, with --elastic [default: 3].
    #[arg(long, value_name = "N")]
    pub(crate) max_restarts: usize,
    /// The exchange of gradients between GPUs: nccl, host (through host memory), burn (Burn's own collective, with
    /// --strategy data-parallel), or auto: nccl if each rank has its own GPU and NCCL is installed [default: auto].
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
    #[serde(skip_serializing_if = "Option::is_none")]
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

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl RunConfig {
    /// What is trained, with its settings.
    pub(crate) fn task(&self) -> Result<Box<dyn ConfiguredTask>, CliError> {
        let task = tasks::find(&self.model).ok_or_else(|| unknown_model(&self.model))?;
        self.refuse_foreign_sections(&task.sections())?;
        Ok(task.configure(&self.sections)?)
    }

    /// Refuses what neither a run nor its task has.
    fn refuse_foreign_sections(&self, own: &[&str]) -> Result<(), CliError> {
        let model = &self.model;
        let mut foreign = self.sections.keys();
        let foreign = foreign.find(|name| !own.contains(&name.as_str()));
        match foreign.map(String::as_str) {
            None => Ok(()),
            Some("text" | "gpt") => Err(CliError::usage_with_help(
                format!("{model} does not read text"),
                "--tokenizer, --sample-every, [text] and [gpt] are for text models; --list shows \
                 which these are",
            )),
            Some("data") => Err(CliError::usage_with_help(
                format!("{model} has data of its own"),
                format!(
                    "--data, --data-dir, --train-samples, --test-samples and [data] are not for it; its settings are in [{}]",
                    own.join("], [")
                ),
            )),
            Some(other) => {
                let sections = own.iter().copied().chain(["ranks", "training", "parallel"]);
                let nearest = nearest_name(other, sections).map(str::to_owned);
                let help = match nearest.or_else(|| nearest_key(other)) {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!(
                        "{model} has [{}] besides [ranks], [training] and [parallel]",
                        own.join("], [")
                    ),
                };
                Err(CliError::usage(format!("unknown key `{other}`; {help}")))
            }
        }
    }

    pub(crate) fn world_size(&self) -> usize {
        self.ranks.ranks.saturating_mul(self.ranks.nodes)
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
            (None, Some(run_dir), true) => Some(RunDirectory::open(run_dir)?.config_path()),
            _ => None,
        };
        let file_layer = file
            .as_deref()
            .map(read_table)
            .transpose()?
            .unwrap_or_default();
        let named = match (&arguments.model, file_layer.get("model")) {
            (Some(name), _) => Some(name.clone()),
            (None, Some(Value::String(name))) => Some(name.clone()),
            (None, _) => tasks::only().map(|task| task.name().to_owned()),
        };
        let in_file = file_layer.get("init_from").and_then(Value::as_str);
        let init_from = arguments.init_from.as_deref().or(in_file.map(Path::new));
        let adopted = match init_from {
            Some(folder) if !arguments.resume => {
                let skip = init_skip(arguments, &file_layer);
                match pretrained::adopt_run(folder, named.as_deref())? {
                    Some(found) => Some(found),
                    None => pretrained::adopt(folder, named.as_deref(), &skip)?,
                }
            }
            _ => None,
        };
        let (model, mut adopted) = match (adopted, named) {
            (Some((model, layer)), _) => (model, layer),
            (None, Some(model)) => (model, Table::new()),
            (None, None) => return Err(CliError::NoModel),
        };
        let task = tasks::find(&model).ok_or_else(|| unknown_model(&model))?;
        let mut table = task.preset();
        let flags = flags_layer(arguments, &model)?;
        pretrained::forget_tokenizer(&mut adopted, &[&file_layer, &flags]);
        merge(&mut table, adopted);
        for mut layer in [file_layer, flags] {
            optimizer::lift(&mut layer)?;
            optimizer::leave_out_others(&mut table, &layer);
            merge(&mut table, layer);
        }
        if !arguments.resume {
            forget_shards(&mut table, arguments.keys.has("data.name"));
        }
        require_average(&table)?;
        let fault = |reason: String| fault(&reason, &arguments.set, file.as_deref());
        let mut config = Self::deserialize(Value::Table(table))
            .map_err(|error| fault(configuration_fault(&error, "")))?;
        let foreign = config.refuse_foreign_sections(&task.sections());
        foreign.map_err(|error| match error {
            CliError::Usage {
                message,
                help: None,
            } => fault(message),
            other => other,
        })?;
        let configured = task.configure(&config.sections);
        let configured = configured.map_err(|error| match error.help() {
            Some(_) => error.into(),
            None => fault(error.to_string()),
        })?;
        config.sections = configured.sections()?;
        if let Some(environment) = environment.filter(|rank| rank.launcher_pid.is_none()) {
            // Machines need not have equal numbers of ranks; the product must be right.
            let (all, here) = (environment.world_size, environment.local_world_size.max(1));
            let (ranks, nodes) = match all % here {
                0 => (here, all / here),
                _ => (all, 1),
            };
            (config.ranks.ranks, config.ranks.nodes) = (ranks, nodes);
        }
        if arguments.resume && environment.is_none() && !arguments.keys.has("training.chaos") {
            // What went wrong on purpose went wrong once.
            config.training.chaos = Chaos::default();
        }
        if !arguments.keys.has("ranks.elastic") {
            config.ranks.elastic = config
                .ranks
                .elastic
                .map(|range| range.of(config.world_size()));
        }
        config.validate_ranks()?;
        let Parallelism { mesh, .. } = mesh::settle(&mut config, arguments)?;
        let features = config.features(mesh, arguments);
        config.training.check_conflicts(features)?;
        config.training.validate(mesh.data)?;
        config.training.check_shared_layers(mesh.tensor > 1)?;
        refuse_flags_of_rounds(&config, arguments)?;
        config.check_lora()?;
        for device in &config.ranks.devices {
            config.training.precision.check_device(device)?;
        }
        Ok(config)
    }
}

/// What is wrong with a key of the configuration, by the `--set` or the file that has it.
fn fault(reason: &str, set: &[String], file: Option<&Path>) -> CliError {
    let (what, help) = reason.split_once("; ").unwrap_or((reason, ""));
    let key = what.strip_prefix("unknown key `");
    let key = key.and_then(|key| key.strip_suffix('`')?.rsplit('.').next());
    let elsewhere = key.filter(|_| !help.starts_with("did you mean"));
    let reason = match elsewhere.and_then(nearest_key) {
        Some(nearest) => format!("{what}; did you mean `{nearest}`?"),
        None => reason.to_owned(),
    };
    let is_it = |assignment: &&String| {
        let path = assignment.split('=').next().unwrap_or_default();
        let mut keys = path.split('.').map(str::trim);
        keys.any(|key| what.contains(&format!("{key}`")))
    };
    match (set.iter().find(is_it), file) {
        (Some(assignment), _) => CliError::usage(format!("--set {assignment}: {reason}")),
        (None, Some(path)) => CliError::Config {
            path: path.to_path_buf(),
            reason,
        },
        (None, None) => CliError::usage(reason),
    }
}

/// The tensors of `--init-from` that are left out, by the flags or else by the file. What is no pattern there is refused
/// with the rest of the file.
fn init_skip(arguments: &TrainArguments, file: &Table) -> Patterns {
    if !arguments.init_skip.is_empty() {
        return Patterns::from(arguments.init_skip.clone());
    }
    let in_file = file.get("init_skip").cloned();
    in_file
        .and_then(|patterns| Patterns::deserialize(patterns).ok())
        .unwrap_or_default()
}

fn unknown_model(name: &str) -> CliError {
    let nearest = nearest_name(name, tasks::tasks().iter().map(|task| task.name()));
    CliError::UnknownModel {
        name: printable(name, LONGEST_NAME),
        hint: nearest.map_or_else(String::new, |name| format!("did you mean `{name}`? ")),
    }
}

/// The table in the TOML file at `path`.
pub(crate) fn read_table(path: &Path) -> Result<Table, CliError> {
    let refuse = |reason: String| CliError::Config {
        path: path.to_path_buf(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    text.parse::<Table>()
        .map_err(|error| refuse(configuration_fault(&error, &text)))
}

/// Values of `upper` replace those of `lower`; tables are merged key by key.
fn merge(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => drop(lower.insert(key, value)),
        }
    }
}

impl RunConfig {
    /// The configuration of an evaluation: the run's own, but data and ranks as the flags say.
    pub(crate) fn for_evaluation(
        self,
        keys: &Given<OfEvaluation>,
        ranks: &RankFlags,
    ) -> Result<Self, CliError> {
        let mut table =
            Table::try_from(&self).map_err(|error| CliError::usage(error.to_string()))?;
        table.remove("ranks");
        // What trained on many ranks may be measured on one.
        table.remove("parallel");
        // Only training images are changed.
        if let Some(Value::Table(data)) = table.get_mut("data") {
            data.remove("augment");
        }
        forget_shards(&mut table, keys.has("data.name"));
        let mut layer = keys.table.clone();
        complete(&mut layer, ranks)?;
        merge(&mut table, layer);
        let config = Self::deserialize(Value::Table(table))
            .map_err(|error| CliError::usage(error.to_string()))?;
        config.validate_ranks()?;
        if config.ranks.strategy == Strategy::ModelParallel {
            return Err(CliError::usage_with_help(
                "--strategy model-parallel is for training: an evaluation has its model on one device",
                "leave it out; what was trained on several devices is evaluated on one as well",
            ));
        }
        if config.ranks.elastic.is_some() {
            return Err(CliError::usage_with_help(
                "--elastic is for training: an evaluation that loses a rank has no result",
                "leave it out, and evaluate again after a loss",
            ));
        }
        Ok(config)
    }
}

/// Forgets which files of tokens another run has read, where other data are named. A resumed run remembers its own.
fn forget_shards(table: &mut Table, others_named: bool) {
    if others_named && let Some(Value::Table(text)) = table.get_mut("text") {
        text.remove("shards");
    }
}

/// What is said of a moving average wants one.
fn require_average(table: &Table) -> Result<(), CliError> {
    let ema = table.get("training").and_then(|it| it.get("ema"));
    let ema = ema.and_then(Value::as_table);
    match ema.is_some_and(|ema| !ema.contains_key("decay")) {
        true => Err(CliError::usage_with_help(
            "--ema-sharded and --ema-validate are about a moving average of the parameters, and there is none",
            "add --ema, as in --ema 0.999",
        )),
        false => Ok(()),
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
