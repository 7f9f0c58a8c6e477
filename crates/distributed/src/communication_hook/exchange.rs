//! The one collective that all hooks are made of.

use everburn_collectives::group::{CollectiveError, Element, ProcessGroup, ReduceOp};

/// Replaces `values` by their sum over all ranks and returns their size in bytes.
pub(crate) fn sum_over_ranks<T: Element>(
    group: &ProcessGroup,
    values: &mut [T],
) -> Result<u64, CollectiveError> {
    group.all_reduce_in_place(values, ReduceOp::Sum)?;
    Ok(size_of_val(values) as u64)
}
