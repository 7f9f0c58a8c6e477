//! A bucket on a device of which each rank gets its shards.

use burn::prelude::*;

use crate::bucket::Bucket;
use crate::gradient::{Gradient, times};
use crate::sharding::layout::ShardedBucket;

/// The segments of all ranks, one after the other, without flags: of each gradient that rank's shard, multiplied by
/// `weight`. Missing gradients and padding are zero.
pub(crate) fn segments(
    parts: Vec<Option<Gradient>>,
    bucket: &Bucket,
    layout: &ShardedBucket,
    weight: f64,
    device: &Device,
) -> Tensor<1> {
    let ranks = layout.shards.world_size;
    let zeros = |length: usize| Tensor::<1>::zeros([length], (device, bucket.dtype()));
    let mut shards = Vec::with_capacity(parts.len());
    for (slot, part) in parts.into_iter().enumerate() {
        let (elements, length) = (bucket.range(slot).len(), layout.shard(slot).len());
        if elements == 0 {
            continue;
        }
        let padded = match (part, ranks * length - elements) {
            (None, _) => zeros(ranks * length),
            (Some(part), 0) => times(part.flat(), weight),
            (Some(part), missing) => {
                Tensor::cat(vec![times(part.flat(), weight), zeros(missing)], 0)
            }
        };
        let of_ranks: Tensor<2> = padded.reshape([ranks, length]);
        shards.push(of_ranks);
    }
    match shards.is_empty() {
        true => zeros(0),
        false => Tensor::cat(shards, 1).reshape([layout.gradients()]),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;
    use crate::sharding::layout::ShardLayout;

    #[test]
    fn each_rank_has_a_shard_of_each_gradient() {
        let device = Device::flex();
        let bucket = &Bucket::of_shapes(&[&[2, 2], &[0, 4], &[3], &[1]], DType::F32);
        let layout = ShardLayout {
            rank: 0,
            world_size: 2,
        };
        let layout = ShardedBucket::of(bucket, layout);
        let matrix = Tensor::<2>::from_floats([[2.0, 4.0], [6.0, 8.0]], &device);
        let row = Tensor::<1>::from_floats([10.0, 12.0, 14.0], &device);
        let parts = vec![
            Some(Gradient::of_tensor(matrix)),
            None,
            Some(Gradient::of_tensor(row)),
            None,
        ];
        let found = segments(parts, bucket, &layout, 0.5, &device).into_data();
        let found = found.iter::<f32>().collect::<Vec<_>>();
        assert_eq!(found, [1.0, 2.0, 5.0, 6.0, 0.0, 3.0, 4.0, 7.0, 0.0, 0.0]);
    }
}
