//! How much memory a process allocates.
//!
//! Off, it costs each allocation one relaxed load of a number that never changes, and a branch.

#![expect(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An allocator has no place but a static: the language calls it without a value.
static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, which counts what is allocated while that is asked for.
///
/// ```
/// # mod everburn { pub mod profile { pub use everburn_profile::*; } }
/// use everburn::profile::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
///
/// CountingAllocator::count(true);
/// let (before, _) = CountingAllocator::counted();
/// let numbers = std::hint::black_box(vec![0_u8; 1 << 20]);
/// let (after, bytes) = CountingAllocator::counted();
/// assert!(after > before && bytes >= numbers.len() as u64);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

impl CountingAllocator {
    /// Whether allocations are counted from now on, in the whole process.
    pub fn count(on: bool) {
        COUNTS.store(on, Ordering::Relaxed);
    }

    /// How many allocations were counted, and of how many bytes together; nothing in a program that has another
    /// allocator.
    pub fn counted() -> (u64, u64) {
        let (count, bytes) = (&ALLOCATIONS, &BYTES);
        (count.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
    }
}

fn note(bytes: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

// SAFETY: each call is handed to `System` as it came, and what that returns is returned; counting neither allocates
// nor panics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the promises of `alloc`, which are those of `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the block is of this allocator, which is `System`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is of this allocator, which is `System`.
        unsafe { System.dealloc(block, layout) }
    }
}
