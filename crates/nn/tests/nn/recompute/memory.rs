//! What lives between and during the passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::prelude::*;
use everburn_nn::checkpoint;

use super::model::{Net, autodiff, plain, rows};
use crate::alone::alone;

/// How many states are kept for a backward pass, and the most there have been.
#[derive(Debug, Default)]
struct Kept {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A state that a backward step needs.
#[derive(Debug)]
struct State(Arc<Kept>);

impl State {
    fn new(kept: Arc<Kept>) -> Self {
        let now = kept.now.fetch_add(1, Ordering::SeqCst) + 1;
        kept.most.fetch_max(now, Ordering::SeqCst);
        Self(kept)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An identity that keeps a state for its backward step.
#[backend_extension(Autodiff, Flex)]
trait Keep: Backend {
    fn keep(tensor: FloatTensor<Self>, kept: Arc<Kept>) -> FloatTensor<Self> {
        drop(kept);
        tensor
    }
}

impl Keep for Flex {}

#[derive(Debug)]
struct KeepBackward;

impl<B: Backend> Backward<B, 1> for KeepBackward {
    type State = Arc<State>;

    fn backward(
        self,
        ops: Ops<Arc<State>, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        gradients.register::<B>(parent.expect("tracked").id, gradient);
    }
}

impl<B: Keep, C: CheckpointStrategy> Keep for Autodiff<B, C> {
    fn keep(tensor: FloatTensor<Self>, kept: Arc<Kept>) -> FloatTensor<Self> {
        let (primitive, node) = tensor.into_parts();
        let prepared = Backward::<B, 1>::prepare::<C>(KeepBackward, [node]);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(operation) => operation.finish(Arc::new(State::new(kept)), primitive),
            OpsKind::UnTracked(operation) => operation.finish(primitive),
        }
    }
}

const OPERATIONS: usize = 5;

/// A segment that keeps five states.
fn segment(x: Tensor<2>, kept: &Arc<Kept>) -> Tensor<2> {
    (0..OPERATIONS).fold(x, |x, _| {
        let kept = <Dispatch as Keep>::keep(x.into_dispatch(), Arc::clone(kept));
        Tensor::<2>::from_dispatch(kept).tanh()
    })
}

#[test]
fn one_segment_is_kept_at_a_time() {
    let net = Net::new(&autodiff(), 1, 0.0);
    let run = |checkpointed: bool| {
        let kept = Arc::new(Kept::default());
        let mut x = rows(&net.devices()[0]).require_grad();
        for _ in 0..4 {
            let inner = Arc::clone(&kept);
            x = match checkpointed {
                true => checkpoint(&net, x, move |_: &Net, x| segment(x, &inner)),
                false => segment(x, &kept),
            };
        }
        let after_forward = kept.now.load(Ordering::SeqCst);
        drop(x.sum().backward());
        let [now, most] = [&kept.now, &kept.most].map(|count| count.load(Ordering::SeqCst));
        (after_forward, most, now)
    };
    assert_eq!(run(false), (4 * OPERATIONS, 4 * OPERATIONS, 0));
    assert_eq!(run(true), (0, OPERATIONS, 0));
}

#[test]
fn what_is_given_up_leaves_nothing_behind() {
    // A graph that the backward pass of another test looks at in that moment would not be freed.
    alone(|| {
        let net = Net::new(&autodiff(), 2, 0.0);
        let held = Arc::new(());
        for _ in 0..3 {
            let inner = Arc::clone(&held);
            let output = checkpoint(&net, rows(&autodiff()), move |net: &Net, x| {
                let _ = &inner;
                plain(net, x)
            });
            drop(output);
        }
        // Burn frees graphs that nothing refers to when a backward pass has ended.
        drop(plain(&net, rows(&autodiff())).sum().backward());
        drop(plain(&net, rows(&autodiff())).sum().backward());
        assert_eq!(Arc::strong_count(&held), 1);
    });
}
