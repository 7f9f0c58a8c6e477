//! By which rule a training changes its parameters.

use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLrScheduler, ModuleLrSchedulerConfig};
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::module::Module;
use burn::optim::ModuleOptimizer;

use super::Trainer;
use crate::checkpoint::training_state::TrainingState;
use crate::config::TrainingConfig;
use crate::config::conflicts::RunFeatures;
use crate::config::schedule::initialised;
use crate::error::TrainError;
use crate::model::erased::AnyModel;

impl Trainer {
    /// The model, of which the groups of the configuration stay as they are that are frozen, and all that low-rank
    /// adaptation does not name.
    pub(super) fn freeze(&self, model: AnyModel) -> Result<AnyModel, TrainError> {
        if let Some(lora) = &self.config.lora {
            return lora.adapt(model);
        }
        let parameters = self.config.optimizer.parameters(&model)?;
        Ok(match parameters.frozen() {
            Some(frozen) => model.freeze_group(frozen),
            None => model,
        })
    }

    /// The optimizer of `model`, and whether it is the task's own: else it is the configuration's.
    pub(super) fn optimizer(
        &self,
        model: &AnyModel,
    ) -> Result<(ModuleOptimizer, bool), TrainError> {
        let own = match &self.task {
            Some(task) => task.optimizer(model)?,
            None => None,
        };
        let Some(own) = own else {
            return Ok((self.config.optimizer.init(model)?, false));
        };
        let refuse = |message: &str| Err(TrainError::Config(message.to_string()));
        self.config.check_conflicts(RunFeatures {
            own_optimizer: true,
            ..RunFeatures::default()
        })?;
        let groups = &self.config.optimizer.groups;
        if groups.iter().any(|group| group.weight_decay.is_some()) {
            return refuse(
                "`weight_decay` in [[training.optimizer.groups]] is for the optimizer of the configuration, and the task has its own: set it in `Task::optimizer`",
            );
        }
        Ok((own, true))
    }

    /// What changes with every step, before the first, with a scheduler and whether that is the task's own.
    pub(super) fn state(
        &self,
        model: &AnyModel,
        (scheduler, own_schedule): (ModuleLrScheduler, bool),
    ) -> Result<TrainingState, TrainError> {
        let (optimizer, is_own) = self.optimizer(model)?;
        if is_own {
            self.warn_of_unused_settings();
        }
        let mut state = TrainingState::new(optimizer, scheduler);
        state.own_optimizer = is_own;
        state.own_schedule = own_schedule;
        Ok(state)
    }

    /// Warns of settings that a task's own optimizer does not read.
    fn warn_of_unused_settings(&self) {
        let unused = self.config.optimizer.unused_by_own();
        if self.is_first() && !unused.is_empty() {
            tracing::warn!(
                "the optimizer is the task's own (`Task::optimizer`): without effect in [training.optimizer]: {}",
                unused.join(", ")
            );
        }
    }

    /// The learning rate of each step of `model`, and whether it is by the task's own schedule: else it is by the
    /// configuration's.
    pub(super) fn scheduler(
        &self,
        model: &AnyModel,
        total_steps: usize,
    ) -> Result<(ModuleLrScheduler, bool), TrainError> {
        let own = match &self.task {
            Some(task) => task.schedule(total_steps)?,
            None => None,
        };
        let groups = &self.config.optimizer.groups;
        match own {
            None => {
                let parameters = self.config.optimizer.parameters(model)?;
                let scheduler = self.config.scheduler_of(&parameters, total_steps)?;
                Ok((scheduler, false))
            }
            Some(_) if groups.iter().any(|it| it.learning_rate_factor.is_some()) => {
                Err(TrainError::Config(
                    "`learning_rate_factor` in [[training.optimizer.groups]] is for the schedule of the configuration, \
                     and the task has its own: set it in `Task::schedule`"
                        .to_string(),
                ))
            }
            Some(_) if self.config.optimizer.layer_decay.is_some() => Err(TrainError::Config(
                "`training.optimizer.layer_decay` is for the schedule of the configuration, and the task has its own: set \
                 the rates in `Task::schedule`"
                    .to_string(),
            )),
            Some(own) => {
                self.warn_of_unused_rates();
                Ok((own, true))
            }
        }
    }

    /// Warns of settings that a task's own schedule does not read.
    fn warn_of_unused_rates(&self) {
        let (own, usual) = (&self.config, TrainingConfig::default());
        let unused = [
            (
                "optimizer.learning_rate",
                own.optimizer.learning_rate != usual.optimizer.learning_rate,
            ),
            ("schedule", own.schedule != usual.schedule),
            (
                "schedule_numbers",
                own.schedule_numbers != usual.schedule_numbers,
            ),
        ];
        let unused = unused.iter().filter(|(_, is_set)| *is_set);
        let unused: Vec<_> = unused.map(|(name, _)| format!("`{name}`")).collect();
        if self.is_first() && !unused.is_empty() {
            tracing::warn!(
                "the schedule of the learning rate is the task's own (`Task::schedule`): without effect in [training]: {}",
                unused.join(", ")
            );
        }
    }

    /// The same with these rates, one for each step.
    pub(super) fn scheduler_of_rates(
        &self,
        model: &AnyModel,
        rates: &[f64],
    ) -> Result<ModuleLrScheduler, TrainError> {
        let at = |factor: f64| -> LrSchedulerConfig {
            let steps = rates.iter().map(|rate| (rate * factor).into());
            SequentialLrSchedulerConfig::new(steps.collect(), (1..rates.len()).collect()).into()
        };
        let parameters = self.config.optimizer.parameters(model)?;
        let mut config = ModuleLrSchedulerConfig::new(at(1.0));
        for (factor, group) in parameters.by_learning_rate() {
            config = config.with_group(group, at(factor));
        }
        initialised(&config)
    }
}
