//! `--strategy model-parallel`: one model over several devices of a process.

use std::fmt::Write as _;

use crate::devices;
use burn::prelude::Device;
use everburn_nn::{DeviceSplit, PlacementError};
use everburn_train::{ActivationCheckpointing, AnyModel, ConfiguredTask, TrainError};

use crate::arguments::Strategy;
use crate::config::{RanksConfig, RunConfig};
use crate::error::CliError;

/// Checks that each rank has devices enough: as many as any other, and two at least.
pub(crate) fn check_devices(config: &RanksConfig) -> Result<(), CliError> {
    let (devices, ranks) = (config.devices.len(), config.ranks);
    if config.strategy != Strategy::ModelParallel {
        return Ok(());
    }
    if config.nodes > 1 {
        return Err(CliError::usage_with_help(
            "--strategy model-parallel is for one machine",
            "on several machines, use --strategy ddp",
        ));
    }
    if devices >= 2 * ranks && devices.is_multiple_of(ranks) {
        return Ok(());
    }
    Err(CliError::usage_with_help(
        format!(
            "--strategy model-parallel cuts each rank's model over two devices or more, as many for \
             each rank; --ranks {ranks} and {devices} in --devices do not go together"
        ),
        "name the devices of the first rank's model, then those of the second's: --ranks 1 \
         --devices cuda:0,cuda:1, or on the processor --ranks 1 --devices flex,flex",
    ))
}

/// Checks that there is a block of the model for each device, before anything is started.
pub(crate) fn check_model(config: &RunConfig) -> Result<(), CliError> {
    if config.ranks.strategy != Strategy::ModelParallel {
        return Ok(());
    }
    let devices = config.ranks.devices.len() / config.ranks.ranks.max(1);
    let blocks = config.task()?.blocks()?.names.len();
    if devices > blocks {
        let error = PlacementError::TooManyDevices { devices, blocks };
        return Err(CliError::usage(format!("{}: {error}", config.model)));
    }
    Ok(())
}

/// The devices of a rank's model with their names, if it has several.
pub(crate) fn devices_of_rank(
    config: &RanksConfig,
    local_rank: usize,
) -> Result<Option<Vec<(String, Device)>>, CliError> {
    if config.strategy != Strategy::ModelParallel {
        return Ok(None);
    }
    let each = config.devices.len() / config.ranks.max(1);
    let own = local_rank * each..(local_rank + 1) * each;
    let named = own.map(|number| {
        let device = devices::of_rank(&config.devices, number)?;
        let name = devices::name_of_rank(&config.devices, number);
        Ok((name.to_owned(), device))
    });
    named.collect::<Result<_, _>>().map(Some)
}

/// The model, cut over `devices` so that all take about as long. The backward pass computes as many blocks again
/// as `checkpointing` says.
pub(crate) fn place(
    task: &dyn ConfiguredTask,
    model: AnyModel,
    devices: &[(String, Device)],
    checkpointing: ActivationCheckpointing,
) -> Result<AnyModel, TrainError> {
    let (names, devices): (Vec<_>, Vec<_>) = devices.iter().cloned().unzip();
    let (model, split) = task.on_devices(model, &devices, checkpointing)?;
    tracing::info!("{}", description(&split, &names));
    Ok(model)
}

/// `the model is cut in 2: conv1 to conv2 on flex, fc1 to fc2 on cuda:1`
fn description(split: &DeviceSplit, devices: &[String]) -> String {
    let mut text = format!("the model is cut in {}", split.parts().len());
    for (number, (part, device)) in split.parts().iter().zip(devices).enumerate() {
        let before = if number == 0 { ":" } else { "," };
        let (first, last) = (part.names.first(), part.names.last());
        let (first, last) = (first.map_or("", |name| name), last.map_or("", |name| name));
        let blocks = match first == last {
            true => first.to_string(),
            false => format!("{first} to {last}"),
        };
        // Writing to a string does not fail.
        let _ = write!(text, "{before} {blocks} on {device}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(ranks: usize, devices: usize) -> RanksConfig {
        RanksConfig {
            ranks,
            devices: vec!["flex".to_string(); devices],
            strategy: Strategy::ModelParallel,
            ..RanksConfig::default()
        }
    }

    #[test]
    fn each_rank_has_as_many_devices_and_two_at_least() {
        for (count, devices) in [(1, 2), (1, 3), (2, 4), (3, 6)] {
            check_devices(&ranks(count, devices)).unwrap();
            let own = devices_of_rank(&ranks(count, devices), count - 1).unwrap();
            assert_eq!(own.unwrap().len(), devices / count);
        }
        for (count, devices) in [(1, 1), (2, 2), (2, 3), (2, 5)] {
            let error = check_devices(&ranks(count, devices)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("two devices or more"), "{text}");
            assert!(text.contains(&format!("--ranks {count}")), "{text}");
        }
        let ddp = RanksConfig::default();
        check_devices(&ddp).unwrap();
        assert_eq!(devices_of_rank(&ddp, 0).unwrap(), None);
    }
}
