//! Cutting the linear layers of a whole model.
//!
//! As in `crate::conversion`, layers are reached through `Module::visit` and `Module::map`, and what
//! they are to do is in a variable of this thread meanwhile. First a visit finds all layers; when
//! the rules fit them, and all ranks have found the same, a map cuts them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn;
use burn::prelude::*;

use super::agreement::demand_same;
use super::all_reduce::MOST_RANKS;
use super::group::TensorGroup;
use super::rules::{TensorParallelError, TensorRule, TensorShard};
use super::shard::Membership;
use crate::thread_value::with_value;

thread_local! {
    static WALK: RefCell<Option<Walk>> = const { RefCell::new(None) };
}

/// What a walk through a model finds, and what it is to change.
#[derive(Default)]
struct Walk {
    path: Vec<String>,
    found: Vec<Site>,
    /// What becomes of the layers at these paths.
    cuts: HashMap<String, Membership>,
    /// Whether all layers become whole ones.
    forgets: bool,
}

/// A linear layer of a model.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) path: String,
    /// The shape of its weight, on this rank.
    pub(crate) shape: [usize; 2],
    pub(crate) has_bias: bool,
    pub(crate) membership: Option<Membership>,
}

/// Cuts the [`Linear`](crate::Linear) layers of `model` over the ranks of `group` as `rules` say: each keeps the part
/// of its weight that is this rank's, and exchanges with the others from now on.
///
/// All ranks call it with the same whole model (the same values too) and the same rules, before
/// training. Paths of parameters stay, shapes do not; [`crate::parameter_shards`] returns which
/// parameters are parts of what, so that a checkpoint of the whole can be put together. With a group
/// of one the rules are checked and nothing is changed.
///
/// Each forward pass through a row shard is then a collective operation, with or without autodiff,
/// and each backward pass through a column shard: all ranks run the same layers in the same order,
/// with equal inputs. If a collective fails, the pass continues with this rank's own numbers, and the
/// group reports it to the step ([`TensorGroup`]), for a pass cannot return an error.
///
/// # Errors
/// [`TensorParallelError`], the same kind on all ranks where the models differ or a collective fails.
pub fn tensor_parallel<M: Module>(
    model: M,
    rules: &[TensorRule],
    group: &Arc<dyn TensorGroup>,
) -> Result<M, TensorParallelError> {
    let plan = plan(&sites(&model), rules, group);
    if group.world_size() > 1 {
        // Also where this rank has found an error: the others wait for it.
        demand_same(&model, &plan, group)?;
    }
    let cuts = plan?;
    if group.world_size() == 1 {
        return Ok(model);
    }
    Ok(walk(
        Walk {
            cuts,
            ..Walk::default()
        },
        || model.map(&mut Paths),
    )
    .0)
}

/// The model whose layers compute by themselves again, once the parameters that were cut
/// ([`crate::parameter_shards`]) have been replaced by whole ones; without these, a layer has a part of
/// its features only.
pub fn forget_shards<M: Module>(model: M) -> M {
    let walking = Walk {
        forgets: true,
        ..Walk::default()
    };
    walk(walking, || model.map(&mut Paths)).0
}

/// All linear layers of a model, in the order of its fields.
pub(crate) fn sites<M: Module>(model: &M) -> Vec<Site> {
    walk(Walk::default(), || model.visit(&mut Paths)).1
}

fn walk<R>(walk: Walk, work: impl FnOnce() -> R) -> (R, Vec<Site>) {
    with_value(&WALK, walk, || {
        let result = work();
        let found =
            WALK.with_borrow_mut(|walk| walk.as_mut().map(|walk| std::mem::take(&mut walk.found)));
        (result, found.unwrap_or_default())
    })
}

/// Tells a walk of a layer that is being visited.
pub(crate) fn visited(linear: &nn::Linear, membership: Option<&Membership>) {
    WALK.with_borrow_mut(|walk| {
        if let Some(walk) = walk {
            walk.found.push(Site {
                path: walk.path.join("."),
                shape: linear.weight.lazy_shape().dims(),
                has_bias: linear.bias.is_some(),
                membership: membership.cloned(),
            });
        }
    });
}

/// What a layer becomes while it is being mapped.
pub(crate) fn mapped(
    linear: nn::Linear,
    membership: Option<Membership>,
) -> (nn::Linear, Option<Membership>) {
    let (cut, forgets) = WALK.with_borrow_mut(|walk| match walk {
        None => (None, false),
        Some(walk) => (walk.cuts.remove(&walk.path.join(".")), walk.forgets),
    });
    match cut {
        None => (linear, membership.filter(|_| !forgets)),
        Some(cut) => (part_of(linear, &cut), Some(cut)),
    }
}

fn part_of(linear: nn::Linear, cut: &Membership) -> nn::Linear {
    let (dim, bias) = match cut.shard {
        TensorShard::Column => (1, linear.bias.map(|bias| part(bias, 0, cut))),
        TensorShard::Row => (0, linear.bias),
    };
    nn::Linear {
        weight: part(linear.weight, dim, cut),
        bias,
    }
}

/// This rank's part of a parameter along `dim`, in memory of its own.
fn part<const D: usize>(param: Param<Tensor<D>>, dim: usize, cut: &Membership) -> Param<Tensor<D>> {
    param.map(|whole| {
        let (requires_grad, device) = (whole.is_require_grad(), whole.device());
        let features = whole.dims()[dim] / cut.world_size();
        if features == 0 {
            // A stage of a pipeline holds layers of others without their values.
            return whole;
        }
        let first = cut.rank() * features;
        let part = whole
            .without_autodiff()
            .slice_dim(dim, first..first + features);
        let dtype = part.dtype();
        let part = Tensor::from_data(part.into_data(), (&device, dtype));
        match requires_grad {
            true => part.require_grad(),
            false => part,
        }
    })
}

/// Keeps the path of a walk. Changes nothing.
struct Paths;

fn enter(name: &str) {
    WALK.with_borrow_mut(|walk| {
        if let Some(walk) = walk {
            walk.path.push(name.to_owned());
        }
    });
}

fn exit() {
    WALK.with_borrow_mut(|walk| {
        if let Some(walk) = walk {
            walk.path.pop();
        }
    });
}

impl ModuleMapper for Paths {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        exit();
    }
}

impl ModuleVisitor for Paths {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        exit();
    }
}

/// What is to be cut, if all of it can be.
fn plan(
    sites: &[Site],
    rules: &[TensorRule],
    group: &Arc<dyn TensorGroup>,
) -> Result<HashMap<String, Membership>, TensorParallelError> {
    let ruled = ruled(sites, rules, group.world_size())?;
    let cuts = ruled.into_iter().map(|(layer, shard)| {
        let cut = Membership::new(shard, Arc::clone(group), layer as u32);
        (sites[layer].path.clone(), cut)
    });
    Ok(cuts.collect())
}

/// The numbers of the layers that are to be cut over `ranks`, and how.
pub(super) fn ruled(
    sites: &[Site],
    rules: &[TensorRule],
    ranks: usize,
) -> Result<Vec<(usize, TensorShard)>, TensorParallelError> {
    if ranks > MOST_RANKS {
        return Err(TensorParallelError::TooManyRanks {
            ranks,
            most: MOST_RANKS,
        });
    }
    let unmatched = |rule: &&TensorRule| !sites.iter().any(|site| rule.matches(&site.path));
    if let Some(rule) = rules.iter().find(unmatched) {
        let pattern = rule.pattern.clone();
        return Err(TensorParallelError::UnmatchedRule { pattern });
    }
    let mut cuts = Vec::new();
    for (layer, site) in sites.iter().enumerate() {
        if let Some(rule) = rule_for(site, rules)? {
            check(site, rule, ranks)?;
            cuts.push((layer, rule.shard));
        }
    }
    Ok(cuts)
}

fn rule_for<'a>(
    site: &Site,
    rules: &'a [TensorRule],
) -> Result<Option<&'a TensorRule>, TensorParallelError> {
    let mut matching = rules.iter().filter(|rule| rule.matches(&site.path));
    match (matching.next(), matching.next()) {
        (Some(first), Some(second)) => Err(TensorParallelError::TwoRules {
            path: site.path.clone(),
            first: first.pattern.clone(),
            second: second.pattern.clone(),
        }),
        (first, _) => Ok(first),
    }
}

fn check(site: &Site, rule: &TensorRule, ranks: usize) -> Result<(), TensorParallelError> {
    let path = site.path.clone();
    if site.membership.is_some() {
        return Err(TensorParallelError::CutBefore { path });
    }
    let (side, features) = match rule.shard {
        TensorShard::Column => ("output", site.shape[1]),
        TensorShard::Row => ("input", site.shape[0]),
    };
    let unit = rule.unit.max(1);
    if features.is_multiple_of(ranks * unit) {
        return Ok(());
    }
    Err(TensorParallelError::Indivisible {
        path,
        side,
        features,
        unit,
        ranks,
    })
}
