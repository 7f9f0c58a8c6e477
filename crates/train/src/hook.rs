//! What a user's own code is told while a training goes on.

use std::borrow::Cow;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use crate::error::TrainError;
use crate::metric_line::MetricLine;
use crate::report::TrainingReport;
use crate::strategy::Run;

/// Why a hook failed. Any error goes into it by `?`.
pub type HookError = Box<dyn Error + Send + Sync>;

/// Code that a training calls after each step, epoch, checkpoint and failure: a tracker, an alarm, a rule for stopping.
///
/// Every rank has hooks of its own and calls them in the same order, with the same numbers. What only one rank shall
/// do, a hook does where [`Run::rank`] is 0. A hook that exchanges something with its counterparts on other ranks, by
/// [`Run::group`], does so in the same call on all of them.
///
/// A hook that fails, or panics, ends the training on all ranks: after the next step the ranks write a checkpoint
/// together, and each says which hook of which rank failed, and of what.
///
/// In a job that outlives its ranks, an epoch may be told twice to those that are left, because it is validated again.
///
/// ```
/// use everburn_train::{Hook, HookError, MetricLine, Run};
///
/// /// Stops a training that has learnt enough.
/// struct GoodEnough(f64);
///
/// impl Hook for GoodEnough {
///     fn after_step(&mut self, step: &MetricLine, run: &mut Run<'_>) -> Result<(), HookError> {
///         if step.loss < self.0 {
///             run.stop(format!("the loss is {}", step.loss));
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Hook: Send + 'static {
    /// What messages call it: the name of its type, without more being said.
    fn name(&self) -> Cow<'static, str> {
        let name = std::any::type_name::<Self>();
        let plain = name.split('<').next().unwrap_or(name);
        Cow::Borrowed(plain.rsplit("::").next().unwrap_or(plain))
    }

    /// Before the first step of this process. A training that was resumed has made [`Run::step`] steps.
    ///
    /// # Errors
    /// Ends the training, as for all methods.
    fn at_start(&mut self, run: &mut Run<'_>) -> Result<(), HookError> {
        let _ = run;
        Ok(())
    }

    /// After each step, once all ranks know its numbers. On a GPU these may come some steps late.
    ///
    /// # Errors
    /// Ends the training.
    fn after_step(&mut self, step: &MetricLine, run: &mut Run<'_>) -> Result<(), HookError> {
        let _ = (step, run);
        Ok(())
    }

    /// After some steps of which the ranks have come to know together: one, unless each rank takes steps by itself
    /// (`--sync`) or numbers are read late (`--read-metrics`). It tells [`after_step`](Self::after_step) of each.
    ///
    /// # Errors
    /// Ends the training.
    fn after_steps(&mut self, steps: &[MetricLine], run: &mut Run<'_>) -> Result<(), HookError> {
        steps.iter().try_for_each(|step| self.after_step(step, run))
    }

    /// After an epoch and its validation, before the epoch's checkpoint.
    ///
    /// # Errors
    /// Ends the training.
    fn after_epoch(&mut self, epoch: &EpochLines, run: &mut Run<'_>) -> Result<(), HookError> {
        let _ = (epoch, run);
        Ok(())
    }

    /// After a checkpoint is written and verified: on rank 0, which has the folder.
    ///
    /// # Errors
    /// Ends the training.
    fn after_checkpoint(&mut self, folder: &Path, run: &mut Run<'_>) -> Result<(), HookError> {
        let _ = (folder, run);
        Ok(())
    }

    /// After this rank has failed, or has lost others with whom it trained. `goes_on` tells whether the training does.
    fn after_failure(&mut self, error: &TrainError, goes_on: bool) {
        let _ = (error, goes_on);
    }

    /// At the end, when the run's files are written.
    ///
    /// # Errors
    /// Ends the job with a failure; what was trained is kept.
    fn at_end(&mut self, report: &TrainingReport) -> Result<(), HookError> {
        let _ = report;
        Ok(())
    }
}

/// What an epoch has shown, over the samples of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochLines {
    /// All its training steps together.
    pub train: MetricLine,
    /// Its validation, where there are samples for one.
    pub validation: Option<MetricLine>,
}

/// The hooks of a training, in the order in which they are called.
///
/// ```
/// use everburn_train::{Hook, Hooks};
///
/// #[derive(Default)]
/// struct Tracker;
/// impl Hook for Tracker {}
///
/// let hooks = Hooks::default().with(Tracker::default);
/// assert_eq!(hooks.names(), ["Tracker"]);
/// ```
#[derive(Clone, Default)]
pub struct Hooks(Vec<Arc<dyn Fn() -> Box<dyn Hook> + Send + Sync>>);

impl Hooks {
    /// These, and one more behind them. Each rank that trains makes its own by `make`.
    #[must_use]
    pub fn with<H: Hook>(mut self, make: impl Fn() -> H + Send + Sync + 'static) -> Self {
        self.0.push(Arc::new(move || Box::new(make())));
        self
    }

    /// Their names, by making each once.
    pub fn names(&self) -> Vec<String> {
        let hooks = self.make().into_iter();
        hooks.map(|hook| hook.name().into_owned()).collect()
    }

    pub(crate) fn make(&self) -> Vec<Box<dyn Hook>> {
        self.0.iter().map(|make| make()).collect()
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
