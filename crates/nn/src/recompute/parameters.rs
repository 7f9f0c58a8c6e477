//! A segment's parameters: found by being asked for, kept without their graph, and made leaves of the
//! graph that the backward pass builds.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::prelude::*;

use super::graph::{leaf, untracked};
use super::source::{self, SharedSource};
use crate::walking::TiedParameters;

/// A parameter that a segment has asked for.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) id: ParamId,
    /// With its place in the graph.
    pub(crate) value: DispatchTensor,
    /// Whether its value was made only now: initial weights are drawn when they are first asked for. (The
    /// value of a gradient hook is made now too, but is no leaf.)
    is_new: bool,
}

impl Used {
    pub(crate) fn is_tracked(&self) -> bool {
        Dispatch::is_tracked(&self.value)
    }
}

/// The parameters that a segment has asked for so far, in that order.
#[derive(Debug, Clone, Default)]
struct Uses(Arc<Mutex<Vec<Used>>>);

/// A copy of a module whose parameters have no graph and are noted when they are asked for.
pub(crate) struct Observed<M> {
    pub(crate) module: M,
    candidates: HashSet<ParamId>,
    uses: Uses,
    /// Of the parameters whose numbers are not to be kept.
    sources: Sources,
}

type Sources = HashMap<ParamId, SharedSource>;

impl<M: Module> Observed<M> {
    pub(crate) fn new(module: &M) -> Self {
        let mut observer = Observer {
            uses: Uses::default(),
            observed: TiedParameters::default(),
            sources: Sources::new(),
        };
        let module = module.clone().map(&mut observer);
        Self {
            module,
            sources: observer.sources,
            candidates: observer.observed.ids().collect(),
            uses: observer.uses,
        }
    }

    /// Whether any parameter could have a gradient.
    pub(crate) fn has_candidates(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// Whether a parameter's first value was drawn when the segment asked for it.
    pub(crate) fn has_drawn_parameters(&self) -> bool {
        lock(&self.uses).iter().any(|used| used.is_new)
    }

    /// The parameters that were asked for, and the module as the backward pass needs it. Neither keeps
    /// what nobody asked for, and the module no part of the graph.
    pub(crate) fn into_parts(self) -> (Vec<Used>, M) {
        let uses = std::mem::take(&mut *lock(&self.uses));
        let values = uses
            .iter()
            .map(|used| (used.id, untracked(used.value.clone())));
        let mut keeper = Keeper {
            candidates: &self.candidates,
            values: values.collect(),
            sources: &self.sources,
        };
        (uses, self.module.map(&mut keeper))
    }
}

/// `module`, as [`Observed::into_parts`] gave it, with the parameters of `ids` as leaves of a graph;
/// the leaves in the order of `ids`.
pub(crate) fn with_leaves<M: Module>(module: M, ids: &[ParamId]) -> (M, Vec<DispatchTensor>) {
    let mut maker = LeafMaker {
        wanted: ids.iter().copied().collect(),
        leaves: HashMap::new(),
    };
    let module = module.map(&mut maker);
    let take = |id| maker.leaves.get(id).cloned();
    let leaves = ids.iter().map(take).collect::<Option<Vec<_>>>();
    let leaves = leaves.expect("each parameter that was asked for is one of the module");
    (module, leaves)
}

fn lock(uses: &Uses) -> std::sync::MutexGuard<'_, Vec<Used>> {
    uses.0.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Observer {
    uses: Uses,
    observed: TiedParameters,
    sources: Sources,
}

impl ModuleMapper for Observer {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // Frozen parameters and running statistics have no graph. What has no value yet is asked when
        // it has: a hook on it must not be made before the segment needs it.
        let without_graph = match param.is_initialized() {
            true => !param.base().is_tracked(),
            false => !param.lazy_device().is_autodiff(),
        };
        if without_graph {
            return param;
        }
        if let Some(observed) = self.observed.get(param.id) {
            return observed;
        }
        let (id, device, shape) = (param.id, param.lazy_device(), param.lazy_shape());
        let uses = self.uses.clone();
        let source = source::of(id);
        if let Some(source) = &source {
            self.sources.insert(id, source.clone());
        }
        let at_first_use = move |_: &Device, _: bool| {
            if let Some(source) = source {
                let (value, is_new) = (source.placeholder(id), false);
                lock(&uses).push(Used { id, value, is_new });
                return Tensor::from_dispatch(source.numbers(id));
            }
            let had_value = param.is_initialized();
            let value = param.val().into_dispatch();
            let is_new = !had_value && Dispatch::float_is_require_grad(&value);
            let plain = Tensor::from_dispatch(untracked(value.clone()));
            lock(&uses).push(Used { id, value, is_new });
            plain
        };
        let observed = Param::uninitialized(id, at_first_use, device, true, shape);
        self.observed.keep(id, observed)
    }
}

struct Keeper<'a> {
    candidates: &'a HashSet<ParamId>,
    values: HashMap<ParamId, DispatchTensor>,
    sources: &'a Sources,
}

impl ModuleMapper for Keeper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        if !self.candidates.contains(&id) {
            return param;
        }
        if let (Some(_), Some(source)) = (self.values.get(&id), self.sources.get(&id)) {
            let source = source.clone();
            let again = move |_: &Device, _: bool| Tensor::from_dispatch(source.numbers(id));
            return Param::uninitialized(id, again, param.lazy_device(), true, param.lazy_shape());
        }
        if let Some(value) = self.values.get(&id) {
            return Param::initialized(id, Tensor::from_dispatch(value.clone()));
        }
        // Asking for its value now would build on the graph that is being run.
        let refuse = move |_: &Device, _: bool| -> Tensor<D> {
            panic!(
                "a checkpointed segment asks for parameter {id} when it is recomputed, and did not \
                 in the forward pass; a segment must do the same each time"
            )
        };
        Param::uninitialized(id, refuse, param.lazy_device(), true, param.lazy_shape())
    }
}

struct LeafMaker {
    wanted: HashSet<ParamId>,
    leaves: HashMap<ParamId, DispatchTensor>,
}

impl ModuleMapper for LeafMaker {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.wanted.contains(&param.id) {
            return param;
        }
        let leaf = self.leaves.entry(param.id);
        let leaf = leaf.or_insert_with(|| leaf_of(&param)).clone();
        Param::initialized(param.id, Tensor::from_dispatch(leaf))
    }
}

fn leaf_of<const D: usize>(param: &Param<Tensor<D>>) -> DispatchTensor {
    leaf(param.val().into_dispatch())
}
