//! Changing all [`BatchNorm`](crate::BatchNorm)s of a module at once.
//!
//! A module tree can be walked by `Module::map` only, whose mappers see tensors and not the modules
//! that hold them, and have no way to hand anything to a module. So what is to be changed is in a
//! variable of this thread while `map` runs, where [`converted`] finds it. It never outlives the
//! call, a panic included.

use std::cell::RefCell;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper};

use crate::batch_norm::Membership;
use crate::group::{StatisticsGroup, SyncError};
use crate::thread_value::with_value;

thread_local! {
    static CONVERSION: RefCell<Option<Conversion>> = const { RefCell::new(None) };
}

enum Change {
    Attach(Arc<dyn StatisticsGroup>),
    LeaveSamplesOut,
    Detach,
    /// Nothing: counts attached ones.
    Count,
}

struct Conversion {
    change: Change,
    /// How many layers have been attached, or found to be: the number of the next.
    layers: u32,
    /// Whether a `BatchNorm` is being walked through.
    inside: bool,
}

/// Attaches `group` to every [`BatchNorm`](crate::BatchNorm) of `model`, at any depth, and
/// numbers them in the order of the fields. A group of one changes nothing.
///
/// All ranks must attach a group over the same ranks, before training. To synchronise a part of a
/// model only, convert that part.
///
/// See the [crate's example](crate).
///
/// # Errors
/// [`SyncError::PlainBatchNorm`] if the model has a batch norm of Burn's own type: it would silently
/// keep statistics of its own.
pub fn synchronize_batch_norms<M: Module>(
    model: M,
    group: Arc<dyn StatisticsGroup>,
) -> Result<M, SyncError> {
    let converted = convert(model, Change::Attach(group));
    match converted.plain {
        Some(path) => Err(SyncError::PlainBatchNorm { path }),
        None => Ok(converted.model),
    }
}

/// Detaches every [`BatchNorm`](crate::BatchNorm) of `model` from its group: each rank's
/// statistics are its own again.
#[must_use]
pub fn isolate_batch_norms<M: Module>(model: M) -> M {
    convert(model, Change::Detach).model
}

/// The model with which a rank that has no samples takes part in a step of the others.
///
/// Its [`BatchNorm`](crate::BatchNorm)s make the same exchanges as the others', but count
/// nothing: neither the input nor, on the way back, its gradients. Give it any input of the right
/// shape, run forward and backward, and throw the gradients away:
///
/// All ranks must run their backward passes through the same layers in the same order. Where the
/// others train a copy of the model that something has been added to, add it to this one too: in
/// `everburn::distributed`, `Synchronization::with_hooks_stand_in` is for that.
///
/// The statistics of the others enter the running statistics of `model` too, which clones share.
/// This works where a batch of zero rows does not: Burn's operations are not made for those.
#[must_use]
pub fn without_samples<M: Module>(model: M) -> M {
    convert(model, Change::LeaveSamplesOut).model
}

/// Whether a training step of `model` exchanges statistics with other ranks, so that a rank without
/// samples must take part: see [`without_samples`].
pub fn spans_ranks<M: Module>(model: &M) -> bool {
    convert(model.clone(), Change::Count).layers > 0
}

struct Converted<M> {
    model: M,
    layers: u32,
    /// The path of the first batch norm of Burn's own type.
    plain: Option<String>,
}

fn convert<M: Module>(model: M, change: Change) -> Converted<M> {
    let conversion = Conversion {
        change,
        layers: 0,
        inside: false,
    };
    with_value(&CONVERSION, conversion, || {
        let mut search = PlainSearch::default();
        let model = model.map(&mut search);
        let layers = |conversion: &Option<Conversion>| conversion.as_ref().map_or(0, |c| c.layers);
        Converted {
            model,
            layers: CONVERSION.with_borrow(layers),
            plain: search.found,
        }
    })
}

/// What a layer's membership becomes while it is being mapped.
pub(crate) fn converted(membership: Option<Membership>) -> Option<Membership> {
    CONVERSION.with_borrow_mut(|conversion| match conversion {
        None => membership,
        Some(conversion) => conversion.apply(membership),
    })
}

impl Conversion {
    fn apply(&mut self, membership: Option<Membership>) -> Option<Membership> {
        match &self.change {
            Change::Attach(group) => {
                let layer = self.layers;
                self.layers += 1;
                Some(Membership::new(Arc::clone(group), layer))
            }
            Change::LeaveSamplesOut => membership.map(Membership::without_samples),
            Change::Detach => None,
            Change::Count => {
                let spans = |membership: &Membership| membership.group.world_size() > 1;
                self.layers += u32::from(membership.as_ref().is_some_and(spans));
                membership
            }
        }
    }
}

/// Runs `map` on the module inside a `BatchNorm`, which is no batch norm on its own.
pub(crate) fn inside<R>(map: impl FnOnce() -> R) -> R {
    let mark = |inside| {
        CONVERSION.with_borrow_mut(|conversion| {
            if let Some(conversion) = conversion {
                conversion.inside = inside;
            }
        });
    };
    mark(true);
    let result = map();
    mark(false);
    result
}

/// Changes nothing; finds batch norms of Burn's own type by how their fields are announced.
#[derive(Default)]
struct PlainSearch {
    path: Vec<String>,
    found: Option<String>,
}

impl ModuleMapper for PlainSearch {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        let inside = CONVERSION.with_borrow(|conversion| {
            conversion
                .as_ref()
                .is_some_and(|conversion| conversion.inside)
        });
        if container_type == "Struct:BatchNorm" && !inside && self.found.is_none() {
            self.found = Some(self.path.join("."));
        }
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}
