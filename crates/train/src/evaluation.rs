//! Exact evaluation over ranks: every sample counts once.

use std::cell::RefCell;

use burn_train::InferenceStep;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::DistributedLoader;

use crate::error::TrainError;
use crate::model_over_ranks::ModelOverRanks;
use crate::predictions::Counts;
use crate::tally::{Report, Tally};
use crate::virtual_sums::VirtualSums;

/// This rank's sums over a batch; its classes are counted where that is wanted.
pub(crate) fn infer<M, B>(
    model: &M,
    over: Option<&dyn ModelOverRanks<M, B>>,
    batch: B,
    counts: Option<&RefCell<Counts>>,
) -> Result<Tally, TrainError>
where
    M: InferenceStep<Input = B>,
    M::Output: Report,
{
    match over {
        Some(over) => match over.infer(model, batch)? {
            Some(report) => sums(&report, counts),
            None => Ok(Tally::default()),
        },
        None => sums(&InferenceStep::step(model, batch), counts),
    }
}

fn sums(report: &impl Report, counts: Option<&RefCell<Counts>>) -> Result<Tally, TrainError> {
    let failed = |error: burn::tensor::TensorReadError| TrainError::Device(error.to_string());
    if let Some(counts) = counts
        && let Some(predictions) = report.predictions().map_err(failed)?
    {
        counts.borrow_mut().add(&predictions);
    }
    report.local().map_err(failed)
}

/// Adds up what `infer` finds in every sample of the loader, over all ranks; `None` if a rank
/// wanted to stop first. `each` is told the sums of each global batch, on every rank the same.
///
/// The order of the batches is that of epoch 0; a loader for evaluation does not shuffle.
pub(crate) fn evaluate<I: 'static, B: Send + 'static>(
    infer: impl Fn(B) -> Result<Tally, TrainError>,
    loader: &DistributedLoader<I, B>,
    group: &ProcessGroup,
    stop_wanted: impl Fn() -> bool,
    mut each: impl FnMut(Tally) -> Result<(), TrainError>,
) -> Result<Option<Tally>, TrainError> {
    let mut total = Tally::default();
    for share in loader.epoch(0) {
        let share = share.map_err(|error| TrainError::Data(error.to_string()))?;
        let (batch, stop) = match loader.sampler().virtual_ranks() {
            None => {
                let mut local = Tally::default();
                for part in share.micro_batches {
                    local += infer(part.batch)?;
                }
                local.all_reduce(stop_wanted(), group).wait()?
            }
            Some(ranks) => {
                let mut sums = VirtualSums::new(ranks, 0);
                for part in share.micro_batches {
                    sums.set(part.index, infer(part.batch)?, std::iter::empty());
                }
                let (batch, _, stop) = sums.tell(stop_wanted(), group).wait()?;
                (batch, stop)
            }
        };
        if stop {
            return Ok(None);
        }
        total += batch;
        each(batch)?;
    }
    let expected = loader.sampler().samples_per_epoch() as u64;
    if total.samples != expected {
        return Err(TrainError::Data(format!(
            "the ranks evaluated {} samples and there are {expected}: do all ranks see the same \
             data?",
            total.samples
        )));
    }
    Ok(Some(total))
}
