//! Exact evaluation over ranks: every sample counts once.

use std::cell::RefCell;
use std::time::Instant;

use burn_train::InferenceStep;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{InputError, MicroBatch};
use everburn_record::ConfusionMatrix;
use serde::{Deserialize, Serialize};

use crate::error::{TEST_LOSS, TrainError};
use crate::metrics::layout::MetricAgreement;
use crate::metrics::step_reduction::{LocalReply, Votes};
use crate::metrics::step_report::StepReport;
use crate::metrics::sums::MetricSums;
use crate::metrics::virtual_sums::VirtualSums;
use crate::model::erased::{AnyBatch, AnyLoader, AnyModel};
use crate::model::finite::require_finite_loss;
use crate::model::labels::checked;
use crate::model::predictions::Counts;
use crate::parallel::model::ParallelModel;

/// This rank's sums over a batch; its classes are counted where that is wanted.
pub(crate) fn infer(
    model: &AnyModel,
    over: Option<&dyn ParallelModel<AnyModel, AnyBatch>>,
    part: MicroBatch<AnyBatch>,
    counts: Option<&RefCell<Counts>>,
) -> Result<MetricSums, TrainError> {
    let MicroBatch {
        batch,
        indices,
        samples,
        ..
    } = part;
    let report = checked(true, &indices, "an evaluation", || match over {
        Some(over) => over.infer(model, batch),
        None => Ok(Some(InferenceStep::step(model, batch))),
    })?;
    match report? {
        Some(report) => {
            report.require_samples(samples)?;
            sums(&report, counts)
        }
        None => Ok(MetricSums::default()),
    }
}

fn sums(report: &StepReport, counts: Option<&RefCell<Counts>>) -> Result<MetricSums, TrainError> {
    let failed = |error: burn::tensor::TensorReadError| TrainError::Device(error.to_string());
    if let Some(counts) = counts
        && let Some(predictions) = report.predictions().map_err(failed)?
    {
        counts.borrow_mut().add(&predictions);
    }
    report.sums().map_err(failed)
}

/// What all samples of a loader have shown, on every rank the same.
pub(crate) struct Evaluated {
    pub(crate) sums: MetricSums,
    /// The first global batch, counted from 0, whose loss is NaN or infinite.
    pub(crate) broken: Option<usize>,
}

/// Adds up what `infer` finds in every sample of the loader, over all ranks; `None` if a rank
/// wanted to stop first. `each` receives the sums of each global batch, on every rank the same.
///
/// In errors, the loader's samples are numbered from `first`. The order of the batches is that of epoch 0; a loader for evaluation does not shuffle.
pub(crate) fn evaluate(
    infer: impl Fn(MicroBatch<AnyBatch>) -> Result<MetricSums, TrainError>,
    (loader, first): (&AnyLoader, usize),
    group: &ProcessGroup,
    stop_wanted: impl Fn() -> bool,
    mut each: impl FnMut(&MetricSums) -> Result<(), TrainError>,
) -> Result<Option<Evaluated>, TrainError> {
    let (mut total, mut agreement) = (MetricSums::default(), MetricAgreement::default());
    let mut broken = None;
    for (number, share) in loader.epoch(0).enumerate() {
        let unread = |error: InputError| TrainError::Data(error.numbered_from(first).to_string());
        let share = share.map_err(unread)?;
        let (batch, stop) = match loader.sampler().virtual_ranks() {
            None => {
                let mut local = MetricSums::default();
                for part in share.micro_batches {
                    local += infer(part)?;
                }
                let layout = agreement.layout([&local], group)?;
                let own = LocalReply {
                    sums: &local,
                    votes: Votes {
                        stop: stop_wanted(),
                        ..Votes::default()
                    },
                    memory: None,
                    past: None,
                };
                let reply = own.send(layout, group).wait()?;
                (reply.sums, reply.votes.stop)
            }
            Some(ranks) => {
                let mut sums = VirtualSums::new(ranks.clone(), 0);
                for part in share.micro_batches {
                    let index = part.index;
                    sums.set(index, infer(part)?, std::iter::empty());
                }
                let layout = agreement.layout(sums.found(), group)?;
                let (batch, _, stop) = sums.send(stop_wanted(), layout, group).wait()?;
                (batch, stop)
            }
        };
        if stop {
            return Ok(None);
        }
        if !batch.loss_sum.is_finite() {
            broken = broken.or(Some(number));
        }
        total += &batch;
        each(&batch)?;
    }
    let expected = loader.sampler().samples_per_epoch() as u64;
    if total.samples != expected {
        return Err(TrainError::Config(format!(
            "the ranks evaluated {} samples and there are {expected}: they do not see the same data",
            total.samples
        )));
    }
    require_possible_accuracy(&total)?;
    Ok(Some(Evaluated {
        sums: total,
        broken,
    }))
}

/// What a test has found, on every rank the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Tested {
    pub(crate) sums: MetricSums,
    /// What was taken for what, where that was counted.
    pub(crate) confusion: Option<ConfusionMatrix>,
    /// How long it took.
    pub(crate) seconds: f64,
}

/// Measures `model` on a loader of test samples; `None` if a rank wanted to stop first. With the names of the `classes`
/// also what is taken for what is counted. `after` is the epoch and the step, in a training. `explain` adds to the error of
/// a loss that is not finite what the inputs show, by the first global batch with such a loss.
pub(crate) fn test(
    (model, over): (&AnyModel, Option<&dyn ParallelModel<AnyModel, AnyBatch>>),
    (loader, group): (&AnyLoader, &ProcessGroup),
    stop_wanted: impl Fn() -> bool,
    classes: Option<&[String]>,
    after: Option<(usize, usize)>,
    explain: impl FnOnce(TrainError, Option<usize>) -> TrainError,
) -> Result<Option<Tested>, TrainError> {
    let start = Instant::now();
    let counts = classes.map(|_| RefCell::new(Counts::default()));
    let infer = |part| infer(model, over, part, counts.as_ref());
    let evaluated = evaluate(infer, (loader, 0), group, stop_wanted, |_| Ok(()))?;
    let Some(Evaluated { sums, broken }) = evaluated else {
        return Ok(None);
    };
    require_finite_loss(TEST_LOSS, sums.mean_loss(), after)
        .map_err(|error| explain(error, broken))?;
    let confusion = match counts.zip(classes) {
        Some((counts, classes)) => counts.into_inner().all_reduce(group, classes)?,
        None => None,
    };
    Ok(Some(Tested {
        sums,
        confusion,
        seconds: start.elapsed().as_secs_f64(),
    }))
}

/// Refuses more correct predictions than there were.
pub(crate) fn require_possible_accuracy(sums: &MetricSums) -> Result<(), TrainError> {
    // Sums of shares may be rounded up where all were correct.
    match sums.accuracy().filter(|accuracy| *accuracy > 1.0 + 1e-6) {
        Some(accuracy) => Err(TrainError::Config(format!(
            "the accuracy is {accuracy}: the task's loss counts more correct predictions than there were \
             (`Loss::with_accuracy` takes their number in the batch)"
        ))),
        None => Ok(()),
    }
}
