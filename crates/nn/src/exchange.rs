//! Exchanges that know their place in the model.
//!
//! All ranks must exchange in the same order, and the group cannot see a swap of two layers with
//! equally many channels: both send arrays of the same length. Burn runs a backward pass by depth,
//! and within one depth in an order that follows from the structure of the graph alone, so ranks
//! that record the same forward pass agree. What they record is up to the model, so each exchange
//! carries its place, as `p` and `p * p`: all ranks were at the same one exactly if the sums are
//! `n * p` and `n * p * p`, for then the variance of the places is zero. If they were not, no rank
//! finds both sums, so all of them reach the same verdict without another message.

use std::sync::Arc;

use crate::group::{StatisticsGroup, SyncError};

/// Numbers of layers and calls are compared modulo 2^16 and 2^14, so that `n * p * p` is exact.
const LAYERS: u32 = 1 << 16;
const CALLS: u32 = 1 << 14;
const PLACE_VALUES: usize = 4;

/// Which exchange of a layer this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Sums of the samples.
    Forward,
    /// Sums of squares around the mean, where the former would not be exact enough.
    Refine,
    /// Sums of the gradients.
    Backward,
}

impl Pass {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forward | Self::Refine => "forward pass",
            Self::Backward => "backward pass",
        }
    }
}

/// A layer and how often it has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) layer: u32,
    pub(crate) call: u32,
}

impl Place {
    fn values(self, pass: Pass) -> [f64; PLACE_VALUES] {
        let layer = f64::from(self.layer % LAYERS);
        let call = f64::from(self.call % CALLS * 4 + pass as u32);
        [layer, layer * layer, call, call * call]
    }
}

/// Adds `values` up over all ranks, and checks that all of them were at the same place. A mismatch
/// aborts the group.
pub(crate) fn sum_over_ranks(
    group: &Arc<dyn StatisticsGroup>,
    place: Place,
    pass: Pass,
    values: &[f64],
) -> Result<Vec<f64>, SyncError> {
    let own = place.values(pass);
    let mut sums = [own.as_slice(), values].concat();
    group.all_reduce_sum(&mut sums)?;
    let ranks = group.world_size() as f64;
    let same = own.iter().zip(&sums).all(|(own, sum)| ranks * own == *sum);
    if same {
        sums.drain(..PLACE_VALUES);
        return Ok(sums);
    }
    let error = SyncError::OutOfOrder {
        layer: place.layer,
        call: place.call,
        pass: pass.name(),
    };
    group.abort(&error.to_string());
    Err(error)
}
