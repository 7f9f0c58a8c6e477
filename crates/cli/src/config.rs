//! A run's configuration: flags, then the file, then the model's preset, then the defaults.

mod checks;
mod flags;
mod optimizer;

use std::path::{Path, PathBuf};

use crate::prelude::RunDirectory;
use everburn_collectives::group::TransportKind;
use everburn_collectives::printable;
use everburn_distributed::GradientBackend;
use everburn_launch::RankEnvironment;
use everburn_train::{
    Chaos, ConfiguredTask, ParallelConfig, Patterns, TrainingConfig, configuration_fault,
};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use self::checks::refuse_flags_of_rounds;
use self::flags::{
    Layer, add_data_flags, add_ema_flags, add_gradient_flags, add_input_flags, add_parallel_flags,
    add_rank_flags, add_rate_flags, add_schedules, add_sync_flags,
};
use crate::arguments::{DataFlags, RankFlags, Strategy, TrainArguments, TrainingFlags};
use crate::elastic::ElasticRange;
use crate::error::CliError;
use crate::{mesh, pretrained, tasks};

/// How much of a name that nobody knows is shown, in characters.
const LONGEST_NAME: usize = 80;

/// On what a run runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RanksConfig {
    /// Ranks on each machine.
    pub(crate) ranks: usize,
    /// Processes or threads.
    pub(crate) strategy: Strategy,
    /// Machines.
    pub(crate) nodes: usize,
    /// The device of each rank, in turn.
    pub(crate) devices: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads_per_rank: Option<usize>,
    /// How long a rank waits for another, in seconds.
    pub(crate) timeout: u64,
    /// The heartbeat timeout of a rank, in seconds; 0 turns the heartbeat monitor off.
    pub(crate) heartbeat_timeout: u64,
    /// With how many ranks the training goes on; absent if it ends with the first that is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) elastic: Option<ElasticRange>,
    /// How often a lost rank is started again.
    pub(crate) max_restarts: usize,
    /// How gradients travel between GPUs.
    pub(crate) backend: GradientBackend,
    /// How ranks reach each other.
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
                "--tokenizer, --sample-every, [text] and [gpt] are for models of text; --list shows \
                 which these are",
            )),
            Some("data") => Err(CliError::usage_with_help(
                format!("{model} has data of its own"),
                format!(
                    "--data, --data-dir, --train-samples, --test-samples and [data] are not for it; its \
                     settings stand in [{}]",
                    own.join("], [")
                ),
            )),
            Some(other) => Err(CliError::usage(format!(
                "unknown key `{other}`; {model} has [{}] besides [ranks], [training] and [parallel]",
                own.join("], [")
            ))),
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
            Some(folder) if !arguments.resume => pretrained::adopt(folder, named.as_deref())?,
            _ => None,
        };
        let (model, adopted) = match (adopted, named) {
            (Some((model, layer)), _) => (model, layer),
            (None, Some(model)) => (model, Table::new()),
            (None, None) => return Err(CliError::NoModel),
        };
        let task = tasks::find(&model).ok_or_else(|| unknown_model(&model))?;
        let mut table = task.preset();
        merge(&mut table, adopted);
        for mut layer in [file_layer, flags_layer(arguments, &model)?] {
            optimizer::lift(&mut layer)?;
            optimizer::leave_out_others(&mut table, &layer);
            merge(&mut table, layer);
        }
        if !arguments.resume {
            forget_shards(&mut table, &arguments.data);
        }
        require_average(&table)?;
        let fault = |reason: String| match &file {
            Some(path) => CliError::Config {
                path: path.clone(),
                reason,
            },
            None => CliError::usage(reason),
        };
        let mut config = Self::deserialize(Value::Table(table))
            .map_err(|error| fault(configuration_fault(&error, "")))?;
        config.refuse_foreign_sections(&task.sections())?;
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
        if arguments.resume && environment.is_none() && arguments.training.chaos.is_none() {
            // What went wrong on purpose went wrong once.
            config.training.chaos = Chaos::default();
        }
        if arguments.ranks.elastic.is_none() {
            config.ranks.elastic = config
                .ranks
                .elastic
                .map(|range| range.of(config.world_size()));
        }
        config.validate_ranks()?;
        let parallelism = mesh::settle(&mut config, arguments)?;
        config.training.validate(parallelism.mesh.data)?;
        let shares_layers = parallelism.mesh.tensor > 1;
        config.training.check_shared_layers(shares_layers)?;
        refuse_flags_of_rounds(&config, arguments)?;
        config.check_lora(config.world_size() > parallelism.mesh.data)?;
        for device in &config.ranks.devices {
            config.training.precision.check_device(device)?;
        }
        Ok(config)
    }
}

fn unknown_model(name: &str) -> CliError {
    let nearest = tasks::tasks()
        .iter()
        .map(|task| (strsim::jaro_winkler(name, task.name()), task.name()))
        .filter(|(likeness, _)| *likeness > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    CliError::UnknownModel {
        name: printable(name, LONGEST_NAME),
        hint: nearest.map_or_else(String::new, |(_, name)| format!("did you mean `{name}`? ")),
    }
}

fn read_table(path: &Path) -> Result<Table, CliError> {
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

/// The flags that were given, as a table of the same shape as the file.
fn flags_layer(arguments: &TrainArguments, model: &str) -> Result<Table, CliError> {
    let mut layer = Layer::default();
    layer.set(&["model"], Some(&model))?;
    let init_from = arguments.init_from.as_deref().map(std::path::absolute);
    let init_from = init_from
        .transpose()
        .map_err(|error| CliError::usage(format!("--init-from: {error}")))?;
    layer.set(&["init_from"], init_from.as_ref())?;
    let skip = (!arguments.init_skip.is_empty()).then_some(&arguments.init_skip);
    layer.set(&["init_skip"], skip)?;
    let TrainingFlags {
        epochs,
        steps,
        batch_size,
        optimizer,
        learning_rate,
        lr_schedule,
        schedule,
        momentum,
        weight_decay,
        seed,
        validation_samples,
        early_stopping,
        best_by,
        keep_checkpoints,
        checkpoint_every,
        on_checkpoint_failure,
        log_every,
        compare_every,
        on_divergence,
        chaos,
        hash_every,
        rates,
        ema,
        tensorboard,
        text,
        lora,
        gradients,
        sync,
    } = &arguments.training;
    layer.set(&["training", "epochs"], epochs.as_ref())?;
    layer.set(&["training", "steps"], steps.as_ref())?;
    layer.set(&["training", "batch_size"], batch_size.as_ref())?;
    let pipeline_schedule = arguments.parallel.pipeline_schedule;
    add_schedules(&mut layer, *lr_schedule, pipeline_schedule, schedule)?;
    layer.set(&["training", "seed"], seed.as_ref())?;
    layer.set(
        &["training", "validation_samples"],
        validation_samples.as_ref(),
    )?;
    layer.set(
        &["training", "early_stopping", "patience"],
        early_stopping.as_ref(),
    )?;
    layer.set(&["training", "best_by"], best_by.as_ref())?;
    layer.set(&["training", "keep_checkpoints"], keep_checkpoints.as_ref())?;
    let path = ["training", "checkpoint_every"];
    layer.set(&path, checkpoint_every.as_ref())?;
    let path = ["training", "on_checkpoint_failure"];
    layer.set(&path, on_checkpoint_failure.as_ref())?;
    layer.set(&["training", "log_every"], log_every.as_ref())?;
    layer.set(&["training", "compare_every"], compare_every.as_ref())?;
    layer.set(&["training", "on_divergence"], on_divergence.as_ref())?;
    layer.set(&["training", "chaos"], chaos.as_ref())?;
    layer.set(&["training", "hash_every"], hash_every.as_ref())?;
    let tensorboard = tensorboard.then_some(true);
    layer.set(&["training", "tensorboard"], tensorboard.as_ref())?;
    layer.set(&["training", "optimizer", "kind"], optimizer.as_ref())?;
    layer.set(
        &["training", "optimizer", "learning_rate"],
        learning_rate.as_ref(),
    )?;
    layer.set(&["training", "optimizer", "momentum"], momentum.as_ref())?;
    layer.set(
        &["training", "optimizer", "weight_decay"],
        weight_decay.as_ref(),
    )?;
    layer.set(&["text", "tokenizer"], text.tokenizer.as_ref())?;
    layer.set(&["text", "sample_every"], text.sample_every.as_ref())?;
    layer.set(
        &["training", "optimizer", "layer_decay"],
        lora.layer_decay.as_ref(),
    )?;
    layer.set(&["training", "lora", "rank"], lora.lora.as_ref())?;
    layer.set(&["training", "lora", "alpha"], lora.lora_alpha.as_ref())?;
    layer.set(&["training", "lora", "targets"], lora.lora_targets.as_ref())?;
    add_rate_flags(&mut layer, rates)?;
    add_ema_flags(&mut layer, ema)?;
    add_gradient_flags(&mut layer, gradients)?;
    add_sync_flags(&mut layer, sync)?;
    add_data_flags(&mut layer, &arguments.data)?;
    add_input_flags(&mut layer, &arguments.input)?;
    add_rank_flags(&mut layer, &arguments.ranks)?;
    add_parallel_flags(&mut layer, &arguments.parallel)?;
    for assignment in &arguments.set {
        layer.assign(assignment)?;
    }
    Ok(layer.table)
}

impl RunConfig {
    /// The configuration of an evaluation: the run's own, but data and ranks as the flags say.
    pub(crate) fn for_evaluation(
        self,
        data: &DataFlags,
        ranks: &RankFlags,
    ) -> Result<Self, CliError> {
        let mut table =
            Table::try_from(&self).map_err(|error| CliError::usage(error.to_string()))?;
        table.remove("ranks");
        // What trained on many ranks may be measured on one.
        table.remove("parallel");
        forget_shards(&mut table, data);
        let mut layer = Layer::default();
        add_data_flags(&mut layer, data)?;
        add_rank_flags(&mut layer, ranks)?;
        merge(&mut table, layer.table);
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

/// Forgets which files of tokens another run has read, where other data are named. A run that goes on remembers its own.
fn forget_shards(table: &mut Table, flags: &DataFlags) {
    if flags.data.is_some()
        && let Some(Value::Table(text)) = table.get_mut("text")
    {
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
            "add --ema 0.999, say",
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
