//! Buffers that are used again.
//!
//! What a layer yields is the same size in each step, and as large as a cache. A new vector of it
//! is zeros, written on one thread while the others wait, only to be overwritten: a tenth of a step
//! of the smaller nets. So a tensor's memory comes back when the last tensor on it is gone, and the next
//! of its size gets it as it is.

use std::sync::{Mutex, PoisonError};

use burn::backend::{AllocationProperty, Bytes};

/// Shorter vectors are zeroed in less time than it takes to look for a used one.
const SHORT: usize = 1 << 12;

/// What may be here beside the most that was ever lent at a time: 64 MiB.
const SPARE: usize = 16 << 20;

/// All buffers that were not lent anew since they came back.
static UNUSED: Mutex<Unused> = Mutex::new(Unused::new());

struct Unused {
    /// The one that came first in front.
    buffers: Vec<Vec<f32>>,
    /// How many values are here, how many are lent, and the most that ever were.
    values: usize,
    lent: usize,
    most_lent: usize,
}

impl Unused {
    const fn new() -> Self {
        Self {
            buffers: Vec::new(),
            values: 0,
            lent: 0,
            most_lent: 0,
        }
    }

    fn take(&mut self, length: usize) -> Option<Vec<f32>> {
        self.lent += length;
        self.most_lent = self.most_lent.max(self.lent);
        // The last one given back may still are in a cache.
        let of_length = |buffer: &Vec<f32>| buffer.len() == length;
        let Some(index) = self.buffers.iter().rposition(of_length) else {
            self.shrink();
            return None;
        };
        self.values -= length;
        Some(self.buffers.remove(index))
    }

    fn give_back(&mut self, buffer: Vec<f32>) {
        self.lent = self.lent.saturating_sub(buffer.len());
        self.values += buffer.len();
        self.buffers.push(buffer);
        self.shrink();
    }

    /// Frees the oldest, so that all together are never more than were needed at a time.
    fn shrink(&mut self) {
        let mut oldest = 0;
        while oldest < self.buffers.len() && self.lent + self.values > self.most_lent + SPARE {
            self.values -= self.buffers[oldest].len();
            oldest += 1;
        }
        self.buffers.drain(..oldest);
    }
}

fn unused<R>(change: impl FnOnce(&mut Unused) -> R) -> R {
    // Nothing in there can be left half done.
    change(&mut UNUSED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A buffer of `length` values that are whatever the last user left: its taker overwrites all.
pub(super) fn take(length: usize) -> Vec<f32> {
    let used = (length >= SHORT).then(|| unused(|unused| unused.take(length)));
    used.flatten().unwrap_or_else(|| vec![0.0; length])
}

/// A tensor's memory, which comes back here.
pub(super) fn lend(buffer: Vec<f32>) -> Bytes {
    if buffer.len() < SHORT {
        return Bytes::from_elems(buffer);
    }
    let shared = bytes::Bytes::from_owner(Lent(buffer));
    Bytes::from_shared(shared, AllocationProperty::Native)
}

struct Lent(Vec<f32>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        unused(|unused| unused.give_back(std::mem::take(&mut self.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_with_the_last_tensor_on_it() {
        // A length that no other test has.
        let length = SHORT + 12_345;
        let mut buffer = take(length);
        buffer[7] = 7.0;
        let bytes = lend(buffer);
        assert_eq!(bytes.len(), 4 * length);
        assert!(unused(|unused| unused.take(length)).is_none());
        drop(bytes);
        assert_eq!(take(length)[7], 7.0);
    }

    #[test]
    fn the_oldest_go_when_there_are_more_than_were_needed_at_a_time() {
        let mut unused = Unused::new();
        for length in [SPARE / 2, SPARE, 2 * SPARE] {
            assert!(unused.take(length).is_none());
            unused.give_back(vec![0.0; length]);
        }
        // Two at a time are the most there were: one, and a new one.
        let lengths = unused.buffers.iter().map(Vec::len);
        assert_eq!(lengths.collect::<Vec<_>>(), [SPARE, 2 * SPARE]);
        assert_eq!((unused.lent, unused.values), (0, 3 * SPARE));
        assert_eq!(unused.take(SPARE).unwrap().len(), SPARE);
        assert_eq!((unused.lent, unused.values), (SPARE, 2 * SPARE));
        // With these there would be more, so the others go.
        assert!(unused.take(3).is_none());
        assert_eq!((unused.lent, unused.values), (SPARE + 3, 0));
    }
}
