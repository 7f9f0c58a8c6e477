//! All-reduces that check that all ranks are at the same layer.
//!
//! All ranks must reduce in the same order, and the group cannot see a swap of two layers with equally many channels:
//! both send arrays of the same length. Burn runs a backward pass by depth, and within one depth in an order that
//! depends only on the structure of the graph, so ranks that record the same forward pass agree. That is up to the
//! model, so each message carries its layer and call as `p` and `p * p`: all ranks were at the same one exactly if the
//! sums are `n * p` and `n * p * p`, because then the variance is zero. Otherwise no rank finds both sums, so all of
//! them detect the mismatch without another message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use burn::prelude::*;
use burn::tensor::TensorData;

use crate::group::{DeviceAllReduce, StatisticsGroup, SyncError};

/// Numbers of layers and calls are compared modulo 2^16 and 2^14, so that `n * p * p` is exact.
const LAYERS: u32 = 1 << 16;
const CALLS: u32 = 1 << 14;
const LAYER_CALL_VALUES: usize = 4;

/// Which all-reduce of a layer this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Sums of the samples.
    Forward,
    /// Sums of squares around the mean, if the former are not exact enough.
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

/// A layer among those of its model.
#[derive(Debug, Clone)]
pub(crate) struct LayerPlace {
    /// Its number in the model, the same on all ranks.
    layer: u32,
    /// How often it has run, counted over all its clones.
    calls: Arc<AtomicU32>,
}

impl LayerPlace {
    pub(crate) fn new(layer: u32) -> Self {
        Self {
            layer,
            calls: Arc::default(),
        }
    }

    /// Its next call.
    pub(crate) fn next_call(&self) -> LayerCall {
        LayerCall {
            layer: self.layer,
            call: self.calls.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// A layer and the number of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerCall {
    pub(crate) layer: u32,
    pub(crate) call: u32,
}

impl LayerCall {
    pub(crate) fn values(self, pass: Pass) -> [f64; LAYER_CALL_VALUES] {
        let layer = f64::from(self.layer % LAYERS);
        let call = f64::from(self.call % CALLS * 4 + pass as u32);
        [layer, layer * layer, call, call * call]
    }
}

/// Sums `values` over all ranks and checks that all of them are at the same layer and call. A mismatch aborts the
/// group.
pub(crate) fn checked_all_reduce(
    group: &Arc<dyn StatisticsGroup>,
    layer_call: LayerCall,
    pass: Pass,
    values: &[f64],
) -> Result<Vec<f64>, SyncError> {
    let own = layer_call.values(pass);
    let mut sums = [own.as_slice(), values].concat();
    group.all_reduce_sum(&mut sums)?;
    let ranks = group.world_size() as f64;
    let same = own.iter().zip(&sums).all(|(own, sum)| ranks * own == *sum);
    if same {
        sums.drain(..LAYER_CALL_VALUES);
        return Ok(sums);
    }
    let error = SyncError::OutOfOrder {
        layer: layer_call.layer,
        call: layer_call.call,
        pass: pass.name(),
    };
    group.abort(&error.to_string());
    Err(error)
}

/// As [`checked_all_reduce`], on the device of `values`, `[n]`, for which this thread waits for no other rank; `own` are the
/// numbers by which ranks compare where they are, exact in the type of `values`. A mismatch it does not see either: then all
/// sums are NaN, so that the loss is.
pub(crate) fn checked_all_reduce_on_device(
    ranks: &dyn DeviceAllReduce,
    world_size: usize,
    own: &[f64],
    values: Tensor<1>,
) -> Result<Tensor<1>, SyncError> {
    let ([length], count) = (values.dims(), own.len());
    if length == 0 {
        return Ok(values);
    }
    let (device, dtype) = (values.device(), values.dtype());
    let own = TensorData::new(own.to_vec(), [count]).convert_dtype(dtype);
    let own = Tensor::<1>::from_data(own, (&device, dtype));
    let sums = ranks.all_reduce(Tensor::cat(vec![own.clone(), values], 0))?;
    let places = sums.clone().slice(0..count);
    let apart = (places - own.mul_scalar(world_size as f64)).abs();
    // One by one: a sum of a few numbers is no work for a kernel of its own.
    let apart = (1..count).fold(apart.clone().slice(0..1), |sum, at| {
        sum + apart.clone().slice(at..at + 1)
    });
    let differ = apart.greater_elem(0.0).expand([length]);
    let sums = sums.slice(count..count + length);
    Ok(sums.mask_fill(differ, f64::NAN))
}
