//! Whether the model of a task can be trained by the optimizer that was asked for.

use burn::prelude::Device;
use everburn_train::ConfiguredTask;

use crate::arguments::TrainArguments;
use crate::config::{RunConfig, key_of};
use crate::error::CliError;

/// Checks that the groups of parameters, and those that factors of LoRA are put beside, are some of the task's model, and that
/// no flag names another optimizer than a task's own. No parameter is drawn.
pub(super) fn check_optimizer(
    config: &RunConfig,
    arguments: &TrainArguments,
    task: &dyn ConfiguredTask,
) -> Result<(), CliError> {
    let of_optimizer = flags_of_optimizer(arguments);
    let has_groups = config.training.optimizer.has_groups();
    let lora = config.training.lora.as_ref();
    if lora.is_none() && !has_groups && of_optimizer.is_empty() {
        return Ok(());
    }
    let model = task.model(&Device::default())?;
    if let Some(lora) = lora {
        lora.check_targets(&model)?;
    }
    if has_groups {
        config.training.optimizer.init(&model)?;
    }
    match of_optimizer.first() {
        Some(flag) if task.optimizer(&model)?.is_some() => Err(CliError::usage_with_help(
            format!(
                "{flag} has no effect: {} has its own optimizer (`Task::optimizer`)",
                config.model
            ),
            "leave it out, or set it in the task's code; --learning-rate counts where the task has no schedule of its own",
        )),
        _ => Ok(()),
    }
}

/// The flags that name an optimizer or set something of it besides learning rates.
fn flags_of_optimizer(arguments: &TrainArguments) -> Vec<String> {
    const RATES: [&str; 3] = ["learning_rate", "layer_decay", "groups"];
    let is_of_optimizer = |path: &str| {
        let setting = path.strip_prefix("training.").unwrap_or(path);
        let setting = setting.strip_prefix("optimizer.");
        setting.is_some_and(|setting| !RATES.contains(&setting))
    };
    let keys = ["kind", "weight_decay", "momentum"].into_iter();
    let flags = keys.filter_map(|key| arguments.keys.quoted(&format!("training.optimizer.{key}")));
    let sets = arguments
        .set
        .iter()
        .filter(|assignment| is_of_optimizer(key_of(assignment)));
    flags
        .chain(sets.map(|assignment| format!("--set {assignment}")))
        .collect()
}
