//! Batch norm with the statistics of all ranks: what it needs, and its backward pass.
//!
//! With `x̂ = (x - mean) / std`, `y = γ x̂ + β` and `M` elements in each channel over all ranks, the
//! gradient of an input is (Ioffe and Szegedy 2015, section 3)
//!
//! ```text
//! dx = γ / std * (dy - Σ dy / M - x̂ Σ dy x̂ / M)
//! ```
//!
//! where the sums run over all ranks, because every sample has moved the statistics of all. They
//! are exchanged once, both in one message. The gradients of γ and β are left to the code that sums up
//! the gradients of parameters.
//!
//! If each rank's loss is the mean over its own samples and gradients are averaged by samples later
//! ([`LossReduction::MeanOverSamples`]), a rank's `dy` will count `samples / all samples`. So the
//! sums are taken with the weight `samples`, and divided by that of the receiving rank, whose own
//! gradients will be multiplied by it again.

use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor, TensorMetadata};
use burn::prelude::Tensor;
use burn::tensor::{DType, FloatDType, Scalar, Shape};

use crate::all_reduce::{of_row, read, row_of, upload};
use crate::checked_all_reduce::{
    LayerCall, Pass, checked_all_reduce, checked_all_reduce_on_device,
};
use crate::group::{LossReduction, StatisticsGroup, SyncError};

/// How many elements each channel has over all ranks.
#[derive(Debug, Clone)]
pub(crate) enum Elements {
    Known(f64),
    /// `[1]` in `f64`, on the device of the input: the host has not waited for it.
    OnDevice(Box<Tensor<1>>),
}

/// The batch that all ranks normalise together.
#[derive(Debug, Clone)]
pub(crate) struct GlobalBatch {
    pub(crate) epsilon: f64,
    pub(crate) elements: Elements,
    /// How much the gradients of this rank will count, in proportion to the other ranks'; zero for
    /// a rank without samples.
    pub(crate) weight: f64,
    pub(crate) layer_call: LayerCall,
    pub(crate) group: Arc<dyn StatisticsGroup>,
}

impl GlobalBatch {
    pub(crate) fn weight(group: &Arc<dyn StatisticsGroup>, samples: usize) -> f64 {
        match group.loss_reduction() {
            LossReduction::MeanOverSamples => samples as f64,
            LossReduction::Sum => f64::from(u8::from(samples > 0)),
        }
    }

    /// The sums of this rank's gradients become, divided by the elements, their means over all
    /// ranks as this rank is to count them.
    fn means_over_ranks(&self, sums: &[f64], elements: f64) -> Result<Vec<f64>, SyncError> {
        let weighted = sums.iter().map(|sum| match self.weight {
            // Also where the gradient of what is in for samples is not a number.
            0.0 => 0.0,
            weight => sum * weight,
        });
        let weighted = weighted.collect::<Vec<_>>();
        let mut sums = checked_all_reduce(&self.group, self.layer_call, Pass::Backward, &weighted)?;
        // Nobody's gradients come from a rank without samples.
        let divisor = elements * self.weight;
        let scale = |sum: &mut f64| *sum = if divisor > 0.0 { *sum / divisor } else { 0.0 };
        sums.iter_mut().for_each(scale);
        Ok(sums)
    }

    /// The same on the device, of sums in `f64`.
    fn means_on_device(
        &self,
        sums: Tensor<1>,
        elements: &Tensor<1>,
    ) -> Result<Tensor<1>, SyncError> {
        let Some(ranks) = self.group.on_device() else {
            let reason = "the ranks have lost their sums on devices".to_owned();
            return Err(SyncError::Collective { reason });
        };
        let weighted = match self.weight {
            0.0 => sums.zeros_like(),
            weight => sums.mul_scalar(weight),
        };
        let own = self.layer_call.values(Pass::Backward);
        let sums = checked_all_reduce_on_device(ranks, self.group.world_size(), &own, weighted)?;
        Ok(match self.weight > 0.0 {
            true => sums / elements.clone().mul_scalar(self.weight),
            false => sums.zeros_like(),
        })
    }
}

/// What the backward pass needs of the forward pass.
#[derive(Debug, Clone)]
pub(crate) struct Saved<B: Backend> {
    pub(crate) input: NodeId,
    pub(crate) gamma: NodeId,
    pub(crate) mean: FloatTensor<B>,
    pub(crate) variance: FloatTensor<B>,
    pub(crate) batch: GlobalBatch,
}

/// The backward pass.
#[derive(Debug)]
pub(crate) struct BatchNormOverRanks;

impl<B: Backend> Backward<B, 3> for BatchNormOverRanks
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let [input_node, gamma_node, beta_node] = ops.parents;
        let output_grad = grads.consume::<B>(&ops.node);
        let saved = ops.state;
        let input = checkpointer.retrieve_node_output::<FloatTensor<B>>(saved.input);
        let gamma = checkpointer.retrieve_node_output::<FloatTensor<B>>(saved.gamma);

        let channels = Channels::of(&input.shape());
        let variance = B::float_add_scalar(saved.variance, Scalar::Float(saved.batch.epsilon));
        let inv_std = channels.spread::<B>(B::float_recip(B::float_sqrt(variance)));
        let centered = B::float_sub(input, channels.spread::<B>(saved.mean));
        let normalized = B::float_mul(centered, inv_std.clone());
        let sums = Sums::<B>::of(&channels, output_grad.clone(), normalized.clone());

        // The first layer of a model often has an input that needs no gradient: nothing to exchange.
        if let Some(node) = input_node {
            let scale = B::float_mul(channels.spread::<B>(gamma), inv_std);
            let [mean, projection] = sums.means_over_ranks(&channels, &saved.batch);
            let projected = B::float_mul(normalized, projection);
            let gradient = B::float_sub(B::float_sub(output_grad, mean), projected);
            grads.register::<B>(node.id, B::float_mul(scale, gradient));
        }
        if let Some(node) = gamma_node {
            grads.register::<B>(node.id, sums.output_by_normalized);
        }
        if let Some(node) = beta_node {
            grads.register::<B>(node.id, sums.output);
        }
    }
}

/// A tensor's channels: its second dimension.
struct Channels {
    count: usize,
    elements: usize,
    rank: usize,
}

impl Channels {
    fn of(shape: &Shape) -> Self {
        let count = shape[1];
        Self {
            count,
            elements: shape.num_elements() / count,
            rank: shape.num_dims(),
        }
    }

    /// One value a channel, in a shape that broadcasts over the input.
    fn spread<B: Backend>(&self, values: FloatTensor<B>) -> FloatTensor<B> {
        let mut shape = vec![1; self.rank];
        shape[1] = self.count;
        B::float_reshape(values, Shape::from(shape))
    }

    /// `[channels, elements]`.
    fn rows<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        let shape = Shape::new([self.count, self.elements]);
        B::float_reshape(B::float_swap_dims(tensor, 0, 1), shape)
    }
}

/// This rank's sums over the elements of each channel, `[channels]`.
struct Sums<B: Backend> {
    output: FloatTensor<B>,
    output_by_normalized: FloatTensor<B>,
    /// The same sums for the exchange. In half precision they could overflow, so they are taken
    /// once more, as means, as Burn does.
    means: FloatTensor<B>,
    elements: usize,
}

impl<B: Backend> Sums<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn of(channels: &Channels, output_grad: FloatTensor<B>, normalized: FloatTensor<B>) -> Self {
        let by_normalized = B::float_mul(output_grad.clone(), normalized);
        let output = channels.rows::<B>(output_grad);
        let by_normalized = channels.rows::<B>(by_normalized);
        let flat = |tensor| B::float_reshape(tensor, Shape::new([channels.count]));
        let means = vec![
            B::float_mean_dim(widened::<B>(output.clone()), 1),
            B::float_mean_dim(widened::<B>(by_normalized.clone()), 1),
        ];
        Self {
            output: flat(B::float_sum_dim(output, 1)),
            output_by_normalized: flat(B::float_sum_dim(by_normalized, 1)),
            means: B::float_cat(means, 0),
            elements: channels.elements,
        }
    }

    /// The means of the gradients over all ranks, in shapes that broadcast over the input.
    fn means_over_ranks(&self, channels: &Channels, batch: &GlobalBatch) -> [FloatTensor<B>; 2] {
        let (device, dtype) = (self.output.device(), self.output.dtype());
        let means = match &batch.elements {
            Elements::Known(elements) => self.means_in_host_memory(batch, *elements),
            Elements::OnDevice(elements) => {
                return self.means_on_device(channels, batch, elements);
            }
        };
        // The group shows a failure; the step must only come to its end.
        let means = means.unwrap_or_else(|_| vec![0.0; 2 * channels.count]);
        let spread = |means: &[f64]| {
            let values = upload::<B>(means.to_vec(), &[channels.count], dtype, &device);
            channels.spread::<B>(values)
        };
        let (mean, projection) = means.split_at(channels.count);
        [spread(mean), spread(projection)]
    }

    fn means_on_device(
        &self,
        channels: &Channels,
        batch: &GlobalBatch,
        elements: &Tensor<1>,
    ) -> [FloatTensor<B>; 2] {
        let count = channels.count;
        let means = row_of::<B>(self.means.clone()).cast(DType::F64);
        let sums = match self.elements {
            // The mean of nothing is not a number.
            0 => means.zeros_like(),
            elements => means.mul_scalar(elements as f64),
        };
        let means = batch.means_on_device(sums.clone(), elements);
        // The group shows a failure; the step must only come to its end.
        let means = means.unwrap_or_else(|_| sums.zeros_like());
        let means = means.cast(self.output.dtype());
        [0..count, count..2 * count].map(|range| {
            let means = means.clone().slice([range]);
            channels.spread::<B>(of_row::<B>(means, Shape::new([count])))
        })
    }

    fn means_in_host_memory(
        &self,
        batch: &GlobalBatch,
        elements: f64,
    ) -> Result<Vec<f64>, SyncError> {
        let sums = if self.elements == 0 {
            // The mean of nothing is not a number.
            vec![0.0; self.means.shape().num_elements()]
        } else {
            let means = read::<B>(self.means.clone(), &batch.group)?;
            let sum = |mean| mean * self.elements as f64;
            means.iter::<f64>().map(sum).collect()
        };
        batch.means_over_ranks(&sums, elements)
    }
}

/// Half-precision numbers as `f32`, others as they are.
fn widened<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => B::float_cast(tensor, FloatDType::F32),
        _ => tensor,
    }
}
