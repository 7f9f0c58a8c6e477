//! Gradients as they are.

use everburn_collectives::group::{CollectiveError, Element, ProcessGroup, ReduceOp};

use super::{CommunicationHook, GradientBucket};

/// Sums the gradients as they are, in `f32`: what happens without a hook.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{AllReduce, CommunicationHook, GradientBucket};
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let mut values = vec![1.0, 2.0];
/// let bucket = GradientBucket { index: 0, slots: &[], values: &mut values };
/// assert_eq!(AllReduce.reduce(bucket, &group).unwrap(), 8);
/// assert_eq!(values, [1.0, 2.0]);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct AllReduce;

impl CommunicationHook for AllReduce {
    fn name(&self) -> String {
        "none".to_owned()
    }

    fn reduce(
        &mut self,
        bucket: GradientBucket<'_>,
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError> {
        sum_over_ranks(group, bucket.values)
    }
}

/// Replaces `values` by their sum over all ranks and returns their size in bytes: the one collective of all hooks.
pub(crate) fn sum_over_ranks<T: Element>(
    group: &ProcessGroup,
    values: &mut [T],
) -> Result<u64, CollectiveError> {
    group.all_reduce_in_place(values, ReduceOp::Sum)?;
    Ok(size_of_val(values) as u64)
}
