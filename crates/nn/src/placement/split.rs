//! A placement checked against a model: what is moved, and when.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, ParamId};
use burn::prelude::*;

use crate::blocks::{AnyActivation, Blocks, InBlocks, ParameterPath, parameter_identities, typed};
use crate::recompute::{Randomness, checkpointed_run};
use crate::walking::TiedParameters;

/// How a model is on several devices: made by [`Placement::split`](super::Placement::split), and
/// good for every copy of the model, with or without autodiff.
///
/// [`DeviceSplit::place`] moves the parameters, [`DeviceSplit::forward`] runs the blocks and moves what
/// passes between two parts. The gradients go back the same way by the autodiff graph. Parameter paths
/// and records stay those of the model: a checkpoint loads into any split, and into one device.
///
/// A parameter that blocks on several devices use (tied weights) lives with the first of them. The
/// forward pass brings it to the others, and their gradients go back to it and are added up, by
/// the graph. A tensor of the model that is neither a parameter nor a running statistic is not
/// moved: a block that has one moves it to the device of its input.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::{DeviceSplit, InBlocks, Placement, PlacementError};
///
/// /// A model over two devices, with about half of the parameters each.
/// fn halves<M: InBlocks>(model: M, devices: [Device; 2]) -> Result<(DeviceSplit, M), PlacementError> {
///     let split = Placement::even(&model, &devices)?.split(&model)?;
///     let model = split.place(model);
///     Ok((split, model))
/// }
/// ```
///
/// [`Placement`](super::Placement) has one with its forward pass.
#[derive(Debug, Clone)]
pub struct DeviceSplit {
    parts: Vec<Part>,
    /// Parameters by path: the part that each lives with.
    homes: HashMap<String, usize>,
    /// How many blocks the backward pass computes again together.
    segment: Option<NonZeroUsize>,
}

/// Consecutive blocks on one device: a part of a [`DeviceSplit`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::DeviceSplit;
///
/// fn show(split: &DeviceSplit) {
///     for part in split.parts() {
///         println!("{}: {}", part.names.join(", "), part.blocks.len());
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Part {
    /// The numbers of the blocks.
    pub blocks: Range<usize>,
    /// Their names.
    pub names: Vec<String>,
    /// Where they are.
    pub device: Device,
    /// Paths of the parameters that they use and that live with another part.
    pub borrowed: Vec<String>,
}

/// Something that the forward pass brings from one device to another, and whose gradient the
/// backward pass brings back.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::DeviceSplit;
///
/// fn show(split: &DeviceSplit) {
///     for step in split.moves() {
///         println!("before {}: {:?} to {:?}", step.before, step.what, step.to);
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// What it is.
    pub what: Moved,
    /// The block before which it is moved.
    pub before: String,
    /// The device it comes from.
    pub from: Device,
    /// The device it goes to.
    pub to: Device,
}

/// What a [`Move`] moves.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::{DeviceSplit, Moved};
///
/// /// The parameters that several devices use.
/// fn shared(split: &DeviceSplit) -> usize {
///     let moves = split.moves();
///     moves.iter().filter(|step| matches!(step.what, Moved::Parameter(_))).count()
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// The output of the block before.
    Activation,
    /// The tied parameter of this path.
    Parameter(String),
}

impl DeviceSplit {
    /// `devices` are those of the blocks, each with the number of the rule that it comes from: a
    /// part ends where that changes.
    pub(super) fn new<M: Module, I, O>(
        model: &M,
        blocks: &Blocks<M, I, O>,
        devices: Vec<(usize, Device)>,
    ) -> Self {
        let names = blocks.names();
        let mut parts: Vec<Part> = Vec::new();
        let mut part_of = Vec::with_capacity(devices.len());
        let mut rule_before = None;
        for (block, (rule, device)) in devices.into_iter().enumerate() {
            if rule_before != Some(rule) {
                parts.push(Part {
                    blocks: block..block,
                    names: Vec::new(),
                    device,
                    borrowed: Vec::new(),
                });
            }
            rule_before = Some(rule);
            let part = parts.len() - 1;
            parts[part].blocks.end = block + 1;
            parts[part].names.push(names[block].to_string());
            part_of.push(part);
        }
        let mut homes = HashMap::new();
        let mut homes_by_id = HashMap::new();
        for (ParameterPath { path, .. }, id) in parameter_identities(model) {
            let users = blocks.users_of(&path).into_iter().map(|user| part_of[user]);
            let users = users.collect::<Vec<_>>();
            let Some(first) = users.first() else { continue };
            // One that the model holds in two places is one parameter.
            let home = *homes_by_id.entry(id).or_insert(*first);
            for user in users {
                let borrowed = &mut parts[user].borrowed;
                if user != home && !borrowed.contains(&path) {
                    borrowed.push(path.clone());
                }
            }
            homes.insert(path, home);
        }
        Self {
            parts,
            homes,
            segment: None,
        }
    }

    /// The parts, in the order in which they are run.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What a forward pass moves, in order; the input is not among it.
    pub fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let mut add = |what: Moved, from: &Device| {
                moves.push(Move {
                    what,
                    before: part.names[0].clone(),
                    from: from.clone(),
                    to: part.device.clone(),
                });
            };
            for path in &part.borrowed {
                let home = &self.parts[self.homes[path]];
                add(Moved::Parameter(path.clone()), &home.device);
            }
            if number > 0 {
                add(Moved::Activation, &self.parts[number - 1].device);
            }
        }
        moves
    }

    /// Moves each parameter and running statistic of `model` to its device. Each keeps its id and
    /// whether it is trained, and those that have no value yet get theirs there. Tied parameters stay
    /// tied.
    ///
    /// As with Burn's `fork`, what comes out is trained on its own, and clones share their running
    /// statistics.
    #[must_use]
    pub fn place<M: Module>(&self, model: M) -> M {
        model.map(&mut Placing {
            split: self,
            path: Vec::new(),
            placed: TiedParameters::default(),
        })
    }

    /// The same split, of which the backward pass computes the blocks again, `every` of them together, and
    /// does not find their activations in memory ([`checkpointed_run`]). A segment ends with its part.
    #[must_use]
    pub fn recomputing(self, every: Option<NonZeroUsize>) -> Self {
        Self {
            segment: every,
            ..self
        }
    }

    /// The output of a model that [`DeviceSplit::place`] has placed, on the last device.
    ///
    /// # Panics
    /// Panics if the model has other blocks than the one that the split was made for.
    pub fn forward<M: InBlocks + 'static>(&self, model: &M, input: M::Input) -> M::Output {
        let blocks = model.blocks();
        let planned = self.parts.last().map_or(0, |part| part.blocks.end);
        assert_eq!(
            blocks.len(),
            planned,
            "a split is for models of as many blocks as the one it was made for"
        );
        let mut activation: Box<dyn AnyActivation> = Box::new(input);
        for part in &self.parts {
            activation = activation.to_device(&part.device);
            // Only now, so that a parameter which is made when it is first asked for is not asked
            // for before the blocks of its own part have run.
            let lent = part.lend(model);
            let model = lent.as_ref().unwrap_or(model);
            let range = part.blocks.clone();
            activation = match self.segment {
                None => blocks.run(model, range, activation),
                Some(every) => {
                    let drawn = Randomness::Replayed;
                    checkpointed_run(&blocks, model, range, activation, every, drawn)
                }
            };
        }
        typed(activation)
    }
}

impl Part {
    /// The copy of `model` that this part's blocks are run with, if they use parameters of other
    /// parts.
    pub(super) fn lend<M: Module>(&self, model: &M) -> Option<M> {
        (!self.borrowed.is_empty()).then(|| {
            model.clone().map(&mut Lending {
                part: self,
                path: Vec::new(),
            })
        })
    }
}

/// Moves parameters to their homes.
struct Placing<'a> {
    split: &'a DeviceSplit,
    path: Vec<String>,
    /// Each is moved once.
    placed: TiedParameters,
}

impl Placing<'_> {
    fn place<P: Module + 'static>(&mut self, id: ParamId, param: P) -> P {
        if let Some(placed) = self.placed.get(id) {
            return placed;
        }
        let placed = match self.split.homes.get(&self.path.join(".")) {
            Some(home) => param.fork(&self.split.parts[*home].device),
            None => param,
        };
        self.placed.keep(id, placed)
    }
}

impl ModuleMapper for Placing<'_> {
    crate::walking! { map each self, param => self.place(param.id, param) }

    crate::walking! { path }
}

/// Brings parameters to a part that they do not live with; the graph takes their gradients home.
struct Lending<'a> {
    part: &'a Part,
    path: Vec<String>,
}

impl Lending<'_> {
    fn is_borrowed(&self) -> bool {
        self.part.borrowed.contains(&self.path.join("."))
    }
}

impl ModuleMapper for Lending<'_> {
    crate::walking! { map each self, param => match self.is_borrowed() {
        true => param.map(|value| value.to_device(&self.part.device)),
        false => param,
    } }

    crate::walking! { path }
}
