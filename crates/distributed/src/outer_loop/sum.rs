//! The sum of all ranks' differences.

use everburn_collectives::group::{CollectiveError, ProcessGroup};

use super::config::OuterCompression;
use super::quantized;
use crate::communication_hook::sum_over_ranks;

/// How many numbers are exchanged at a time: 4 MiB take seconds over the slowest link that one would train
/// over, so that the deadline of an operation has to do with other ranks and not with the model's size.
pub(super) const CHUNK: usize = 1 << 20;

/// Replaces this rank's differences by the sum over all ranks. Returns what this rank owes from now on, in place of `owed`,
/// and how many bytes it handed to collectives.
pub(super) fn sum(
    differences: &mut [f32],
    mut owed: Vec<f32>,
    compression: OuterCompression,
    group: &ProcessGroup,
) -> Result<(Vec<f32>, u64), CollectiveError> {
    let mut bytes = 0;
    if group.world_size() == 1 {
        return Ok((owed, 0));
    }
    for (index, chunk) in differences.chunks_mut(CHUNK).enumerate() {
        let Some(bits) = compression.bits() else {
            bytes += sum_over_ranks(group, chunk)?;
            continue;
        };
        let owed = &mut owed[index * CHUNK..][..chunk.len()];
        for (value, owed) in chunk.iter_mut().zip(&*owed) {
            *value += owed;
        }
        let sum = quantized::sum(chunk, bits, group)?;
        chunk.copy_from_slice(&sum.values);
        owed.copy_from_slice(&sum.residual);
        bytes += sum.bytes;
    }
    Ok((owed, bytes))
}
