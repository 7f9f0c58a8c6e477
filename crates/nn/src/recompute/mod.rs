//! Activation checkpointing: a segment of a model is computed twice, and its activations are not kept in
//! between.
//!
//! Chen, Xu, Zhang and Guestrin 2016, "Training Deep Nets with Sublinear Memory Cost", section 4: of a row
//! of `n` layers in `k` segments a backward pass holds the inputs of the segments and the activations of
//! one segment, in place of the activations of all layers, for at most one more forward pass. With
//! `k = √n` both are `O(√n)`.
//!
//! The forward pass runs the segment on tensors without a graph, and leaves one operation in the graph in
//! its place (`operations.rs`). Its backward step runs the segment again, on leaves of a graph of its own,
//! which it goes through at once, and hands the leaves' gradients to what they were copied from: the
//! segment's input and the parameters that it asked for, through whatever is between these and their
//! leaves. burn-autodiff holds a lock on a graph while it runs its backward pass, so the inner graph must
//! share no node with the outer one: all that the recomputation sees are copies.

mod blocks;
mod graph;
mod operations;
mod parameters;
mod randomness;
mod source;
mod value;

use std::cell::Cell;
use std::thread::LocalKey;

use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor, TensorMetadata};
use burn::module::{Module, ParamId};
use burn::prelude::*;

use crate::precision::{autocast, compute_type};

use self::graph::{device_of, leaf, marker, untracked};
use self::operations::{GradientSlot, Recomputation, RecomputeOps};
use self::parameters::{Observed, Used, with_leaves};
use self::randomness::{Draws, Recording};

pub use blocks::{checkpointed_forward, checkpointed_run};
pub use randomness::Randomness;
pub use source::{ParameterSource, SharedSource, has_parameter_source, with_parameters_from};
pub use value::SegmentValue;

/// Runs `segment` on `module` and `input`, keeps nothing but the input, and runs it again in the backward
/// pass. Output and gradients are those of `segment(module, input)`.
///
/// The segment sees the parameters that it uses through the module that it is given. It may be any code,
/// other checkpointed segments included, that does the same when it runs again. Dropout draws the same
/// numbers again ([`Randomness`]); [`BatchNorm`](crate::BatchNorm) updates its running statistics
/// once (Burn's own batch norm does it twice, as PyTorch's does in a checkpoint). What the segment exchanges
/// with other ranks it exchanges again, in the backward pass.
///
/// Two differences to `segment(module, input)` in what is equal: a parameter that the segment asks for and
/// does not use has a gradient of zeros where a gradient hook watches it, and one that several segments use several
/// times has its gradients added up in another order.
///
/// The first time that a segment with random numbers asks for a parameter whose initial value is drawn only
/// then, its forward pass runs twice.
///
/// Where nothing has a graph (`valid()`) this is `segment(module, input)`.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use burn::tensor::activation::gelu;
/// use everburn::nn::checkpoint;
///
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let mut x = Tensor::<2>::ones([2, 8], &device);
/// for pair in layers.chunks(2) {
///     x = checkpoint(&pair.to_vec(), x, |pair, x| gelu(pair[1].forward(gelu(pair[0].forward(x)))));
/// }
/// let gradients = x.mean().backward();
/// assert!(layers[0].weight.val().grad(&gradients).is_some());
/// ```
///
/// # Panics
/// As the segment does, in the forward pass. Also if the output depends on a tensor with a graph that is
/// neither part of the input nor a parameter of the module: its gradient would be lost. In the backward
/// pass, if the segment does something else than before: asks for other parameters, yields other shapes or
/// draws other random numbers.
#[doc(alias = "torch.utils.checkpoint")]
pub fn checkpoint<M, I, O>(module: &M, input: I, segment: impl Fn(&M, I) -> O + Send + 'static) -> O
where
    M: Module + 'static,
    I: SegmentValue,
    O: SegmentValue,
{
    checkpoint_with(Randomness::default(), module, input, segment)
}

/// [`checkpoint`] with a word on the segment's random numbers.
///
/// # Panics
/// As [`checkpoint`].
pub fn checkpoint_with<M, I, O>(
    randomness: Randomness,
    module: &M,
    input: I,
    segment: impl Fn(&M, I) -> O + Send + 'static,
) -> O
where
    M: Module + 'static,
    I: SegmentValue,
    O: SegmentValue,
{
    let mut parents = Vec::new();
    let plain = input.copy().map_floats(&mut |tensor| {
        parents.push(tensor.clone());
        untracked(tensor)
    });
    let observed = Observed::new(module);
    if !observed.has_candidates() && !parents.iter().any(Dispatch::is_tracked) {
        return segment(module, input);
    }
    drop(input);

    let recording = match randomness {
        Randomness::Replayed => device(&parents, module).map(Recording::start),
        Randomness::Unused => None,
    };
    let first_run = Within::enter(&SEGMENTS);
    let mut output = segment(&observed.module, plain.copy());
    if let Some(recording) = &recording
        && observed.has_drawn_parameters()
    {
        // Initial weights were drawn among the segment's own numbers, and will not be again.
        let _again = Within::enter(&RECOMPUTATIONS);
        recording.rewind();
        output = segment(&observed.module, plain.copy());
    }
    drop(first_run);
    let (output, first) = refuse_strangers(output);
    let draws = recording.and_then(|recording| recording.finish(first.as_ref()));
    let (uses, module) = observed.into_parts();

    let mut chain = Chain::default();
    let inputs = parents.into_iter().map(|tensor| chain.take_part(tensor));
    let inputs = inputs.collect();
    let tracked = uses.into_iter().filter(Used::is_tracked);
    let parameters = tracked
        .map(|Used { id, value, .. }| (id, chain.take_part(value)))
        .filter_map(|(id, slot)| Some((id, slot?)))
        .collect();
    let Some(marker) = chain.marker else {
        return output;
    };

    // The backward pass may come when this thread multiplies in another type again.
    let compute = compute_type();
    let mut slots = Vec::new();
    let mut emit = |tensor: DispatchTensor, marker: DispatchTensor| {
        let slot = GradientSlot::default();
        slots.push(slot.clone());
        <Dispatch as RecomputeOps>::emit(tensor, marker, slot)
    };
    // The outputs are after the segment, which must know their slots: so its node takes them later.
    let outputs = Outputs::default();
    let segment = Segment {
        module,
        input: plain,
        inputs,
        parameters,
        outputs: outputs.clone(),
        draws,
        run: segment,
    };
    let recomputation = Recomputation::new(move || autocast(compute, || segment.differentiate()));
    let marker = <Dispatch as RecomputeOps>::segment(marker, recomputation);
    let output = output.map_floats(&mut |tensor| emit(tensor, marker.clone()));
    outputs.set(slots);
    output
}

thread_local! {
    /// How many recomputations this thread is in.
    static RECOMPUTATIONS: Cell<usize> = const { Cell::new(0) };
    /// How many segments this thread runs for the first time, one in the other.
    static SEGMENTS: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread runs a checkpointed segment again, for its backward pass: what a segment does beside
/// computing its output, such as counting, it has done before.
pub fn recomputing() -> bool {
    RECOMPUTATIONS.with(|depth| depth.get() > 0)
}

/// Whether this thread runs a checkpointed segment, for the first time or again.
pub(crate) fn in_segment() -> bool {
    recomputing() || SEGMENTS.with(|depth| depth.get() > 0)
}

/// Counts what this thread is in, until it is dropped.
struct Within(&'static LocalKey<Cell<usize>>);

impl Within {
    fn enter(depth: &'static LocalKey<Cell<usize>>) -> Self {
        depth.set(depth.get() + 1);
        Self(depth)
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Where the segment computes; `None` for one that has neither numbers nor parameters.
fn device<M: Module>(parents: &[DispatchTensor], module: &M) -> Option<Device> {
    let of_input = parents.first().map(device_of);
    of_input.or_else(|| module.devices().into_iter().next())
}

/// The output of a forward pass that had no graph, and its first tensor.
fn refuse_strangers<O: SegmentValue>(output: O) -> (O, Option<DispatchTensor>) {
    let mut first = None;
    let output = output.map_floats(&mut |tensor| {
        assert!(
            !Dispatch::is_tracked(&tensor),
            "the output of a checkpointed segment depends on a tensor with a graph that is neither part \
             of its input nor a parameter of its module: hand the tensor in with the input, or the module \
             that holds the parameter in place of a part of it"
        );
        first.get_or_insert_with(|| tensor.clone());
        tensor
    });
    (output, first)
}

/// What a segment's gradients go to, one marker after the other.
#[derive(Default)]
struct Chain {
    marker: Option<DispatchTensor>,
}

impl Chain {
    /// Where the gradient of `tensor` will come from; `None` if it has none.
    fn take_part(&mut self, tensor: DispatchTensor) -> Option<GradientSlot> {
        if !Dispatch::is_tracked(&tensor) {
            return None;
        }
        let slot = GradientSlot::default();
        let marker = self.marker.take();
        let marker = marker.unwrap_or_else(|| graph::marker(&device_of(&tensor)));
        let marker = <Dispatch as RecomputeOps>::take_part(marker, tensor, slot.clone());
        self.marker = Some(marker);
        Some(slot)
    }
}

/// The gradients of the outputs.
#[derive(Debug, Clone, Default)]
struct Outputs(std::sync::Arc<std::sync::OnceLock<Vec<GradientSlot>>>);

impl Outputs {
    fn set(&self, slots: Vec<GradientSlot>) {
        // Set once, by the only caller, before anything can be differentiated.
        let _ = self.0.set(slots);
    }

    fn take(&self) -> Vec<Option<DispatchTensor>> {
        let slots = self.0.get().into_iter().flatten();
        slots.map(GradientSlot::take).collect()
    }
}

/// What is kept of a segment from the forward to the backward pass. Holds no node of the outer graph,
/// which could not be given up otherwise.
struct Segment<M, I, F> {
    module: M,
    input: I,
    /// Of each tensor of the input.
    inputs: Vec<Option<GradientSlot>>,
    parameters: Vec<(ParamId, GradientSlot)>,
    outputs: Outputs,
    draws: Option<Draws>,
    run: F,
}

impl<M, I, F> Segment<M, I, F>
where
    M: Module,
    I: SegmentValue,
{
    fn differentiate<O: SegmentValue>(self)
    where
        F: Fn(&M, I) -> O,
    {
        let gradients = self.outputs.take();
        if gradients.iter().all(Option::is_none) {
            return;
        }
        let _inside = Within::enter(&RECOMPUTATIONS);
        let mut leaves = Vec::new();
        let mut slots = self.inputs.into_iter();
        let input = self.input.map_floats(&mut |tensor| {
            let Some(slot) = slots.next().flatten() else {
                return tensor;
            };
            let leaf = leaf(tensor);
            leaves.push((leaf.clone(), slot));
            leaf
        });
        let (ids, slots): (Vec<_>, Vec<_>) = self.parameters.into_iter().unzip();
        let (module, parameters) = with_leaves(self.module, &ids);
        leaves.extend(parameters.into_iter().zip(slots));

        let run = || (self.run)(&module, input);
        let output = match self.draws {
            Some(draws) => draws.replay(run, first_tensor),
            None => run(),
        };
        drop(module);
        if let Some(root) = root_of(output, gradients) {
            let mut gradients = <Dispatch as AutodiffBackend>::backward(root);
            for (leaf, slot) in leaves {
                slot.put(Dispatch::grad_remove(&leaf, &mut gradients));
            }
        }
    }
}

fn first_tensor<O: SegmentValue>(output: &O) -> Option<DispatchTensor> {
    let mut first = None;
    let _ = output.copy().map_floats(&mut |tensor| {
        first.get_or_insert_with(|| tensor.clone());
        tensor
    });
    first
}

/// What gives the tensors of `output` these gradients in a backward pass.
fn root_of<O: SegmentValue>(
    output: O,
    gradients: Vec<Option<DispatchTensor>>,
) -> Option<DispatchTensor> {
    let mut gradients = gradients.into_iter();
    let mut root = None;
    let _ = output.map_floats(&mut |tensor| {
        let Some(gradient) = gradients.next().flatten() else {
            return tensor;
        };
        assert!(
            gradient.shape() == tensor.shape(),
            "a checkpointed segment returns a tensor of shape {:?} when it is recomputed, and one of {:?} \
             in the forward pass; a segment must do the same each time",
            tensor.shape(),
            gradient.shape(),
        );
        if Dispatch::is_tracked(&tensor) {
            let slot = GradientSlot::default();
            slot.put(Some(gradient));
            let before = root
                .take()
                .unwrap_or_else(|| marker(&device_of(&tensor)));
            let begun = <Dispatch as RecomputeOps>::begin(before, tensor.clone(), slot);
            root = Some(begun);
        }
        tensor
    });
    root
}
