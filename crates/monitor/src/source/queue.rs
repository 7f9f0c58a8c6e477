//! Updates that wait to be shown, bounded in number and bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use everburn_record::sync::lock;

use crate::update::Update;

/// How many updates may wait.
const MOST_WAITING: usize = 4096;

/// How many bytes of frames may wait, unless one alone has more.
const MOST_BYTES: usize = 4 << 20;

/// The monitor has ended: there is nothing to be sent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    taken: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Update, usize)>,
    bytes: usize,
    closed: bool,
}

impl State {
    fn has_room(&self, bytes: usize) -> bool {
        let fits = self.waiting.len() < MOST_WAITING && self.bytes + bytes <= MOST_BYTES;
        fits || self.waiting.is_empty()
    }
}

/// The end that is filled.
#[derive(Debug)]
pub(super) struct Sender(Arc<Shared>);

/// The end that is emptied. When it is dropped, the other one is closed.
#[derive(Debug)]
pub(super) struct Receiver(Arc<Shared>);

pub(super) fn queue() -> (Sender, Receiver) {
    let shared = Arc::<Shared>::default();
    (Sender(shared.clone()), Receiver(shared))
}

impl Sender {
    /// Appends an update whose frame has `bytes`; waits for room until the other end has taken some or is
    /// dropped.
    pub(super) fn send(&self, update: Update, bytes: usize) -> Result<(), Closed> {
        let mut state = lock(&self.0.state);
        while !state.closed && !state.has_room(bytes) {
            let waited = self.0.taken.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Err(Closed);
        }
        state.bytes += bytes;
        state.waiting.push_back((update, bytes));
        Ok(())
    }
}

impl Receiver {
    /// All that waits.
    pub(super) fn take(&self) -> Vec<Update> {
        let mut state = lock(&self.0.state);
        state.bytes = 0;
        let taken = std::mem::take(&mut state.waiting);
        drop(state);
        self.0.taken.notify_all();
        taken.into_iter().map(|(update, _)| update).collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        lock(&self.0.state).closed = true;
        self.0.taken.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_in_number_and_bytes_and_one_always_fits() {
        let mut state = State::default();
        assert!(state.has_room(MOST_BYTES + 1));
        state.waiting.push_back((Update::Reset, 1));
        state.bytes = 1;
        assert!(state.has_room(MOST_BYTES - 1));
        assert!(!state.has_room(MOST_BYTES));
        state.waiting.resize(MOST_WAITING, (Update::Reset, 0));
        assert!(!state.has_room(0));
    }

    #[test]
    fn a_full_queue_goes_on_when_it_is_emptied_and_ends_when_nobody_reads() {
        let (sender, receiver) = queue();
        let sending = std::thread::spawn(move || {
            let mut sent = 0;
            while sender.send(Update::Running(true), MOST_BYTES).is_ok() {
                sent += 1;
            }
            sent
        });
        let mut taken = 0;
        while taken < 5 {
            taken += receiver.take().len();
            std::thread::yield_now();
        }
        drop(receiver);
        assert!(sending.join().unwrap() >= taken);
    }
}
