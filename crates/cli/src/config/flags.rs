//! What flags put into a configuration.

use everburn_schedules::ScheduleKind;
use everburn_train::Schedule;
use serde::Serialize;
use toml::{Table, Value};

use crate::arguments::{
    DataFlags, EmaFlags, GradientFlags, InputFlags, ParallelFlags, RankFlags, RateFlags,
    ScheduleFlag, Strategy, SyncFlags,
};
use crate::devices;
use crate::error::CliError;

#[derive(Default)]
pub(super) struct Layer {
    pub(super) table: Table,
}

impl Layer {
    /// Puts `value`, where there is one, under the nested keys of `path`.
    pub(super) fn set<T: Serialize>(
        &mut self,
        path: &[&str],
        value: Option<&T>,
    ) -> Result<(), CliError> {
        let Some(value) = value else { return Ok(()) };
        let value = Value::try_from(value)
            .map_err(|error| CliError::usage(format!("{}: {error}", path.join("."))))?;
        let (last, parents) = path.split_last().expect("a path has a last key");
        let mut table = &mut self.table;
        for key in parents {
            let entry = table
                .entry(*key)
                .or_insert_with(|| Value::Table(Table::new()));
            table = entry.as_table_mut().ok_or_else(|| {
                CliError::usage(format!(
                    "`{}` cannot be set: `{key}` has a value and is no section",
                    path.join(".")
                ))
            })?;
        }
        table.insert((*last).to_string(), value);
        Ok(())
    }

    /// Does what `--set KEY=VALUE` says.
    pub(super) fn assign(&mut self, assignment: &str) -> Result<(), CliError> {
        let (key, value) = assignment.split_once('=').ok_or_else(|| {
            CliError::usage_with_help(
                format!("--set {assignment}: there is no value"),
                "a key, dots between its parts, an equals sign and a value: --set training.epochs=5",
            )
        })?;
        let path = key.trim().split('.').collect::<Vec<_>>();
        let text = value.trim();
        // A word without quotation marks is meant as a text.
        let parsed = format!("value = {text}").parse::<Table>().ok();
        let parsed = parsed.filter(|table| table.len() == 1);
        let value = parsed.and_then(|mut table| table.remove("value"));
        let value = value.unwrap_or_else(|| Value::String(text.to_owned()));
        self.set(&path, Some(&value))
    }
}

/// The two schedules; `old` are the values of `--schedule`.
pub(super) fn add_schedules(
    layer: &mut Layer,
    mut learning_rate: Option<Schedule>,
    mut pipeline: Option<ScheduleKind>,
    old: &[ScheduleFlag],
) -> Result<(), CliError> {
    for flag in old {
        let (name, twice) = match *flag {
            ScheduleFlag::LearningRate(schedule) => {
                ("--lr-schedule", learning_rate.replace(schedule).is_some())
            }
            ScheduleFlag::Pipeline(kind) => {
                ("--pipeline-schedule", pipeline.replace(kind).is_some())
            }
        };
        if twice {
            return Err(CliError::usage_with_help(
                format!("{name} is given twice"),
                "--schedule is the old name of --lr-schedule and --pipeline-schedule",
            ));
        }
    }
    layer.set(&["training", "schedule"], learning_rate.as_ref())?;
    layer.set(&["parallel", "schedule"], pipeline.as_ref())
}

pub(super) fn add_rate_flags(layer: &mut Layer, flags: &RateFlags) -> Result<(), CliError> {
    let RateFlags {
        warmup_steps,
        final_learning_rate,
        decay_every,
        decay_factor,
    } = flags;
    let path = |key| ["training", "schedule_numbers", key];
    layer.set(&path("warmup_steps"), warmup_steps.as_ref())?;
    layer.set(&path("final_learning_rate"), final_learning_rate.as_ref())?;
    layer.set(&path("decay_every"), decay_every.as_ref())?;
    layer.set(&path("decay_factor"), decay_factor.as_ref())
}

pub(super) fn add_ema_flags(layer: &mut Layer, flags: &EmaFlags) -> Result<(), CliError> {
    let given = |flag: bool| flag.then_some(true);
    layer.set(&["training", "ema", "decay"], flags.ema.as_ref())?;
    let sharded = given(flags.ema_sharded);
    layer.set(&["training", "ema", "sharded"], sharded.as_ref())?;
    let validate = given(flags.ema_validate);
    layer.set(&["training", "ema", "validate"], validate.as_ref())
}

pub(super) fn add_sync_flags(layer: &mut Layer, flags: &SyncFlags) -> Result<(), CliError> {
    let SyncFlags {
        sync,
        outer_optimizer,
        outer_learning_rate,
        outer_momentum,
        compress_outer,
        outer_patience,
    } = flags;
    layer.set(&["training", "sync"], sync.as_ref())?;
    let path = |key| ["training", "outer", key];
    layer.set(&path("optimizer"), outer_optimizer.as_ref())?;
    layer.set(&path("learning_rate"), outer_learning_rate.as_ref())?;
    layer.set(&path("momentum"), outer_momentum.as_ref())?;
    layer.set(&path("compression"), compress_outer.as_ref())?;
    layer.set(&["training", "outer_patience"], outer_patience.as_ref())
}

pub(super) fn add_parallel_flags(layer: &mut Layer, flags: &ParallelFlags) -> Result<(), CliError> {
    layer.set(&["parallel", "mesh"], flags.mesh.as_ref())?;
    layer.set(&["parallel", "micro_batches"], flags.micro_batches.as_ref())?;
    layer.set(&["parallel", "chunks"], flags.chunks.as_ref())?;
    layer.set(&["parallel", "stages"], flags.stages.as_ref())
}

pub(super) fn add_gradient_flags(layer: &mut Layer, flags: &GradientFlags) -> Result<(), CliError> {
    let given = |flag: bool| flag.then_some(true);
    let bucket_bytes = flags.bucket_mib.map(|mib| mib.saturating_mul(1 << 20));
    layer.set(&["training", "accumulate"], flags.accumulate.as_ref())?;
    layer.set(&["training", "precision"], flags.precision.as_ref())?;
    let virtual_ranks = flags.virtual_ranks.as_ref();
    layer.set(&["training", "virtual_ranks"], virtual_ranks)?;
    let checkpointing = flags.activation_checkpointing;
    layer.set(
        &["training", "activation_checkpointing"],
        checkpointing.as_ref(),
    )?;
    let overlap = flags.no_overlap.then_some(false);
    layer.set(&["training", "overlap"], overlap.as_ref())?;
    let sync_batch_norm = given(flags.sync_batch_norm);
    layer.set(&["training", "sync_batch_norm"], sync_batch_norm.as_ref())?;
    let whole = flags.shard.is_some_and(|shard| shard.0.is_none());
    // A run that continues without slices has nothing to keep elsewhere.
    let offload = given(flags.offload_optimizer).or(whole.then_some(false));
    layer.set(&["training", "offload_optimizer"], offload.as_ref())?;
    let mut set_ddp =
        |key: &str, value: Option<Value>| layer.set(&["training", "ddp", key], value.as_ref());
    let norm = flags
        .max_gradient_norm
        .map(|norm| Value::Float(norm.into()));
    set_ddp("max_gradient_norm", norm)?;
    let hook = flags
        .communication_hook
        .map(|hook| Value::String(hook.to_string()));
    set_ddp("communication", hook)?;
    let buffers = flags
        .buffers
        .map(|buffers| Value::String(buffers.to_string()));
    set_ddp("buffers", buffers)?;
    let shard = flags.shard.map(|shard| match shard.0 {
        Some(stage) => Value::String(stage.to_string()),
        None => Value::String("none".to_string()),
    });
    set_ddp("shard", shard)?;
    set_ddp(
        "static_graph",
        given(flags.static_graph).map(Value::Boolean),
    )?;
    layer.set(&["training", "ddp", "bucket_bytes"], bucket_bytes.as_ref())
}

pub(super) fn add_data_flags(layer: &mut Layer, flags: &DataFlags) -> Result<(), CliError> {
    layer.set(&["data", "name"], flags.data.as_ref())?;
    layer.set(&["data", "folder"], flags.data_dir.as_ref())?;
    layer.set(&["data", "train_samples"], flags.train_samples.as_ref())?;
    layer.set(&["data", "test_samples"], flags.test_samples.as_ref())
}

pub(super) fn add_input_flags(layer: &mut Layer, flags: &InputFlags) -> Result<(), CliError> {
    layer.set(&["training", "input", "workers"], flags.workers.as_ref())?;
    layer.set(&["training", "input", "prefetch"], flags.prefetch.as_ref())?;
    let on_device = flags.data_on_device.then_some(true);
    layer.set(&["training", "input", "on_device"], on_device.as_ref())?;
    let read_metrics = flags.read_metrics.as_ref();
    layer.set(&["training", "read_metrics"], read_metrics)
}

pub(super) fn add_rank_flags(layer: &mut Layer, flags: &RankFlags) -> Result<(), CliError> {
    let gpus = flags.gpus.map(devices::first_gpus);
    let devices = flags.devices.clone().or(gpus);
    // One rank a device, unless --ranks says otherwise or the devices are one model's.
    let ranks_of = |devices: &Vec<String>| match flags.strategy {
        Some(Strategy::ModelParallel) => 1,
        _ => devices.len(),
    };
    let ranks = flags.ranks.or(devices.as_ref().map(ranks_of));
    layer.set(&["ranks", "ranks"], ranks.as_ref())?;
    layer.set(&["ranks", "strategy"], flags.strategy.as_ref())?;
    layer.set(&["ranks", "devices"], devices.as_ref())?;
    layer.set(
        &["ranks", "threads_per_rank"],
        flags.threads_per_rank.as_ref(),
    )?;
    layer.set(&["ranks", "nodes"], flags.nodes.as_ref())?;
    layer.set(&["ranks", "backend"], flags.backend.as_ref())?;
    let transport = flags.transport.map(|kind| kind.to_string());
    layer.set(&["ranks", "transport"], transport.as_ref())?;
    let heartbeat_timeout = flags.heartbeat_timeout.as_ref();
    layer.set(&["ranks", "heartbeat_timeout"], heartbeat_timeout)?;
    layer.set(&["ranks", "elastic"], flags.elastic.as_ref())?;
    layer.set(&["ranks", "max_restarts"], flags.max_restarts.as_ref())?;
    layer.set(&["ranks", "timeout"], flags.timeout.as_ref())
}
