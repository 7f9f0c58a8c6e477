//! Code of the user that a training calls.

use std::borrow::Cow;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use everburn_record::{MetricLine, TrainingReport};

use crate::error::TrainError;
use crate::training_loop::Run;

/// Why a hook failed. Any error goes into it by `?`.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::HookError;
///
/// fn parse(text: &str) -> Result<u32, HookError> {
///     Ok(text.parse()?)
/// }
///
/// assert!(parse("many").is_err());
/// ```
pub type HookError = Box<dyn Error + Send + Sync>;

/// Code that a training calls after each step, epoch, checkpoint and failure: a tracker, an alarm, a stopping rule.
///
/// Every rank has its own hooks and calls them in the same order with the same numbers. Work for one rank alone goes
/// after `if run.rank() == 0`. A hook may use the collectives of [`Run::group`] if it does so in the same call on all
/// ranks.
///
/// A hook that fails or panics ends the training on all ranks: after the next step the ranks write a checkpoint
/// together and report the hook, its rank, and the error.
///
/// An elastic job that loses a rank during validation validates again, and calls [`Hook::after_epoch`] twice.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{Hook, HookError, MetricLine, Run};
///
/// /// Stops the training at a target loss.
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
#[doc(alias = "Callback")]
pub trait Hook: Send + 'static {
    /// The name in messages. Default: the name of the type.
    fn name(&self) -> Cow<'static, str> {
        let name = std::any::type_name::<Self>();
        let plain = name.split('<').next().unwrap_or(name);
        Cow::Borrowed(plain.rsplit("::").next().unwrap_or(plain))
    }

    /// Before the first step of this process. A resumed training has [`Run::step`] steps already.
    ///
    /// # Errors
    /// Ends the training, as for all methods.
    fn at_start(&mut self, run: &mut Run<'_>) -> Result<(), HookError> {
        let _ = run;
        Ok(())
    }

    /// After each step, with metrics over all ranks. On a GPU the call may come some steps late (`--read-metrics`).
    ///
    /// # Errors
    /// Ends the training.
    fn after_step(&mut self, step: &MetricLine, run: &mut Run<'_>) -> Result<(), HookError> {
        let _ = (step, run);
        Ok(())
    }

    /// After steps whose metrics became available together: one, or several with local steps (`--local-steps`) and late
    /// metrics (`--read-metrics`). The default calls [`after_step`](Self::after_step) for each.
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

    /// After a checkpoint is written and verified, on rank 0.
    ///
    /// # Errors
    /// Ends the training.
    fn after_checkpoint(&mut self, folder: &Path, run: &mut Run<'_>) -> Result<(), HookError> {
        let _ = (folder, run);
        Ok(())
    }

    /// After this rank has failed or lost other ranks. `goes_on` is true if the training continues.
    fn after_failure(&mut self, error: &TrainError, goes_on: bool) {
        let _ = (error, goes_on);
    }

    /// At the end, after the run's files are written.
    ///
    /// # Errors
    /// The job ends with a failure; its files stay.
    fn at_end(&mut self, report: &TrainingReport) -> Result<(), HookError> {
        let _ = report;
        Ok(())
    }
}

/// The metrics of an epoch over all ranks.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::EpochLines;
///
/// fn validation_loss(lines: &EpochLines) -> Option<f64> {
///     lines.validation.as_ref().map(|line| line.loss)
/// }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct EpochLines {
    /// Over the epoch's training steps.
    pub train: MetricLine,
    /// Over its validation samples, if there are any.
    pub validation: Option<MetricLine>,
}

/// The user's hooks of a training, in the order of the calls.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{Hook, Hooks};
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
    /// Appends a hook. Each rank makes its own by `make`.
    #[must_use]
    pub fn with<H: Hook>(mut self, make: impl Fn() -> H + Send + Sync + 'static) -> Self {
        self.0.push(Arc::new(move || Box::new(make())));
        self
    }

    /// The names of the hooks. Makes each once.
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
