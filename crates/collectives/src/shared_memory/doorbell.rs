//! How a rank sleeps until another has moved one of its rings, without losing a wake-up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::memory::{AtomicU32, Memory, fence};

/// The bit of the word that says that somebody holds a ticket and may sleep.
const LISTENING: u32 = 1;

/// Longer than anybody sleeps; keeps the arithmetic of clocks from overflowing.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// On which one rank sleeps and which all others ring.
///
/// To sleep: take a [`Doorbell::ticket`], look once more whether there is something to do, and if
/// not, [`Doorbell::wait`]. To wake: move the ring (or whatever the other looks at), then
/// [`Doorbell::ring`]. A ring after the ticket ends the wait, even if it came before the wait.
#[derive(Debug, Clone)]
pub(crate) struct Doorbell {
    memory: Arc<Memory>,
    place: usize,
}

/// The state of a doorbell when somebody decided to look once more and then sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u32);

impl Doorbell {
    pub(super) fn new(memory: Arc<Memory>, place: usize) -> Self {
        Self { memory, place }
    }

    fn word(&self) -> &AtomicU32 {
        self.memory.word(self.place)
    }

    /// Wakes who sleeps here. If nobody has taken a ticket since the last ring, this is a fence and
    /// a load, no system call.
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `ticket`: either we see its bit, or it sees what we have done.
        fence(Ordering::SeqCst);
        let seen = self.word().load(Ordering::Relaxed);
        if seen & LISTENING == 0 {
            return;
        }
        // Takes the bit away and adds one to the count. If the word is another by now, another
        // rank has rung after we looked, and who then takes a new ticket sees what we have done.
        let rung = seen.wrapping_add(1);
        let swapped = self
            .word()
            .compare_exchange(seen, rung, Ordering::AcqRel, Ordering::Relaxed);
        if swapped.is_ok() {
            self.memory.wake(self.place);
        }
    }

    /// To be taken when there seems to be nothing to do and before looking for the last time.
    ///
    /// A ticket that is not waited for does no harm, but the next ring is then a system call: spin
    /// without tickets.
    pub(crate) fn ticket(&self) -> Ticket {
        let before = self.word().fetch_or(LISTENING, Ordering::AcqRel);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        Ticket(before | LISTENING)
    }

    /// Sleeps until there is a ring that came after the ticket, and says whether there was one
    /// within `at_most`.
    pub(crate) fn wait(&self, ticket: Ticket, at_most: Duration) -> bool {
        let end = Instant::now() + at_most.min(LONGEST);
        loop {
            if self.word().load(Ordering::Acquire) != ticket.0 {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.memory.sleep_while(self.place, ticket.0, left);
        }
    }
}
