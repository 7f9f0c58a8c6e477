//! Whether the model of a task can be trained by the optimizer and the schedule that were asked for.

use burn::prelude::Device;
use everburn_train::ConfiguredTask;

use crate::arguments::TrainArguments;
use crate::config::{RunConfig, key_of};
use crate::error::CliError;

/// Checks that the groups of parameters, and those that factors of LoRA are put beside, are some of the task's model, and that
/// no flag sets what the task has of its own: an optimizer, or a schedule for a run on `samples` samples. No parameter is drawn.
pub(super) fn check_optimizer(
    config: &RunConfig,
    arguments: &TrainArguments,
    task: &dyn ConfiguredTask,
    samples: usize,
) -> Result<(), CliError> {
    let training = &config.training;
    let (of_optimizer, of_schedule) = (flag_of_optimizer(arguments), flag_of_schedule(arguments));
    let has_groups = training.optimizer.has_groups();
    if training.lora.is_some() || has_groups || of_optimizer.is_some() {
        let model = task.model(&Device::default())?;
        if let Some(lora) = &training.lora {
            lora.check_targets(&model)?;
        }
        if has_groups {
            training.optimizer.init(&model)?;
        }
        if let Some(flag) = of_optimizer
            && task.optimizer(&model)?.is_some()
        {
            return Err(CliError::usage_with_help(
                format!(
                    "{flag} has no effect: {} has its own optimizer (`Task::optimizer`)",
                    config.model
                ),
                "leave it out, or set it in the task's code; --learning-rate counts where the task has no schedule of its own",
            ));
        }
    }
    if let Some(flag) = of_schedule
        && task.schedule(training.total_steps(samples))?.is_some()
    {
        return Err(CliError::usage_with_help(
            format!(
                "{flag} has no effect: {} has its own schedule of the learning rate (`Task::schedule`)",
                config.model
            ),
            "leave it out, or set the rates in the task's code",
        ));
    }
    Ok(())
}

/// The first flag that sets a learning rate, a schedule or something of it, or looks for a rate.
fn flag_of_schedule(arguments: &TrainArguments) -> Option<String> {
    const KEYS: [&str; 6] = [
        "optimizer.learning_rate",
        "schedule",
        "schedule_numbers.warmup_steps",
        "schedule_numbers.final_learning_rate",
        "schedule_numbers.decay_every",
        "schedule_numbers.decay_factor",
    ];
    let finder = arguments.finders.find_learning_rate;
    let finder = finder.then(|| "--find-learning-rate".to_owned());
    first_flag(arguments, &KEYS, |key| KEYS.contains(&key)).or(finder)
}

/// The first flag that names an optimizer or sets something of it besides learning rates.
fn flag_of_optimizer(arguments: &TrainArguments) -> Option<String> {
    const RATES: [&str; 3] = ["learning_rate", "layer_decay", "groups"];
    let keys = [
        "optimizer.kind",
        "optimizer.weight_decay",
        "optimizer.momentum",
    ];
    first_flag(arguments, &keys, |key| {
        let setting = key.strip_prefix("optimizer.");
        setting.is_some_and(|setting| !RATES.contains(&setting))
    })
}

/// The first flag of one of these keys of [training], or the first `--set` of one that `is_one` selects.
fn first_flag(
    arguments: &TrainArguments,
    keys: &[&str],
    is_one: impl Fn(&str) -> bool,
) -> Option<String> {
    let mut flags = keys.iter();
    let flag = flags.find_map(|key| arguments.keys.quoted(&format!("training.{key}")));
    let set = || {
        let mut sets = arguments.set.iter();
        let set = sets.find(|assignment| {
            let path = key_of(assignment);
            is_one(path.strip_prefix("training.").unwrap_or(path))
        })?;
        Some(format!("--set {set}"))
    };
    flag.or_else(set)
}

#[cfg(test)]
mod tests {
    use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
    use burn::nn::{Linear, LinearConfig};
    use burn::prelude::*;
    use everburn_train::{AnyTask, Loss, Task, TaskData, TaskError};

    use super::*;

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
        let arguments = TrainArguments::of(&format!("mnist --epochs 2 --batch-size 4 {words}"));
        let config = RunConfig::resolve(&arguments, None)?;
        let task = AnyTask::new("point", Point { own });
        let task = task.configure(&toml::Table::new())?;
        check_optimizer(&config, &arguments, &*task, 11)
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
