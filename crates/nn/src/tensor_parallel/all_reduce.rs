//! Sums over ranks that check that all ranks are at the same layer: see `crate::checked_all_reduce` for why.

use std::sync::Arc;

use burn::prelude::Tensor;
use burn::tensor::{DType, TensorData};

use super::group::TensorGroup;
use crate::all_reduce::unread;
use crate::checked_all_reduce::{LayerCall, Pass, checked_all_reduce_on_device};
use crate::group::{DeviceAllReduce, SyncError};

/// The most ranks of a group: the sum of as many squared digits is exact in `f32`.
pub(crate) const MOST_RANKS: usize = 256;

/// Digits of a layer and call, each below 2^8, and each sent with its square.
const DIGITS: usize = 4;

/// An all-reduce of a sharded layer, on one rank.
#[derive(Debug, Clone)]
pub(crate) struct ShardAllReduce {
    pub(crate) group: Arc<dyn TensorGroup>,
    pub(crate) layer_call: LayerCall,
}

impl ShardAllReduce {
    /// The sum of `data` over all ranks, in the type of `data`.
    pub(crate) fn sum(&self, data: TensorData, pass: Pass) -> Result<TensorData, SyncError> {
        let (shape, dtype) = (data.shape().clone(), data.dtype());
        let mut values = match dtype {
            DType::F32 => data
                .try_into_vec::<f32>()
                .map_err(|error| unread(&*self.group, &error))?,
            _ => data.iter::<f32>().collect(),
        };
        self.sum_values(&mut values, pass)?;
        Ok(TensorData::new(values, shape).convert_dtype(dtype))
    }

    /// The same sum of `own`, `[n]`, on its device, which waits for it, and not this thread.
    pub(crate) fn sum_on_device(
        &self,
        ranks: &dyn DeviceAllReduce,
        own: Tensor<1>,
        pass: Pass,
    ) -> Result<Tensor<1>, SyncError> {
        let dtype = own.dtype();
        let digits = self.digits(pass).map(f64::from);
        let places = digits.iter().flat_map(|digit| [*digit, digit * digit]);
        let places = places.collect::<Vec<_>>();
        let (world_size, own) = (self.group.world_size(), own.cast(DType::F32));
        Ok(checked_all_reduce_on_device(ranks, world_size, &places, own)?.cast(dtype))
    }

    fn sum_values(&self, values: &mut Vec<f32>, pass: Pass) -> Result<(), SyncError> {
        let own = self.digits(pass);
        let length = values.len();
        values.extend(own.iter().flat_map(|digit| [*digit, digit * digit]));
        self.group.all_reduce_sum_f32(values)?;
        let ranks = self.group.world_size() as f32;
        let sums = values.split_off(length);
        let same =
            |(own, sums): (&f32, &[f32])| sums[0] == ranks * own && sums[1] == ranks * own * own;
        if own.iter().zip(sums.chunks_exact(2)).all(same) {
            return Ok(());
        }
        let error = SyncError::ShardsOutOfOrder {
            layer: self.layer_call.layer,
            call: self.layer_call.call,
            pass: pass.name(),
        };
        self.group.abort(&error.to_string());
        Err(error)
    }

    fn digits(&self, pass: Pass) -> [f32; DIGITS] {
        let LayerCall { layer, call } = self.layer_call;
        let backward = u32::from(pass == Pass::Backward);
        let digits = [layer, layer >> 8, call, (call >> 8) << 1 | backward];
        digits.map(|digit| f32::from((digit & 0xff) as u8))
    }
}
