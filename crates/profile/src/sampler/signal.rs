//! The timers of a sampler, and what happens when one has run down: the only unsafe part of it.
//!
//! Two kinds of timers send `SIGPROF`. One counts the time for which the process computes, on all its threads
//! (`setitimer`, `ITIMER_PROF`): the kernel interrupts whichever thread is computing. The other counts time as it
//! passes and interrupts one thread (`timer_create` with `SIGEV_THREAD_ID`), so that it also shows where that thread
//! waits. The handler walks the stack of the interrupted thread and writes it into memory that was there before.
//!
//! What a handler may do is little (signal-safety(7)): no lock, no memory. The walk is libgcc's, which finds a
//! function's table by `_dl_find_object`, without a lock since glibc 2.35; it is run once before the first signal, so
//! that nothing is linked or loaded in the handler.

#![expect(
    unsafe_code,
    reason = "timers and handlers of signals are those of libc"
)]

use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::{DEPTH, Raw};
use crate::error::ProfileError;

/// How many numbers a sample takes: when, by whom and how, how deep, and the return addresses.
const ROW: usize = 3 + DEPTH;

/// Samples, in memory that does not move: the handler has no place to find it but a static.
static ROWS: OnceLock<Rows> = OnceLock::new();
static ACTIVE: AtomicBool = AtomicBool::new(false);

struct Rows {
    numbers: Vec<AtomicU64>,
    /// The next free row; past the end, samples are lost.
    next: AtomicUsize,
}

/// A timer of one thread, deleted when dropped.
#[derive(Debug)]
pub(super) struct ThreadTimer(libc::timer_t);

// SAFETY: a timer's number is one of the process, which any thread may use.
unsafe impl Send for ThreadTimer {}

/// Makes room for `capacity` samples and installs the handler, once in a process.
pub(super) fn install(capacity: usize) -> Result<(), ProfileError> {
    let rows = ROWS.get_or_init(|| Rows {
        numbers: (0..capacity * ROW).map(|_| AtomicU64::new(0)).collect(),
        next: AtomicUsize::new(0),
    });
    rows.next.store(0, Ordering::SeqCst);
    // Links and loads what the walk needs.
    backtrace::trace(|_| true);
    // SAFETY: a `sigaction` of zeros is a valid one; the handler has the signature that SA_SIGINFO asks for, and does
    // only what a handler may.
    let failed = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_signal;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut()) != 0
    };
    told(failed, "sigaction")
}

/// Whether signals leave samples.
pub(super) fn activate(on: bool) {
    ACTIVE.store(on, Ordering::SeqCst);
}

/// Interrupts whichever thread computes, each time that the process has computed for `period`; never if it is zero.
pub(super) fn interrupt_computing(period: Duration) -> Result<(), ProfileError> {
    let period = libc::timeval {
        tv_sec: period.as_secs() as libc::time_t,
        tv_usec: libc::suseconds_t::from(period.subsec_micros() as i32),
    };
    let timer = libc::itimerval {
        it_interval: period,
        it_value: period,
    };
    // SAFETY: the structure is whole, and the old value is not asked for.
    let failed =
        unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) != 0 };
    told(failed, "setitimer")
}

impl ThreadTimer {
    /// Interrupts the calling thread each time that `period` has passed, as long as this value lives.
    pub(super) fn start(period: Duration) -> Result<Self, ProfileError> {
        let period = libc::timespec {
            tv_sec: period.as_secs() as libc::time_t,
            tv_nsec: period.subsec_nanos() as libc::c_long,
        };
        let interval = libc::itimerspec {
            it_interval: period,
            it_value: period,
        };
        // SAFETY: a `sigevent` of zeros is a valid one; `timer` is written before it is read, and the thread is the
        // caller's own.
        unsafe {
            let mut event: libc::sigevent = mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGPROF;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = ptr::null_mut();
            let made = libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
            told(made != 0, "timer_create")?;
            let timer = Self(timer);
            let set = libc::timer_settime(timer.0, 0, &raw const interval, ptr::null_mut());
            told(set != 0, "timer_settime")?;
            Ok(timer)
        }
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        // SAFETY: the timer was made by `start`, and is deleted once.
        let _ = unsafe { libc::timer_delete(self.0) };
    }
}

/// Takes the samples out, and how many did not fit.
pub(super) fn take() -> (Vec<Raw>, u64) {
    let Some(rows) = ROWS.get() else {
        return (Vec::new(), 0);
    };
    let capacity = rows.numbers.len() / ROW;
    let written = rows.next.swap(0, Ordering::SeqCst);
    let samples = rows.numbers.chunks_exact(ROW).take(written);
    let samples = samples.filter_map(|row| {
        // Zero where a handler has not come to its end.
        let depth = row[2].swap(0, Ordering::Acquire) as usize;
        let by = row[1].load(Ordering::Relaxed);
        (depth > 0).then(|| Raw {
            at: row[0].load(Ordering::Relaxed),
            thread: (by >> 1) as u32,
            on_the_clock: by & 1 == 1,
            addresses: row[3..3 + depth]
                .iter()
                .map(|address| address.load(Ordering::Relaxed))
                .collect(),
        })
    });
    (samples.collect(), written.saturating_sub(capacity) as u64)
}

/// The name by which the walk finds where the interrupted function begins.
pub(super) const HANDLER: &str = "sampler::signal::on_signal";

extern "C" fn on_signal(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some(rows) = ROWS.get().filter(|_| ACTIVE.load(Ordering::Relaxed)) else {
        return;
    };
    let number = rows.next.fetch_add(1, Ordering::Relaxed);
    let Some(row) = rows.numbers.get(number * ROW..(number + 1) * ROW) else {
        return;
    };
    // SAFETY: the kernel hands a handler of SA_SIGINFO a valid structure. `errno` is the interrupted thread's own, and
    // is put back as it was found. The walk reads this thread's stack by tables that do not change; it takes no lock
    // that the interrupted function could hold.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let on_the_clock = (*info).si_code == libc::SI_TIMER;
        row[0].store(crate::clock::now(), Ordering::Relaxed);
        let thread = libc::gettid() as u64;
        row[1].store(thread << 1 | u64::from(on_the_clock), Ordering::Relaxed);
        let mut depth = 0;
        backtrace::trace_unsynchronized(|frame| {
            row[3 + depth].store(frame.ip() as u64, Ordering::Relaxed);
            depth += 1;
            depth < DEPTH
        });
        row[2].store(depth as u64, Ordering::Release);
        *errno = before;
    }
}

fn told(failed: bool, call: &'static str) -> Result<(), ProfileError> {
    match failed {
        false => Ok(()),
        true => Err(ProfileError::NoTimer {
            call,
            reason: std::io::Error::last_os_error().to_string(),
        }),
    }
}
