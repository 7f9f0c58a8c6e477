//! The memory as loom sees it, in place of `memory.rs`: the same interface over loom's atomic
//! numbers, with a watch on every byte of the data part and a model of the futex.
//!
//! loom runs a test with every interleaving of its threads and every value that each load may
//! return under the memory model. Two accesses to one byte that are not ordered are an error, and so
//! is a thread that nobody wakes.

#![expect(unsafe_code, reason = "as the memory that it models")]

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};

pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::layout::Layout;

/// Memory of a segment, modelled.
pub(super) struct Memory {
    positions: BTreeMap<usize, AtomicU64>,
    words: BTreeMap<usize, AtomicU32>,
    data_start: usize,
    data: Box<[std::cell::UnsafeCell<u8>]>,
    /// One for each byte of `data`; told of each access.
    watches: Vec<UnsafeCell<()>>,
    /// The kernel's lock on its list of sleepers.
    sleepers: Mutex<()>,
    woken: Condvar,
}

// SAFETY: `data` is reached only through `view` and `view_mut`, which tell loom of each access: it
// stops a test in which two of them race.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn on_heap(layout: &Layout) -> Self {
        let ranks = 0..layout.ranks;
        let pairs = ranks
            .clone()
            .flat_map(|a| ranks.clone().map(move |b| (a, b)));
        let rings: Vec<_> = pairs.filter_map(|(a, b)| layout.ring(a, b)).collect();
        let positions = rings.iter().flat_map(|ring| [ring.written, ring.consumed]);
        let claims = rings
            .iter()
            .flat_map(|ring| [ring.sender_claim, ring.receiver_claim]);
        let doorbells = ranks.filter_map(|rank| layout.doorbell(rank));
        let bytes = rings.len() * layout.capacity;
        Self {
            positions: positions.map(|place| (place, AtomicU64::new(0))).collect(),
            words: claims
                .chain(doorbells)
                .map(|place| (place, AtomicU32::new(0)))
                .collect(),
            data_start: layout.data_start,
            data: (0..bytes).map(|_| std::cell::UnsafeCell::new(0)).collect(),
            watches: (0..bytes).map(|_| UnsafeCell::new(())).collect(),
            sleepers: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    pub(super) fn position(&self, place: usize) -> &AtomicU64 {
        &self.positions[&place]
    }

    pub(super) fn word(&self, place: usize) -> &AtomicU32 {
        &self.words[&place]
    }

    /// # Safety
    /// As in `memory.rs`; loom checks it.
    pub(super) unsafe fn view(&self, place: usize, bytes: usize) -> &[u8] {
        self.viewed(place, bytes);
        let data = &self.data[self.range(place, bytes)];
        // SAFETY: our slice; `UnsafeCell<u8>` is laid out as `u8`.
        unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), bytes) }
    }

    /// # Safety
    /// As in `memory.rs`; loom checks it.
    #[expect(clippy::mut_from_ref, reason = "as in `memory.rs`")]
    pub(super) unsafe fn view_mut(&self, place: usize, bytes: usize) -> &mut [u8] {
        for watch in &self.watches[self.range(place, bytes)] {
            watch.with_mut(|_| ());
        }
        let data = &self.data[self.range(place, bytes)];
        // SAFETY: our slice; an `UnsafeCell` may be written through a shared reference.
        unsafe { std::slice::from_raw_parts_mut(data.as_ptr().cast::<u8>().cast_mut(), bytes) }
    }

    fn range(&self, place: usize, bytes: usize) -> std::ops::Range<usize> {
        place - self.data_start..place - self.data_start + bytes
    }

    /// Reads these bytes, as loom sees it.
    pub(super) fn viewed(&self, place: usize, bytes: usize) {
        for watch in &self.watches[self.range(place, bytes)] {
            watch.with(|_| ());
        }
    }

    pub(super) fn populate(&self, _place: usize, _bytes: usize) {}

    /// Without end, so that a wake-up that is lost is a deadlock, which loom reports. As in the
    /// kernel, the word is looked at under the lock that a waker takes after changing it.
    pub(super) fn sleep_while(&self, place: usize, value: u32, _at_most: Duration) {
        let guard = self.sleepers.lock().expect("a model has no panics");
        if self.word(place).load(std::sync::atomic::Ordering::Relaxed) == value {
            drop(self.woken.wait(guard).expect("a model has no panics"));
        }
    }

    pub(super) fn wake(&self, _place: usize) {
        let _guard = self.sleepers.lock().expect("a model has no panics");
        self.woken.notify_all();
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Memory(modelled)")
    }
}
