//! Gradients of weights, computed apart from those of activations.
//!
//! A backward pass does two things at each layer `y = x W`: `dx = dy Wᵀ`, for which the stage before
//! waits, and `dW = xᵀ dy`, for which nobody waits until the optimizer's turn. Zero-bubble pipelines
//! (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2) run the second part later, where
//! a stage would be idle.
//!
//! [`record`] runs a forward pass in which the [linear layers](crate::Linear) put off their second
//! part. The backward pass through its output is the first part; [`Deferred::run`] is the second:
//!
//! ```
//! use burn::optim::GradientsParams;
//! use burn::prelude::*;
//! use everburn_nn::{LinearConfig, deferral};
//!
//! let device = Device::flex().autodiff();
//! let layer = LinearConfig::new(3, 2).init(&device);
//! let x = Tensor::<2>::ones([4, 3], &device).require_grad();
//!
//! let (loss, deferred) = deferral::record(|| layer.forward(x.clone()).sum());
//! let gradients = loss.backward();
//! assert!(x.grad(&gradients).is_some()); // can leave for the stage before
//! assert!(layer.weight.grad(&gradients).is_none());
//!
//! let mut gradients = deferred.run().unwrap().expect("the model has a linear layer");
//! let gradients = GradientsParams::from_params(&mut gradients, &layer, &[layer.weight.id]);
//! assert_eq!(gradients.get::<2>(layer.weight.id).unwrap().dims(), [3, 2]);
//! ```
//!
//! # How
//! burn-autodiff uses a graph up in one backward pass, so a weight must not be part of the graph of
//! the first. Inside a recorded forward pass a layer's operation has the weight as a constant; its
//! backward step gives `dx` and leaves `x` and `dy` in a [`Slot`]. [`Deferred`] holds the weight's
//! tensor meanwhile, with whatever graph lies between it and the parameter: a transposition, a gradient hook
//! of `everburn_distributed`. The second pass begins at a second operation on that tensor, whose
//! value is zero and whose backward step takes what lies in the slot. Each number is computed by the
//! same operation on the same operands as in an undivided backward pass, so the bits are the same;
//! only where a weight is used three times or more within one recording, the order of its sum can
//! differ.
//!
//! Biases, norms, embeddings and all else get their gradients in the first pass, and so does what lies
//! in a [checkpointed](crate::checkpoint) segment.

mod operations;
mod slot;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::{Dispatch, DispatchTensor};
use burn::prelude::*;
use burn::tensor::{DType, Gradients};

use crate::layers::product;
use operations::Deferrable;
use slot::Slot;

thread_local! {
    /// Where the layers of this thread leave what they put off.
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Runs `forward`, whose [`Linear`](crate::Linear) layers and [`linear`](crate::tensor::module::linear) functions put
/// off the gradients of their weights.
///
/// The values are those of an ordinary forward pass, to the bit. Without autodiff, and for weights
/// that need no gradient, nothing is put off. Only layers on this thread take part. Within `forward`,
/// another `record` has what is put off within it; a panic ends the recording.
///
/// Any number of recordings may wait at a time, as the micro-batches of a pipeline do, and be run in
/// any order. See the [module's example](self).
pub fn record<R>(forward: impl FnOnce() -> R) -> (R, Deferred) {
    let recording = Recording::default();
    let output = recording.enter(forward);
    (output, Deferred { recording })
}

/// A parameter of a recorded forward pass that is used both by a layer that puts off its gradient and
/// by another operation: an embedding that is tied to the head of the same stage.
///
/// Its gradient from the other operation is computed in the first pass, but reaches the parameter in
/// the second. Without this, the first pass would use up the graph between the parameter and its
/// uses where there is one (a gradient hook), and the second would end in Burn's
/// panic about a graph that has been consumed. Outside a recording it is `value` itself.
///
/// ```
/// use burn::nn::EmbeddingConfig;
/// use burn::prelude::*;
/// use burn::tensor::module::embedding;
/// use everburn_nn::deferral;
/// use everburn_nn::tensor::module::linear;
///
/// let device = Device::flex().autodiff();
/// let tied = EmbeddingConfig::new(5, 3).init(&device);
/// let ids = Tensor::<2, Int>::from_ints([[1, 4]], &device);
/// let (loss, deferred) = deferral::record(|| {
///     let hidden = embedding(deferral::parameter(tied.weight.val()), ids);
///     linear(hidden, tied.weight.val().transpose(), None).sum()
/// });
/// let gradients = loss.backward();
/// assert!(tied.weight.grad(&gradients).is_none());
/// let gradients = deferred.run().unwrap().unwrap();
/// assert_eq!(tied.weight.grad(&gradients).unwrap().dims(), [5, 3]); // both parts
/// ```
pub fn parameter<const D: usize>(value: Tensor<D>) -> Tensor<D> {
    let Some(recording) = current().filter(|_| value.is_autodiff()) else {
        return value;
    };
    let (device, slot) = (value.device(), Arc::new(Slot::default()));
    let parameter = value.into_dispatch();
    let late = <Dispatch as Deferrable>::late(
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
    // Others know how to multiply by numbers of few bits.
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
            Some(bias) => recording.product(input, weight) + bias.unsqueeze(),
            None => recording.product(input, weight),
        },
    };
    output.reshape(shape)
}

/// A leaf without meaning: an operation that has it as a parent gets its backward step, even where
/// neither its input nor its bias needs a gradient.
fn ticket(device: &Device) -> Tensor<1> {
    Tensor::zeros([1], (device, DType::F32)).require_grad()
}

/// What the layers of a recording have put off so far.
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

/// The recording of this thread, if there is one. A checkpointed segment is no part of one: its
/// parameters are copies, which are gone when the backward pass is over.
fn current() -> Option<Recording> {
    if crate::recompute::in_segment() {
        return None;
    }
    RECORDING.with_borrow(Clone::clone)
}

impl Recording {
    /// Runs `forward`, whose layers leave here what they put off.
    fn enter<R>(&self, forward: impl FnOnce() -> R) -> R {
        /// Takes back what was there before, whatever happens.
        struct Restore(Option<Recording>);
        impl Drop for Restore {
            fn drop(&mut self) {
                RECORDING.set(self.0.take());
            }
        }
        let _restore = Restore(RECORDING.replace(Some(self.clone())));
        forward()
    }

    /// `input * weight`, of which the weight's gradient is put off.
    fn product(&self, input: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
        let slot = Arc::new(Slot::default());
        let ticket = ticket(&input.device()).into_dispatch();
        let weight = weight.into_dispatch();
        let output = <Dispatch as Deferrable>::matmul_apart(
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

/// The gradients that a recorded forward pass has put off. Made by [`record`].
///
/// It holds the inputs of the layers from the backward pass on, and the gradients of their outputs.
/// Dropped without being run, it frees them; the weights then have no gradient from this pass.
#[derive(Debug)]
#[must_use = "the weights get no gradient before `run`"]
pub struct Deferred {
    recording: Recording,
}

/// Why gradients that were put off could not be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeferralError {
    /// There was no backward pass.
    #[error(
        "the gradients of {layers} linear layers were put off, and no backward pass has come through \
         any of them: call `backward` on the output of the recorded forward pass before `run`"
    )]
    BeforeBackward {
        /// How many layers have put off the gradient of their weight.
        layers: usize,
    },
}

impl Deferred {
    /// How many gradients of weights have been put off.
    pub fn len(&self) -> usize {
        self.recording.with(|parts| parts.len())
    }

    /// Whether nothing was put off.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Computes what was put off: the gradients of the weights, and nothing else. `None` if there is
    /// nothing to compute.
    ///
    /// It comes after the backward pass through the recorded output, and takes `self`, so that it
    /// cannot be done twice. A layer that the backward pass has not come through, because the loss
    /// does not depend on it, has no gradient here either.
    ///
    /// # Errors
    /// [`DeferralError::BeforeBackward`] if the backward pass has come through no layer at all.
    pub fn run(self) -> Result<Option<Gradients>, DeferralError> {
        Ok(self.seed()?.map(|seed| seed.backward()))
    }

    /// A number, always zero, whose backward pass is [`Deferred::run`]: for those who run backward
    /// passes themselves, or add several together.
    ///
    /// # Errors
    /// As [`Deferred::run`].
    pub fn seed(self) -> Result<Option<Tensor<1>>, DeferralError> {
        let parts = self.recording.with(std::mem::take);
        let layers = parts.len();
        let ready = parts.into_iter().filter(|part| part.slot.is_filled());
        let mut seeds = ready.map(|part| {
            let seed = <Dispatch as Deferrable>::deliver(part.weight, part.slot);
            Tensor::<1>::from_dispatch(seed)
        });
        let Some(first) = seeds.next() else {
            return match layers {
                0 => Ok(None),
                layers => Err(DeferralError::BeforeBackward { layers }),
            };
        };
        let device = first.device();
        Ok(Some(seeds.fold(first, |sum, seed| {
            // Parts of a model may lie on several devices.
            sum + seed.to_device(&device)
        })))
    }
}
