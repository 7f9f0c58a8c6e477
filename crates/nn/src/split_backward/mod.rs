//! Split backward: gradients of weights, computed separately from those of activations.
//!
//! A backward pass computes two gradients at each layer `y = x W`: `dx = dy Wᵀ`, for which the stage before waits, and
//! `dW = xᵀ dy`, which only the optimizer needs. Zero-bubble pipelines (Qi et al. 2023, "Zero Bubble Pipeline
//! Parallelism", section 2) compute the second one later, when a stage would be idle.
//!
//! [`record`] runs a forward pass in which the [linear layers](crate::Linear) defer the gradients of their weights. The
//! backward pass through its output is the first part; [`WeightBackward::run`] is the second:
//!
//! ```
//! # mod everburn { pub use everburn_nn as nn; }
//! use burn::optim::GradientsParams;
//! use burn::prelude::*;
//! use everburn::nn::{LinearConfig, split_backward};
//!
//! let device = Device::flex().autodiff();
//! let layer = LinearConfig::new(3, 2).init(&device);
//! let x = Tensor::<2>::ones([4, 3], &device).require_grad();
//!
//! let (loss, weight_backward) = split_backward::record(|| layer.forward(x.clone()).sum());
//! let gradients = loss.backward();
//! assert!(x.grad(&gradients).is_some()); // can leave for the stage before
//! assert!(layer.weight.grad(&gradients).is_none());
//!
//! let mut gradients = weight_backward.run().unwrap().expect("the model has a linear layer");
//! let gradients = GradientsParams::from_params(&mut gradients, &layer, &[layer.weight.id]);
//! assert_eq!(gradients.get::<2>(layer.weight.id).unwrap().dims(), [3, 2]);
//! ```
//!
//! # How
//! burn-autodiff consumes a graph in one backward pass, so a weight must not be part of the graph of the first. Inside
//! a recorded forward pass a layer's operation has the weight as a constant; its backward step computes `dx` and leaves
//! `x` and `dy` in a [`Slot`]. [`WeightBackward`] keeps the weight's tensor meanwhile, with the graph between it and
//! the parameter: a transposition, a gradient hook of `everburn::distributed`. The second pass begins at a second
//! operation on that tensor, whose value is zero and whose backward step takes the operands from the slot. Each number
//! is computed by the same operation on the same operands as in an unsplit backward pass, so the bits are the same;
//! only the order of summation can differ, for a weight used three times or more within one recording.
//!
//! Biases, norms, embeddings and other layers get their gradients in the first pass, and so do all layers in a
//! [checkpointed](crate::checkpoint) segment.

mod operations;
mod slot;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::{Dispatch, DispatchTensor};
use burn::prelude::*;
use burn::tensor::{DType, Gradients};

use crate::layers::{add_bias, product};
use crate::thread_value::with_value;
use operations::SplitBackwardOps;
use slot::Slot;

thread_local! {
    /// The recording of this thread's layers.
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Runs `forward`, whose [`Linear`](crate::Linear) layers and [`linear`](crate::tensor::module::linear) functions
/// defer the gradients of their weights.
///
/// The values are those of an ordinary forward pass, to the bit. Without autodiff, and for weights that need no
/// gradient, nothing is deferred. Only layers on this thread take part. A nested `record` takes the gradients deferred
/// within it; a panic ends the recording.
///
/// Any number of recordings may be pending at a time, as the micro-batches of a pipeline are, and run in any order. See
/// the [module's example](self).
pub fn record<R>(forward: impl FnOnce() -> R) -> (R, WeightBackward) {
    let recording = Recording::default();
    let output = with_value(&RECORDING, recording.clone(), forward);
    (output, WeightBackward { recording })
}

/// Wraps a parameter of a recorded forward pass that is used both by a layer that defers its gradient and by another
/// operation: an embedding tied to the head of the same stage.
///
/// Its gradient from the other operation is computed in the first pass, but reaches the parameter in the second.
/// Without this, the first pass would consume the graph between the parameter and its uses (such as a gradient hook),
/// and the second would panic in Burn about a consumed graph. Outside a recording it is `value` itself.
pub fn parameter<const D: usize>(value: Tensor<D>) -> Tensor<D> {
    let Some(recording) = current().filter(|_| value.is_autodiff()) else {
        return value;
    };
    let (device, slot) = (value.device(), Arc::new(Slot::default()));
    let parameter = value.into_dispatch();
    let late = <Dispatch as SplitBackwardOps>::late(
        parameter.clone(),
        ticket(&device).into_dispatch(),
        Arc::clone(&slot),
    );
    recording.note(parameter, slot);
    Tensor::from_dispatch(late)
}

/// [`burn::tensor::module::linear`], or its first part inside a recording.
pub(crate) fn linear<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    // Burn multiplies quantized weights itself.
    if matches!(weight.dtype(), DType::QFloat(_)) {
        return burn::tensor::module::linear(input, weight, bias);
    }
    let [d_input, d_output] = weight.dims();
    let mut shape = input.dims();
    let rows = shape[..D - 1].iter().product::<usize>();
    let input = input.reshape([rows, d_input]);
    shape[D - 1] = d_output;
    let output = match current().filter(|_| input.is_autodiff()) {
        None => product(input, weight, bias),
        Some(recording) => match bias {
            // The same bits, for they are added one after the other there too.
            Some(bias) => add_bias(recording.product(input, weight), bias),
            None => recording.product(input, weight),
        },
    };
    output.reshape(shape)
}

/// A dummy leaf: an operation with it as a parent gets its backward step, even if neither its input nor its bias needs
/// a gradient.
fn ticket(device: &Device) -> Tensor<1> {
    Tensor::zeros([1], (device, DType::F32)).require_grad()
}

/// The gradients that the layers of a recording have deferred so far.
#[derive(Debug, Clone, Default)]
struct Recording {
    parts: Arc<Mutex<Vec<Part>>>,
}

#[derive(Debug)]
struct Part {
    /// The weight, with the graph that leads to its parameter.
    weight: DispatchTensor,
    slot: Arc<Slot>,
}

/// The recording of this thread, if there is one. Checkpointed segments are not recorded: their parameters are copies,
/// freed with the backward pass.
fn current() -> Option<Recording> {
    if crate::recompute::in_segment() {
        return None;
    }
    RECORDING.with_borrow(Clone::clone)
}

impl Recording {
    /// `input * weight`, with the weight's gradient deferred.
    fn product(&self, input: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
        let slot = Arc::new(Slot::default());
        let ticket = ticket(&input.device()).into_dispatch();
        let weight = weight.into_dispatch();
        let output = <Dispatch as SplitBackwardOps>::split_matmul(
            input.into_dispatch(),
            weight.clone(),
            ticket,
            Arc::clone(&slot),
        );
        self.note(weight, slot);
        Tensor::from_dispatch(output)
    }

    fn note(&self, weight: DispatchTensor, slot: Arc<Slot>) {
        if slot.is_awaited() {
            self.with(|parts| parts.push(Part { weight, slot }));
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Vec<Part>) -> R) -> R {
        // A panic between two layers leaves a list that is as good as before.
        work(&mut self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The second part of the backward pass of a recorded forward pass: the gradients of weights. Made by [`record`].
///
/// From the first part on it holds the inputs of the layers and the gradients of their outputs. Dropping it without
/// running frees them; the weights then have no gradient from this pass.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::{LinearConfig, split_backward};
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(3, 2).init(&device);
/// let x = Tensor::<2>::ones([4, 3], &device).require_grad();
/// let (loss, weights) = split_backward::record(|| layer.forward(x).sum());
/// assert_eq!(weights.len(), 1); // one product
/// let _ = loss.backward();
/// let gradients = weights.run().unwrap().expect("there is a product");
/// assert!(layer.weight.grad(&gradients).is_some());
/// ```
#[derive(Debug)]
#[must_use = "the weights get no gradient before `run`"]
pub struct WeightBackward {
    recording: Recording,
}

/// Why the gradients of weights could not be computed.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::split_backward::{SplitBackwardError, record};
/// use everburn::nn::LinearConfig;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(3, 2).init(&device);
/// let x = Tensor::<2>::ones([4, 3], &device).require_grad();
/// let (_loss, weights) = record(|| layer.forward(x).sum());
/// // No `backward` before.
/// assert!(matches!(weights.run(), Err(SplitBackwardError::BeforeBackward { layers: 1 })));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitBackwardError {
    /// The first part of the backward pass has not run.
    #[error(
        "the weight gradients of {layers} linear layers were deferred, and no backward pass has reached \
         any of them: call `backward` on the output of the recorded forward pass before `run`"
    )]
    BeforeBackward {
        /// How many layers have deferred the gradient of their weight.
        layers: usize,
    },
}

impl WeightBackward {
    /// How many gradients of weights are deferred.
    pub fn len(&self) -> usize {
        self.recording.with(|parts| parts.len())
    }

    /// Whether no gradient is deferred.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Computes the gradients of the weights, and no others. `None` if no gradient is deferred.
    ///
    /// Call it after the backward pass through the recorded output. A layer that the backward pass has not reached,
    /// because the loss does not depend on it, gets no gradient.
    ///
    /// # Errors
    /// [`SplitBackwardError::BeforeBackward`] if the backward pass has reached no layer.
    pub fn run(self) -> Result<Option<Gradients>, SplitBackwardError> {
        Ok(self.seed()?.map(|seed| seed.backward()))
    }

    /// A zero whose backward pass is [`WeightBackward::run`]: to run backward passes by hand, or to add several
    /// together.
    ///
    /// # Errors
    /// As [`WeightBackward::run`].
    pub fn seed(self) -> Result<Option<Tensor<1>>, SplitBackwardError> {
        let parts = self.recording.with(std::mem::take);
        let layers = parts.len();
        let ready = parts.into_iter().filter(|part| part.slot.is_filled());
        let mut seeds = ready.map(|part| {
            let seed = <Dispatch as SplitBackwardOps>::deliver(part.weight, part.slot);
            Tensor::<1>::from_dispatch(seed)
        });
        let Some(first) = seeds.next() else {
            return match layers {
                0 => Ok(None),
                layers => Err(SplitBackwardError::BeforeBackward { layers }),
            };
        };
        let device = first.device();
        Ok(Some(seeds.fold(first, |sum, seed| {
            // Parts of a model may be on several devices.
            sum + seed.to_device(&device)
        })))
    }
}
