//! The memory itself: a mapping of a memfd, or the heap.
//!
//! All that touches it goes through [`Memory`], which keeps two kinds of places apart: the control
//! part (up to [`Layout::data_start`]), used only as atomic numbers, and the data part, used only as
//! bytes.

#![expect(
    unsafe_code,
    reason = "memory that processes share is not Rust's to check"
)]

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::time::Duration;

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::layout::{Layout, PAGE};

/// Memory of a segment; given back when dropped.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    data_start: usize,
    origin: Origin,
}

#[derive(Debug, Clone, Copy)]
enum Origin {
    Heap,
    #[cfg(target_os = "linux")]
    Mapping,
}

// SAFETY: the memory belongs to no thread. It is reached only through atomic numbers and through
// `view` and `view_mut`, whose callers answer for races.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory of this process alone.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
    pub(super) fn on_heap(layout: &Layout) -> Self {
        let place = heap_place(layout.bytes);
        // SAFETY: a layout has at least the header, so its size is not zero.
        let start = unsafe { alloc_zeroed(place) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(place)
        };
        Self {
            start,
            bytes: layout.bytes,
            data_start: layout.data_start,
            origin: Origin::Heap,
        }
    }

    /// Maps the file after `descriptor`, which must have all bytes of `layout` and be sealed
    /// against losing them: that is the caller's to check, and if it does not, a touch of what is
    /// missing ends the process by SIGBUS.
    #[cfg(target_os = "linux")]
    pub(super) fn map(
        descriptor: std::os::fd::BorrowedFd<'_>,
        layout: &Layout,
    ) -> rustix::io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory that exists.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                layout.bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                descriptor,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self {
            start,
            bytes: layout.bytes,
            data_start: layout.data_start,
            origin: Origin::Mapping,
        })
    }

    /// The 64-bit number at `place` in the control part.
    pub(super) fn position(&self, place: usize) -> &AtomicU64 {
        assert!(place.is_multiple_of(8) && place + 8 <= self.data_start);
        // SAFETY: inside the memory and aligned, by the line above; initialised, as fresh memory is
        // zero; the control part is used as atomic numbers only, of one size at each place.
        unsafe { self.start.add(place).cast().as_ref() }
    }

    /// The 32-bit number at `place` in the control part.
    pub(super) fn word(&self, place: usize) -> &AtomicU32 {
        assert!(place.is_multiple_of(4) && place + 4 <= self.data_start);
        // SAFETY: as for `position`.
        unsafe { self.start.add(place).cast().as_ref() }
    }

    /// Bytes of the data part.
    ///
    /// # Safety
    /// Nobody writes them while the view lives.
    ///
    /// # Panics
    /// If they are not in the data part.
    pub(super) unsafe fn view(&self, place: usize, bytes: usize) -> &[u8] {
        self.check_data(place, bytes);
        // SAFETY: inside the memory, by the line above; initialised, as fresh memory is zero; not
        // written, by this function's own condition.
        unsafe { std::slice::from_raw_parts(self.start.add(place).as_ptr(), bytes) }
    }

    /// Bytes of the data part, to write.
    ///
    /// # Safety
    /// Nobody else reads or writes them while the view lives.
    ///
    /// # Panics
    /// If they are not in the data part.
    #[expect(
        clippy::mut_from_ref,
        reason = "shared memory; the caller answers for it"
    )]
    pub(super) unsafe fn view_mut(&self, place: usize, bytes: usize) -> &mut [u8] {
        self.check_data(place, bytes);
        // SAFETY: as for `view`, and alone, by this function's own condition.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(place).as_ptr(), bytes) }
    }

    fn check_data(&self, place: usize, bytes: usize) {
        let end = place.checked_add(bytes);
        assert!(place >= self.data_start && end.is_some_and(|end| end <= self.bytes));
    }

    /// Tells the model of this memory in tests that a view has been used up to now.
    pub(super) fn viewed(&self, _place: usize, _bytes: usize) {}

    /// Lets the kernel map these bytes now, so that the first collective takes no page faults.
    pub(super) fn populate(&self, place: usize, bytes: usize) {
        self.check_data(place, bytes);
        #[cfg(target_os = "linux")]
        if matches!(self.origin, Origin::Mapping) {
            use rustix::mm::{Advice, madvise};
            let start = self.start.as_ptr().wrapping_add(place);
            // SAFETY: inside the mapping, by the line above; this advice changes no contents.
            let done = unsafe { madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) };
            // Kernels before 5.14 do not have it; then the pages are mapped when they are touched.
            let _ = done;
        }
    }

    /// Sleeps while the word at `place` is `value`, at most `at_most`, perhaps less.
    #[cfg(target_os = "linux")]
    pub(super) fn sleep_while(&self, place: usize, value: u32, at_most: Duration) {
        use rustix::thread::futex::{Flags, Timespec, wait};
        // Not private: the word is another address in each process.
        let at_most = Timespec::try_from(at_most).ok();
        // Whatever ends it, woken, changed before, too late or interrupted: the caller looks again.
        let _ = wait(self.word(place), Flags::empty(), value, at_most.as_ref());
    }

    /// Sleeps while the word at `place` is `value`, at most `at_most`, perhaps less. Without
    /// futexes, memory is shared only by threads of tests; they look again every now and then.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn sleep_while(&self, _place: usize, _value: u32, at_most: Duration) {
        std::thread::sleep(at_most.min(Duration::from_micros(50)));
    }

    pub(super) fn wake(&self, place: usize) {
        #[cfg(target_os = "linux")]
        {
            use rustix::thread::futex::{Flags, wake};
            // It fails only for an address that is none, and this one is ours.
            let _ = wake(self.word(place), Flags::empty(), i32::MAX as u32);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = place;
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: allocated by `on_heap` with the same place and not given back before.
            Origin::Heap => unsafe { dealloc(self.start.as_ptr(), heap_place(self.bytes)) },
            #[cfg(target_os = "linux")]
            Origin::Mapping => {
                // SAFETY: mapped by `map` with this length; whoever uses it holds it by an `Arc`.
                let done = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
                debug_assert!(done.is_ok(), "a mapping of our own is taken back: {done:?}");
            }
        }
    }
}

fn heap_place(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, PAGE)
        .expect("a checked layout is far smaller than the address space")
}
