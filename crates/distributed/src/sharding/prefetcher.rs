//! Parameters gathered just before a pass uses them and dropped right after (ZeRO 3).
//!
//! Before a segment computes, the shards of its parameters are gathered; after it they are dropped, and gathered
//! again when the backward pass recomputes the segment ([`everburn::nn::with_parameters_from`](everburn_nn::with_parameters_from)). All ranks gather
//! the same chunks in the same order, registration order forward and its reverse backward, whatever their models
//! ask for: a pass gathers every chunk up to the one it asks for, and one more that travels while the model
//! computes. At the end of the pass it gathers the rest, because other ranks need it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::sync::lock;

use super::gather::Link;
use super::pending_parameters::GatherContext;
use crate::error::DdpError;

/// How many chunks are gathered ahead of what has been asked for.
const AHEAD: usize = 1;

/// The half of a pass that asks for a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Half {
    Forward,
    Backward,
}

/// How often a pass uses each parameter, as recorded in the first one. Until then a pass keeps everything it
/// has gathered.
#[derive(Debug, Default)]
pub(crate) struct AccessTrace {
    recorded: bool,
    uses: HashMap<(Half, usize), usize>,
}

/// How long a gathered parameter is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// The pass does not use it.
    No,
    UntilTaken,
    /// It is used again, or the trace is not recorded yet.
    UntilTheEnd,
}

impl AccessTrace {
    fn keep(&self, half: Half, number: usize) -> Keep {
        match self.uses.get(&(half, number)) {
            _ if !self.recorded => Keep::UntilTheEnd,
            None => Keep::No,
            Some(1) => Keep::UntilTaken,
            Some(_) => Keep::UntilTheEnd,
        }
    }
}

/// Gathers the parameters of one pass ahead of their use.
pub(crate) struct Prefetcher {
    context: Arc<GatherContext>,
    /// By chunk: this rank's shards.
    shards: Mutex<Vec<Vec<Tensor<1>>>>,
    /// The backward pass gathers the parameters again.
    twice: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many chunks are wanted by now and how many are gathered, over both halves of the pass.
    wanted: usize,
    gathered: usize,
    ended: bool,
    failed: Option<DdpError>,
    held: HashMap<(Half, usize), TensorData>,
    asked: HashMap<(Half, usize), usize>,
    taken: HashSet<(Half, usize)>,
}

impl Prefetcher {
    pub(crate) fn new(
        context: Arc<GatherContext>,
        shards: Vec<Vec<Tensor<1>>>,
        twice: bool,
    ) -> Self {
        Self {
            context,
            shards: Mutex::new(shards),
            twice,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// How many chunks the pass gathers.
    fn len(&self) -> usize {
        self.context.chunks.len() * if self.twice { 2 } else { 1 }
    }

    /// The chunk gathered at `position`.
    fn at(&self, position: usize) -> (Half, usize) {
        let chunks = self.context.chunks.len();
        match position < chunks {
            true => (Half::Forward, position),
            false => (Half::Backward, 2 * chunks - 1 - position),
        }
    }

    fn position(&self, half: Half, chunk: usize) -> usize {
        match half {
            Half::Forward => chunk,
            Half::Backward => 2 * self.context.chunks.len() - 1 - chunk,
        }
    }

    /// How long the parameter `number` is kept after it is gathered.
    fn keep(&self, half: Half, number: usize) -> Keep {
        match self.twice {
            true => lock(&self.context.access_trace).keep(half, number),
            // It is in the graph until the backward pass is over.
            false => Keep::UntilTheEnd,
        }
    }

    /// Gathers as the pass asks, on its own thread, until all chunks are gathered. It waits for its own process's pass
    /// without a deadline: other ranks that wait for this one have deadlines, and an abandoned pass ends the loop.
    pub(crate) fn run(&self, link: &Link) {
        for position in 0..self.len() {
            let (half, chunk) = self.at(position);
            let mut state = lock(&self.state);
            while !state.ended && position >= state.wanted + AHEAD {
                state = match self.changed.wait(state) {
                    Ok(state) => state,
                    Err(poisoned) => poisoned.into_inner(),
                };
            }
            drop(state);
            let shards = lock(&self.shards)[chunk].clone();
            let gathered = link.gather(chunk, shards);
            let failed = gathered.is_err();
            let mut state = lock(&self.state);
            match gathered {
                Err(error) => {
                    state.failed.get_or_insert(error);
                }
                Ok(_) if state.ended => {}
                Ok(gathered) => {
                    for number in &self.context.chunks[chunk].numbers {
                        if self.keep(half, *number) != Keep::No {
                            let parameter = self.context.full_parameter(&gathered, *number, true);
                            state.held.insert((half, *number), parameter);
                        }
                    }
                }
            }
            state.gathered = position + 1;
            drop(state);
            self.changed.notify_all();
            if failed {
                return;
            }
        }
    }

    /// Stops gathering because of `error`, and wakes waiting threads with it.
    pub(crate) fn fail(&self, error: DdpError) {
        lock(&self.state).failed.get_or_insert(error);
        self.changed.notify_all();
    }

    /// The full parameter `number`; waits until it is gathered.
    ///
    /// # Errors
    /// If it cannot be gathered.
    pub(crate) fn take(&self, half: Half, number: usize) -> Result<TensorData, DdpError> {
        let start = Instant::now();
        // A pass that gathers once keeps its parameters in the graph.
        let half = if self.twice { half } else { Half::Forward };
        let position = self.position(half, self.context.chunk_of[number]);
        let timeout = self.context.timeout;
        let mut state = lock(&self.state);
        state.wanted = state.wanted.max(position + 1);
        self.changed.notify_all();
        let waits = |state: &mut State| {
            state.gathered <= position && state.failed.is_none() && !state.ended
        };
        let waited = self
            .changed
            .wait_timeout_while(state, timeout.duration(), waits);
        state = match waited {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        self.context.add_waited(start.elapsed());
        *state.asked.entry((half, number)).or_default() += 1;
        let found = match self.keep(half, number) {
            Keep::UntilTheEnd => state.held.get(&(half, number)).cloned(),
            Keep::UntilTaken | Keep::No => state.held.remove(&(half, number)),
        };
        if found.is_some() {
            state.taken.insert((half, number));
        }
        found.ok_or_else(
            || match (&state.failed, state.taken.contains(&(half, number))) {
                (Some(error), _) => error.clone(),
                (None, true) => self.refuse(number, "is used more often than in the first step"),
                _ if state.gathered > position => {
                    self.refuse(number, "is used, but was not in the first step")
                }
                _ => {
                    let path = &self.context.parameters[number].path;
                    let what = format!("the parameter `{path}`");
                    DdpError::Gather(timeout.is_over(&what))
                }
            },
        )
    }

    fn refuse(&self, number: usize, what: &str) -> DdpError {
        let path = &self.context.parameters[number].path;
        DdpError::Gather(format!(
            "`{path}` {what}, and has been dropped; `training.ddp.shard = parameters` is for models that use the same \
             parameters in each step: use `training.ddp.shard = gradients`"
        ))
    }

    /// Ends the pass: chunks not gathered yet are gathered for the other ranks only.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        state.held.clear();
        let asked = std::mem::take(&mut state.asked);
        drop(state);
        self.changed.notify_all();
        let mut access_trace = lock(&self.context.access_trace);
        // A rank without samples uses no parameter: it records nothing.
        if !access_trace.recorded && !asked.is_empty() {
            access_trace.recorded = true;
            access_trace.uses = asked;
            self.context.gathered.reset_peak();
        }
    }
}
