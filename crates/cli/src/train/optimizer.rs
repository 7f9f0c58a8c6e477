//! Whether the model of a task can be trained by the optimizer and the schedule that were asked for.

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

/// Checks that no flag sets a learning rate of a task with a schedule of its own, whose data have `samples` to learn from.
pub(super) fn check_schedule(
    config: &RunConfig,
    arguments: &TrainArguments,
    task: &dyn ConfiguredTask,
    samples: usize,
) -> Result<(), CliError> {
    match flags_of_schedule(arguments).first() {
        Some(flag)
            if task
                .schedule(config.training.total_steps(samples))?
                .is_some() =>
        {
            Err(CliError::usage_with_help(
                format!(
                    "{flag} has no effect: {} has its own schedule of the learning rate (`Task::schedule`)",
                    config.model
                ),
                "leave it out, or set the rates in the task's code",
            ))
        }
        _ => Ok(()),
    }
}

/// The flags that set a learning rate, a schedule or something of it, or look for a rate.
fn flags_of_schedule(arguments: &TrainArguments) -> Vec<String> {
    const KEYS: [&str; 6] = [
        "optimizer.learning_rate",
        "schedule",
        "schedule_numbers.warmup_steps",
        "schedule_numbers.final_learning_rate",
        "schedule_numbers.decay_every",
        "schedule_numbers.decay_factor",
    ];
    let is_of_schedule =
        |path: &str| KEYS.contains(&path.strip_prefix("training.").unwrap_or(path));
    let flags = KEYS.iter();
    let flags = flags.filter_map(|key| arguments.keys.quoted(&format!("training.{key}")));
    let sets = arguments.set.iter();
    let sets = sets
        .filter(|assignment| is_of_schedule(key_of(assignment)))
        .map(|assignment| format!("--set {assignment}"));
    let finder = arguments.finders.find_learning_rate;
    let finder = finder.then(|| "--find-learning-rate".to_owned());
    flags.chain(sets).chain(finder).collect()
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

#[cfg(test)]
mod tests {
    use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
    use burn::nn::{Linear, LinearConfig};
    use burn::prelude::*;
    use clap::Parser;
    use everburn_train::{AnyTask, Loss, Task, TaskData, TaskError};

    use super::*;
    use crate::arguments::{Arguments, Command};

    /// A task whose schedule is its own, or the configuration's.
    struct Point {
        own: bool,
    }

    impl Task for Point {
        type Config = toml::Table;
        type Model = Linear;
        type Item = ();
        type Batch = Tensor<2>;

        fn model(&self, _: &toml::Table, device: &Device) -> Result<Linear, TaskError> {
            Ok(LinearConfig::new(1, 1).init(device))
        }

        fn data(&self, _: &mut toml::Table) -> Result<TaskData<(), Tensor<2>>, TaskError> {
            Err(TaskError::new("no data"))
        }

        fn loss(&self, _: &toml::Table, model: &Linear, batch: Tensor<2>) -> Loss {
            Loss::new(model.forward(batch).mean(), 1_usize)
        }

        fn schedule(
            &self,
            _: &toml::Table,
            total_steps: usize,
        ) -> Result<Option<ModuleLrScheduler>, TaskError> {
            assert_eq!(total_steps, 2 * 3, "two epochs of three batches");
            Ok(self.own.then(|| ModuleLrScheduler::new(0.5)))
        }
    }

    fn checked(words: &str, own: bool) -> Result<(), CliError> {
        let words = format!("everburn train mnist --epochs 2 --batch-size 4 {words}");
        let Command::Train(arguments) = Arguments::parse_from(words.split(' ')).command else {
            panic!("another command")
        };
        let config = RunConfig::resolve(&arguments, None)?;
        let task = AnyTask::new("point", Point { own });
        let task = task.configure(&toml::Table::new())?;
        check_schedule(&config, &arguments, &*task, 11)
    }

    #[test]
    fn flags_of_the_learning_rate_are_refused_beside_a_schedule_of_the_tasks_own() {
        for flag in [
            "--learning-rate 0.5",
            "--lr-schedule cosine",
            "--warmup-steps 2",
            "--set training.schedule=linear",
            "--find-learning-rate",
        ] {
            assert!(checked(flag, false).is_ok(), "{flag}");
            let refused = checked(flag, true).unwrap_err().to_string();
            let expected = format!("{flag} has no effect: ");
            assert!(refused.contains(&expected), "{refused}");
        }
        assert!(checked("--log-every 1", true).is_ok());
    }
}
