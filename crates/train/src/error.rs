//! Why a training run ended before its time.

mod consequence;
mod wording;

use std::path::{Path, PathBuf};

use everburn_collectives::group::CollectiveError;
use everburn_distributed::{DdpError, SamplerError};
use everburn_record::{TrainingReport, units::counted};

use self::wording::{after, change, several, whose_differs};
use crate::checkpoint::state_dict::WeightsMismatch;
use crate::device::verification::WrongNumbers;
use crate::model::finite::{DivergenceSign, NotFiniteInput, suspects};
use crate::model::labels::WrongLabel;

/// Why a run could not start, continue or be recorded.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::TrainError;
///
/// fn is_diverged(error: &TrainError) -> bool {
///     matches!(error, TrainError::LossNotFinite { .. })
/// }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A value of the configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// The ranks could not exchange something.
    #[error("{0}")]
    Collective(#[from] CollectiveError),
    /// The replicas could not be made or kept equal.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// The stages of a model could not work together.
    #[error(transparent)]
    Pipeline(std::sync::Arc<everburn_pipeline::PipelineError>),
    /// The samples could not be dealt to the ranks.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// A sample could not be read.
    #[error("a batch could not be read: {0}")]
    Data(String),
    /// A sample of the test could not be read, after a whole training.
    #[error(
        "the test could not use a batch: {0}. All steps are made, and model.safetensors of the run directory has what \
         was learned: `Trainer::resume` tests it when the data are repaired"
    )]
    TestData(String),
    /// A sample has a label that the model has no score for, or a token that its embedding has no row for.
    #[error("{0}")]
    Label(WrongLabel),
    /// A GPU computes otherwise than the processor.
    #[error("{0}")]
    WrongNumbers(WrongNumbers),
    /// A number could not be read from the device.
    #[error("the device could not give the result of a step: {0}")]
    Device(String),
    /// A number of a sample is NaN or infinite, and with it the loss.
    #[error("{0}")]
    InputNotFinite(Box<NotFiniteInput>),
    /// A prediction has a number that is NaN or infinite.
    #[error(
        "the prediction of {sample} {what}, which JSON has no number for: look for such numbers in the sample, or take weights \
         of before the training diverged (another checkpoint)"
    )]
    PredictionNotFinite {
        /// The sample: its number in its data set, and its name if it has one.
        sample: String,
        /// What is wrong with it, as "is a NaN".
        what: String,
    },
    /// The loss is no longer a number.
    #[error(
        "the {what} is {loss}{}: {}",
        after(*.step, *.epoch),
        suspects(.what, *.step, *.inputs_are_finite, *.sign)
    )]
    LossNotFinite {
        /// Which loss, "training loss" say.
        what: &'static str,
        /// The loss.
        loss: f64,
        /// The step, counted from 1 over all epochs; `None` in an evaluation
        /// ([`Trainer::evaluate`](crate::Trainer::evaluate)).
        step: Option<usize>,
        /// The epoch, counted from 1; `None` in an evaluation.
        epoch: Option<usize>,
        /// The inputs of the first batch with such a loss were looked at, on all ranks, and all are finite.
        inputs_are_finite: bool,
        /// Evidence that the training had diverged, for a validation or test loss.
        sign: Option<DivergenceSign>,
    },
    /// Gradients are too large for `f16`, whatever the loss is multiplied by.
    #[error(
        "step {step} overflows f16 with a loss scale of only {scale}, after {} that had to be skipped: the \
         training has diverged, or its activations need more range; try `training.precision = bf16`, a lower \
         `training.optimizer.learning_rate` or `training.ddp.max_gradient_norm = 1`",
        counted(*.skipped_steps as usize, "step")
    )]
    LossScaleTooLow {
        /// What the loss was multiplied by.
        scale: f64,
        /// The step, counted from 1 over all epochs.
        step: usize,
        /// How many steps were skipped since the training began.
        skipped_steps: u64,
    },
    /// A file could not be written.
    #[error("writing {path} failed: {reason}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The cause, with what to check.
        reason: String,
    },
    /// A checkpoint could not be written.
    #[error("writing the checkpoint {path} failed: {reason}")]
    WriteCheckpoint {
        /// The checkpoint's folder.
        path: PathBuf,
        /// The cause, with what there is and what to check.
        reason: String,
    },
    /// A file could not be read, or a folder not be used.
    #[error("{action} {path} failed: {reason}")]
    File {
        /// What was being done, "reading" say.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause, with what to check.
        reason: String,
    },
    /// The folder of a run belongs to another process.
    #[error("{path} cannot be used: another run is using it; choose another `run_dir`")]
    RunInUse {
        /// The folder.
        path: PathBuf,
    },
    /// What came of a training could not be written; it is not lost altogether.
    #[error("{reason}")]
    NotRecorded {
        /// What came of it.
        report: Box<TrainingReport>,
        /// Why it could not be written, with what to check.
        reason: Box<TrainError>,
    },
    /// A checkpoint is damaged, incomplete or of another kind.
    #[error("the checkpoint {path} cannot be used: {reason}")]
    Checkpoint {
        /// The checkpoint's folder.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// A file holds the weights of another model.
    #[error("the weights in {path} are not this model's:{problems}")]
    Weights {
        /// The file.
        path: PathBuf,
        /// What the file seems to hold.
        mismatch: WeightsMismatch,
        /// What does not fit, each tensor on a line of its own.
        problems: String,
    },
    /// The ranks were not started with the same configuration or data.
    #[error(
        "rank {rank} runs something else: `{theirs}` there, `{ours}` on rank 0; start every rank \
         with the same configuration, program and data"
    )]
    DifferentRuns {
        /// The first rank that differs.
        rank: usize,
        /// What rank 0 has.
        ours: String,
        /// What the other rank has.
        theirs: String,
    },
    /// Some ranks report a metric that others do not.
    #[error(
        "{} the metric `{metric}`, {} not: each rank reports the same metrics in each step, where there is nothing \
         to measure with a weight of 0",
        several(.with, "reports", "report"), several(.without, "does", "do")
    )]
    DifferentMetrics {
        /// The metric's name.
        metric: String,
        /// Which ranks report it.
        with: Vec<usize>,
        /// Which do not.
        without: Vec<usize>,
    },
    /// This rank reports other metrics than the steps before: its own, or those of the ranks of an elastic job that it has joined.
    #[error(
        "the metric `{metric}` {}: report the same metrics in each step, where there is nothing to measure with a \
         weight of 0",
        change(*.is_new)
    )]
    MetricsChanged {
        /// The metric's name.
        metric: String,
        /// This rank reports it, and the steps before did not.
        is_new: bool,
    },
    /// The best epoch is to be chosen by a metric that nobody reports.
    #[error(
        "`training.best_by` names the metric `{metric}`, which is not reported; there are: {}",
        .there.join(", ")
    )]
    UnknownMetric {
        /// The metric that was asked for.
        metric: String,
        /// Those that there are.
        there: Vec<String>,
    },
    /// A finder has made its trials, and they say nothing.
    #[error("{0}")]
    NothingFound(String),
    /// A hook failed on one of the ranks.
    #[error(
        "the hook `{hook}` of rank {rank} failed: {reason}; the training ended after step {step}, and all steps are in the newest \
         checkpoint of the run directory, if there is one: `Trainer::resume` continues from it"
    )]
    Hook {
        /// The hook's name.
        hook: String,
        /// The rank, as the user knows it.
        rank: usize,
        /// The step after which the training ended.
        step: usize,
        /// What the hook said.
        reason: String,
    },
    /// A rank that is a thread panicked.
    #[error("a training thread panicked: {0}")]
    Panicked(String),
    /// A rank's parameters are not those of the others any more.
    #[error(
        "after step {step}, `{parameter}` {}; `Trainer::resume` continues from a checkpoint, where one was written{}",
        whose_differs(.ranks, *.has_majority),
        if *.has_majority {
            ", `training.on_divergence = repair` gives it the others' state"
        } else {
            ""
        }
    )]
    Diverged {
        /// The ranks that differ from most others, or those that differ from rank 0 where there is no majority.
        ranks: Vec<usize>,
        /// Whether most ranks agree. Where they do not, nobody can say which rank is wrong.
        has_majority: bool,
        /// The path of the first parameter that differs.
        parameter: String,
        /// The step after which they were compared.
        step: usize,
    },
    /// A rank was given the state of another, and has other parameters after it has restored it.
    #[error(
        "the parameters that rank {taker} has restored are not those of rank {giver}, whose state after step {step} it was given: \
         the memory or the arithmetic of one of them cannot be trusted, or they run different programs; check the memory of both \
         machines, and that both run the same program"
    )]
    RestoredOthers {
        /// The rank that was given the state.
        taker: usize,
        /// The rank whose state it is.
        giver: usize,
        /// The step after which the state is.
        step: usize,
    },
    /// Ranks wait to join: the present group ends, so that another can be formed.
    #[error("ranks wait to take part")]
    SomebodyWaits,
    /// A rank was given the others' state: they continue from it.
    #[error("a rank received the state of the others")]
    Repaired,
    /// The others have finished the job without this rank.
    #[error("the job was finished without this rank")]
    JobFinished,
    /// No group could be formed any more: too few ranks, or a store that does not answer, were waited for as long as
    /// allowed.
    #[error("the training cannot continue: {0}")]
    Elastic(String),
    /// This process has no part in the job any more, or was not accepted.
    #[error("this process cannot join the job: {0}")]
    NotMember(String),
    /// This rank of an elastic job came too late to the same step again and again: the others continue without it.
    #[error("{0}")]
    TooSlow(String),
    /// burn-train reported an error of its own.
    #[error("burn-train: {0}")]
    BurnTrain(String),
}

impl TrainError {
    /// An error of the test at the end of a training.
    pub(crate) fn in_test(self) -> Self {
        match self {
            Self::Data(problem) => Self::TestData(problem),
            Self::Label(wrong) => Self::TestData(
                WrongLabel {
                    of: "the test",
                    ..wrong
                }
                .to_string(),
            ),
            error => error,
        }
    }

    /// An error of the validation, whose first sample has the number `first` in the training data if it was held out of them.
    /// A sample that cannot be read has its number there already.
    pub(crate) fn in_validation(self, first: Option<usize>) -> Self {
        let of = match first {
            Some(_) => HELD_OUT_OF,
            None => "the validation",
        };
        match self {
            Self::Data(problem) if first.is_none() => {
                Self::Data(format!("{problem} (in the validation)"))
            }
            Self::Data(problem) => {
                Self::Data(format!("{problem} (in the validation, counted in {of})"))
            }
            Self::Label(wrong) => Self::Label(WrongLabel {
                sample: wrong.sample.map(|sample| sample + first.unwrap_or(0)),
                of,
                ..wrong
            }),
            error => error,
        }
    }

    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
        error: &std::io::Error,
    ) -> Self {
        Self::File {
            action,
            path: path.into(),
            reason: with_hint(error),
        }
    }

    pub(crate) fn write(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::Write {
            path: path.into(),
            reason: reason.to_string(),
        }
    }
}

/// What samples are of that are held out to validate on: there they have their numbers.
pub(crate) const HELD_OUT_OF: &str = "the training data";

/// The loss of which the data to validate on are the cause, rather than the steps before.
pub(crate) const VALIDATION_LOSS: &str = "validation loss";

/// The same of the test at the end of a training.
pub(crate) const TEST_LOSS: &str = "test loss";

/// An error of the system about a file of a run, with what to do.
pub(crate) fn with_hint(error: &std::io::Error) -> String {
    everburn_record::file::with_hint(error, "`run_dir`")
}

#[cfg(test)]
mod tests;
