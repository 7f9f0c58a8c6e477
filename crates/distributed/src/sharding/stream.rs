//! Parameters that are there for as long as a pass computes with them.
//!
//! Before a block computes, the slices of its parameters are gathered; behind it they are forgotten, and
//! gathered again when the backward pass recomputes the block ([`everburn_nn::with_parameters_from`]). All
//! ranks gather the same chunks in the same order, that of registration forward and the reverse backward,
//! whatever they ask for: a pass gathers what it is asked for and all before it, and one chunk more, so that
//! it travels while the model computes; what is left at its end too, because other ranks need it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use burn::prelude::*;
use burn::tensor::TensorData;

use super::gather::Link;
use super::whole::Common;
use crate::error::DdpError;
use crate::reducer::lock;

/// How many chunks are gathered ahead of what has been asked for.
const AHEAD: usize = 1;

/// In which half of a pass a parameter is asked for.
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

/// What becomes of a parameter that has been gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Nobody will ask.
    No,
    UntilTaken,
    /// It will be asked for again, or nobody knows.
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

/// The parameters of one pass.
pub(crate) struct Stream {
    common: Arc<Common>,
    /// By chunk: this rank's slices.
    slices: Mutex<Vec<Vec<Tensor<1>>>>,
    /// The backward pass gathers again what the forward pass has.
    twice: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many chunks are wanted by now, and how many were gathered, both halves of the pass together.
    wanted: usize,
    gathered: usize,
    ended: bool,
    failed: Option<DdpError>,
    held: HashMap<(Half, usize), TensorData>,
    asked: HashMap<(Half, usize), usize>,
    taken: HashSet<(Half, usize)>,
}

impl Stream {
    pub(crate) fn new(common: Arc<Common>, slices: Vec<Vec<Tensor<1>>>, twice: bool) -> Self {
        Self {
            common,
            slices: Mutex::new(slices),
            twice,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// How many chunks the pass gathers.
    fn len(&self) -> usize {
        self.common.chunks.len() * if self.twice { 2 } else { 1 }
    }

    /// What is gathered at `position`.
    fn at(&self, position: usize) -> (Half, usize) {
        let chunks = self.common.chunks.len();
        match position < chunks {
            true => (Half::Forward, position),
            false => (Half::Backward, 2 * chunks - 1 - position),
        }
    }

    fn position(&self, half: Half, chunk: usize) -> usize {
        match half {
            Half::Forward => chunk,
            Half::Backward => 2 * self.common.chunks.len() - 1 - chunk,
        }
    }

    /// What becomes of the parameter `number` when it has been gathered.
    fn keep(&self, half: Half, number: usize) -> Keep {
        match self.twice {
            true => lock(&self.common.access_trace).keep(half, number),
            // It is in the graph until the backward pass is over.
            false => Keep::UntilTheEnd,
        }
    }

    /// Gathers as the pass asks, on a thread of its own, to the end. It waits for the pass of its own process as long as
    /// that computes, as it waits for a pass to begin: what other ranks wait for has their deadlines, and a pass that is
    /// given up ends it.
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
            let slices = lock(&self.slices)[chunk].clone();
            let gathered = link.gather(chunk, slices);
            let failed = gathered.is_err();
            let mut state = lock(&self.state);
            match gathered {
                Err(error) => {
                    state.failed.get_or_insert(error);
                }
                Ok(_) if state.ended => {}
                Ok(gathered) => {
                    for number in &self.common.chunks[chunk].numbers {
                        if self.keep(half, *number) != Keep::No {
                            let whole = self.common.whole(&gathered, *number, true);
                            state.held.insert((half, *number), whole);
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

    /// Nothing more is gathered, for the reason of `error`: who waits is told.
    pub(crate) fn fail(&self, error: DdpError) {
        lock(&self.state).failed.get_or_insert(error);
        self.changed.notify_all();
    }

    /// The numbers of the parameter `number`; waits for them.
    ///
    /// # Errors
    /// Why they do not come.
    pub(crate) fn take(&self, half: Half, number: usize) -> Result<TensorData, DdpError> {
        let start = Instant::now();
        // A pass that gathers once has what it needs backward in its graph.
        let half = if self.twice { half } else { Half::Forward };
        let position = self.position(half, self.common.places[number]);
        let patience = self.common.patience;
        let mut state = lock(&self.state);
        state.wanted = state.wanted.max(position + 1);
        self.changed.notify_all();
        let waits = |state: &mut State| {
            state.gathered <= position && state.failed.is_none() && !state.ended
        };
        let waited = self
            .changed
            .wait_timeout_while(state, patience.duration(), waits);
        state = match waited {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        self.common.add_waited(start.elapsed());
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
                (None, true) => {
                    self.refuse(number, "is asked for once more than in the first step")
                }
                _ if state.gathered > position => {
                    self.refuse(number, "is asked for, and was not in the first step")
                }
                _ => {
                    let path = &self.common.parameters[number].path;
                    let what = format!("the parameter `{path}`");
                    DdpError::Gather(patience.is_over(&what))
                }
            },
        )
    }

    fn refuse(&self, number: usize, what: &str) -> DdpError {
        let path = &self.common.parameters[number].path;
        DdpError::Gather(format!(
            "`{path}` {what}, and is gone by now; --shard parameters is for models that use the same \
             parameters in each step: use --shard gradients"
        ))
    }

    /// Nothing more is asked for: what is left goes to the other ranks only.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        state.held.clear();
        let asked = std::mem::take(&mut state.asked);
        drop(state);
        self.changed.notify_all();
        let mut access_trace = lock(&self.common.access_trace);
        // A rank without samples asks for nothing, which shows nothing.
        if !access_trace.recorded && !asked.is_empty() {
            access_trace.recorded = true;
            access_trace.uses = asked;
            self.common.gathered.reset_peak();
        }
    }
}
