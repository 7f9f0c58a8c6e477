//! Several devices in one process, each a rank on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::prelude::Device;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_collectives::worker::message_of;

use crate::device::compute_threads::compute_on_this_thread;
use crate::error::TrainError;

/// Runs `rank` once for each device, all at the same time, and returns what each yields, in the
/// order of the devices.
///
/// This is PyTorch's `DataParallel`, and burn-train's `MultiDevice` strategy, with the exactness of
/// ranks: the devices share each global batch, gradients are averaged by samples (burn-train adds
/// up the means of its devices), and a device with a smaller share holds nobody up. One process a
/// rank isolates failures better; one process for all starts faster and shares its memory. The ranks
/// share the threads of rayon's global pool evenly ([`compute_on_this_thread`]).
///
/// On the processor all threads draw from one generator of random numbers: draw the initial weights
/// before the ranks start, and do not expect a model with dropout to repeat itself to the bit.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_train as train; }
/// use burn::prelude::Device;
/// use everburn::collectives::group::{GroupOptions, ReduceOp};
/// use everburn::train::data_parallel;
///
/// let devices = [Device::flex(), Device::flex()];
/// let sums = data_parallel(&devices, GroupOptions::default(), |group, _device| {
///     Ok(group.all_reduce(vec![1.0], ReduceOp::Sum).wait()?[0])
/// });
/// assert_eq!(sums.unwrap(), [2.0, 2.0]);
/// ```
///
/// # Errors
/// The error of the first rank that failed by itself. A rank that panics ends the others within
/// moments, and its message is the error.
#[doc(alias = "DataParallel")]
pub fn data_parallel<T: Send>(
    devices: &[Device],
    options: GroupOptions,
    rank: impl Fn(ProcessGroup, Device) -> Result<T, TrainError> + Sync,
) -> Result<Vec<T>, TrainError> {
    let groups = ProcessGroup::over_threads(devices.len(), options);
    let threads = (rayon::current_num_threads() / devices.len().max(1)).max(1);
    let rank = |group, device| {
        compute_on_this_thread(threads)?;
        rank(group, device)
    };
    let rank = &rank;
    let results = std::thread::scope(|scope| {
        let threads = groups
            .into_iter()
            .zip(devices.iter().cloned())
            .map(|(group, device)| scope.spawn(move || run_rank(group, device, rank)))
            .collect::<Vec<_>>();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(TrainError::Panicked("unknown".to_string())))
        });
        joined.collect::<Vec<_>>()
    });
    let mut values = Vec::with_capacity(results.len());
    let mut errors = Vec::new();
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.push(error),
        }
    }
    let own = errors.iter().position(|error| !error.is_secondary());
    match own.or((!errors.is_empty()).then_some(0)) {
        Some(position) => Err(errors.swap_remove(position)),
        None => Ok(values),
    }
}

/// A panic becomes an error of this rank, and an abort of the others.
fn run_rank<T>(
    group: ProcessGroup,
    device: Device,
    rank: impl Fn(ProcessGroup, Device) -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let number = group.rank();
    let handle = group.clone();
    let result = catch_unwind(AssertUnwindSafe(|| rank(group, device)));
    let result = result.unwrap_or_else(|panic| {
        let message = message_of(&*panic);
        Err(TrainError::Panicked(format!("rank {number}: {message}")))
    });
    if let Err(error) = &result {
        handle.abort(error.to_string());
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_panics_ends_the_others_and_is_named() {
        let devices = vec![Device::flex(); 3];
        let error = data_parallel(&devices, GroupOptions::default(), |group, _| {
            assert!(group.rank() != 1, "out of memory");
            group.barrier().wait()?;
            Ok(())
        })
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "a training thread panicked: rank 1: out of memory"
        );
    }

    #[test]
    fn a_rank_that_fails_by_itself_is_the_one_told() {
        let devices = [Device::flex(), Device::flex()];
        let error = data_parallel(&devices, GroupOptions::default(), |group, _| {
            if group.rank() == 1 {
                return Err(TrainError::Config("no".to_string()));
            }
            group.barrier().wait()?;
            Ok(())
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "no");
    }
}
