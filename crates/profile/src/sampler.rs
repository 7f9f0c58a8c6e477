//! What the CPU does, asked at regular moments.
//!
//! `pprof` does the like. It keeps no time with a sample, so that none could be assigned to a layer, and sees only
//! threads that compute: not where a rank waits for a device. perf_event_open(2) is closed to most users.

mod signal;

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::signal::ThreadTimer;
use crate::error::ProfileError;
use crate::recording::{Sample, Samples};

/// How deep a stack is looked at: Burn's are about 40 deep.
const DEPTH: usize = 96;

/// How many samples there is room for: half a minute of two busy threads and more, in 13 MB.
const CAPACITY: usize = 1 << 14;

/// 211 times per second: often enough for a few seconds of training, and not in step with anything that happens at round
/// intervals. A walk of a stack takes about 0.1 ms, and a training thread that computes is asked twice, by the time
/// that passes and by the time it computes: 499 times per second were 9 % of the steps of `mnist`.
const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 211);

/// There is one handler of signals in a process.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// A sample as the handler leaves it.
struct Raw {
    at: u64,
    thread: u32,
    on_the_clock: bool,
    addresses: Vec<u64>,
}

/// Asks the threads of this process at regular moments what they do. One at a time in a process.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::Sampler;
///
/// let sampler = Sampler::start()?;
/// sampler.follow_this_thread()?;
/// sampler.resume();
/// let sum: u64 = (0..100_000_000).map(std::hint::black_box).sum();
/// let samples = sampler.finish();
/// assert!(samples.samples.len() > 1, "of adding up to {sum}");
/// # Ok::<(), everburn_profile::ProfileError>(())
/// ```
#[derive(Debug)]
pub struct Sampler {
    timers: Mutex<Vec<ThreadTimer>>,
}

impl Sampler {
    /// A sampler that rests until [`resume`](Self::resume).
    ///
    /// # Errors
    /// [`ProfileError::SampledAlready`] if there is one in this process, [`ProfileError::NoTimer`] if the system
    /// refuses.
    pub fn start() -> Result<Self, ProfileError> {
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(ProfileError::SampledAlready);
        }
        // Dropped where something fails.
        let sampler = Self {
            timers: Mutex::new(Vec::new()),
        };
        signal::install(CAPACITY)?;
        Ok(sampler)
    }

    /// Asks the calling thread as time passes, also while it waits; others are asked as they compute.
    ///
    /// # Errors
    /// [`ProfileError::NoTimer`] if the system refuses.
    pub fn follow_this_thread(&self) -> Result<(), ProfileError> {
        let timer = ThreadTimer::start(PERIOD)?;
        let mut timers = everburn_record::sync::lock(&self.timers);
        timers.push(timer);
        Ok(())
    }

    /// Continues.
    pub fn resume(&self) {
        signal::activate(true);
        // A system without this timer still has those of threads.
        let _ = signal::interrupt_computing(PERIOD);
    }

    /// Rests.
    pub fn pause(&self) {
        signal::activate(false);
        let _ = signal::interrupt_computing(Duration::ZERO);
    }

    /// Ends, and names what was found. That takes a while: the names of functions are looked up.
    pub fn finish(self) -> Samples {
        self.pause();
        let (raw, dropped) = signal::take();
        let mut names = Names::default();
        let mut stacks: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut samples = Vec::with_capacity(raw.len());
        for sample in raw {
            let stack = names.of(&sample.addresses);
            let next = stacks.len() as u32;
            samples.push(Sample {
                at: sample.at,
                thread: sample.thread,
                stack: *stacks.entry(stack).or_insert(next),
                on_the_clock: sample.on_the_clock,
            });
        }
        let mut in_order: Vec<(Vec<u32>, u32)> = stacks.into_iter().collect();
        in_order.sort_by_key(|(_, number)| *number);
        Samples {
            period: PERIOD.as_nanos() as u64,
            dropped,
            functions: names.functions,
            stacks: in_order.into_iter().map(|(stack, _)| stack).collect(),
            samples,
            threads: everburn_record::proc::thread_names(),
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.pause();
        TAKEN.store(false, Ordering::SeqCst);
    }
}

/// The names of functions, each looked up once.
#[derive(Default)]
struct Names {
    functions: Vec<String>,
    numbers: HashMap<String, u32>,
    /// By address: the functions there, the inlined ones last.
    known: HashMap<u64, Vec<u32>>,
}

impl Names {
    /// The row of functions of a stack, outermost first, without the handler.
    fn of(&mut self, addresses: &[u64]) -> Vec<u32> {
        let inner_first: Vec<Vec<u32>> =
            addresses.iter().map(|address| self.at(*address)).collect();
        let is_handler = |frame: &Vec<u32>| {
            let mut names = frame.iter().map(|number| &self.functions[*number as usize]);
            names.any(|name| name.contains(signal::HANDLER))
        };
        // After the handler is what the kernel has it return to.
        let interrupted = inner_first
            .iter()
            .position(is_handler)
            .map_or(0, |handler| handler + 2);
        let frames = inner_first.iter().skip(interrupted).rev();
        frames.flatten().copied().collect()
    }

    fn at(&mut self, address: u64) -> Vec<u32> {
        if let Some(known) = self.known.get(&address) {
            return known.clone();
        }
        let mut names = Vec::new();
        backtrace::resolve(address as *mut _, |symbol| {
            names.extend(symbol.name().map(|name| format!("{name:#}")));
        });
        if names.is_empty() {
            names.push("(unknown)".to_owned());
        }
        // The innermost of inlined functions comes first.
        let numbers: Vec<u32> = names
            .into_iter()
            .rev()
            .map(|name| self.number(name))
            .collect();
        self.known.insert(address, numbers.clone());
        numbers
    }

    fn number(&mut self, name: String) -> u32 {
        let next = self.functions.len() as u32;
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.functions.push(name.clone());
            next
        })
    }
}
