//! Records what a rank does while it does it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use everburn_record::proc;

use crate::allocations::CountingAllocator;
use crate::clock;
use crate::kernels::{self, KernelTimer};
use crate::phase::Phase;
use crate::recording::{BackgroundSpan, Facts, Mark, Pass, PhaseSpan, Recording, StepStart, Track};
use crate::sampler::Sampler;

/// How many steps are recorded; later ones pass by. At 64 parameters they take 30 MB.
const MOST_STEPS: usize = 10_000;

/// Room that is there from the start, so that recording allocates next to nothing: 500 steps of a small model.
const SPANS: usize = 1 << 13;
const MARKS: usize = 1 << 14;

/// Records where a rank's time goes. Clones record into one place; who has none records nothing.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Facts, Phase, Recorder};
///
/// let recorder = Recorder::new(Facts::default());
/// for step in 1..=2 {
///     recorder.begin_step(step);
///     recorder.enter(Phase::Forward);
///     recorder.enter(Phase::Backward);
/// }
/// recorder.end_step();
/// let recording = recorder.finish();
/// // Each step begins with its data.
/// assert_eq!(recording.phases.len(), 6);
/// assert_eq!(recording.phases[0].end, recording.phases[1].begin);
/// ```
#[derive(Debug, Clone)]
pub struct Recorder {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    recording: Recording,
    /// What has been entered since the counters were last read: the newest is still continuing.
    open: Vec<Open>,
    counters: Counters,
    /// Tells how many floating point operations the process has counted.
    count: Option<fn() -> u64>,
    step: u32,
    is_full: bool,
    sampler: Option<Sampler>,
    timer: Option<Box<dyn KernelTimer>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let steps = self.recording.steps.len();
        f.debug_struct("State")
            .field("steps", &steps)
            .finish_non_exhaustive()
    }
}

/// A phase whose end is not known yet.
#[derive(Debug, Clone, Copy)]
struct Open {
    phase: Phase,
    begin: u64,
    /// How many operations had been counted by its beginning, if that is known.
    operations: Option<u64>,
}

/// What is counted of the training thread and its process.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    cpu: u64,
    allocations: u64,
    bytes: u64,
    operations: u64,
}

impl Recorder {
    /// A recorder of a rank of which `facts` are known.
    pub fn new(facts: Facts) -> Self {
        let recording = Recording {
            facts,
            phases: Vec::with_capacity(SPANS),
            marks: Vec::with_capacity(MARKS),
            background: Vec::with_capacity(SPANS),
            steps: Vec::with_capacity(SPANS),
            ..Recording::default()
        };
        let state = State {
            recording,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The same, which has `sampler` ask what the threads of this process do while steps continue.
    #[must_use]
    pub fn sampling(self, sampler: Sampler) -> Self {
        self.lock().sampler = Some(sampler);
        self
    }

    /// Has `timer` time the kernels of the device, in one step of ten.
    pub fn time_kernels(&self, timer: Box<dyn KernelTimer>) {
        self.lock().timer = Some(timer);
    }

    /// Asks `count` from now on how many floating point operations the process has counted, which only grows.
    pub fn count_operations(&self, count: fn() -> u64) {
        self.lock().count = Some(count);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is recorded is written in one go.
        everburn_record::sync::lock(&self.state)
    }

    /// Step `step` begins, with its data. To be called by the training thread.
    pub fn begin_step(&self, step: usize) {
        let kept_waiting = without_cpu();
        let mut state = self.lock();
        state.end_of_timing();
        let ended = state.close();
        if ended.is_none()
            && let Some(sampler) = &state.sampler
        {
            if state.recording.steps.is_empty() {
                // Without it the thread is asked as it computes, as the others are.
                let _ = sampler.follow_this_thread();
            }
            sampler.resume();
        }
        state.is_full |= state.recording.steps.len() >= MOST_STEPS;
        if state.is_full {
            return;
        }
        let at = ended.unwrap_or_else(clock::now);
        state.step = u32::try_from(step).unwrap_or(u32::MAX);
        let start = StepStart {
            step: state.step,
            at,
            kept_waiting,
            peak_memory: 0,
            kernels_timed: state.begin_of_timing(),
        };
        if state.recording.steps.is_empty() {
            state.recording.facts.training_thread = own_thread();
        }
        state.recording.steps.push(start);
        state.counters = state.read_counters();
        let operations = Some(state.counters.operations);
        state.open.push(Open {
            phase: Phase::Data,
            begin: at,
            operations,
        });
    }

    /// From now on the step is in `phase`. Without a step, nothing happens.
    pub fn enter(&self, phase: Phase) {
        let mut state = self.lock();
        if let Some(begin) = state.close() {
            let operations = Some(state.counters.operations);
            state.open.push(Open {
                phase,
                begin,
                operations,
            });
        }
    }

    /// The step was in `phase` since `instant`, which is behind the beginning of the phase before. That one has
    /// computed this many `operations`; where it is not known, they are shared out by time.
    pub fn enter_at(&self, phase: Phase, instant: Instant, operations: Option<u64>) {
        let at = clock::at(instant);
        let mut state = self.lock();
        if let Some(before) = state.open.last().copied() {
            let by_then = before.operations.zip(operations);
            state.open.push(Open {
                phase,
                begin: at.max(before.begin),
                operations: by_then.map(|(first, more)| first.saturating_add(more)),
            });
        }
    }

    /// No step follows at once: an epoch is over.
    pub fn end_step(&self) {
        let mut state = self.lock();
        state.end_of_timing();
        if let Some(now) = state.close() {
            // Where the last step ends.
            state.step = 0;
            if let Some(sampler) = &state.sampler {
                sampler.pause();
            }
            let kept_waiting = without_cpu();
            state.recording.steps.push(StepStart {
                step: 0,
                at: now,
                kept_waiting,
                ..StepStart::default()
            });
        }
    }

    /// The paths of the parameters that [`mark`](Self::mark) takes the numbers of.
    pub fn name_parameters(&self, paths: impl IntoIterator<Item = String>) {
        self.lock().recording.parameters = paths.into_iter().collect();
    }

    /// A pass has come to a parameter.
    pub fn mark(&self, parameter: usize, pass: Pass) {
        let at = clock::now();
        let mut state = self.lock();
        if !state.open.is_empty() {
            let parameter = u32::try_from(parameter).unwrap_or(u32::MAX);
            let operations = state.operations();
            state.recording.marks.push(Mark {
                parameter,
                pass,
                at,
                operations,
            });
        }
    }

    /// Another thread was at work from `began` on, for so long.
    pub fn background(&self, track: Track, name: &str, began: Instant, took: Duration) {
        let begin = clock::at(began);
        let mut state = self.lock();
        if !state.is_full {
            state.recording.background.push(BackgroundSpan {
                track,
                name: name.to_owned(),
                begin,
                end: begin + took.as_nanos() as u64,
            });
        }
    }

    /// Does `work` as a thread that assembles batches.
    pub fn loading<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        let track = Track::Loader(own_thread());
        self.background(track, "batch", began, began.elapsed());
        done
    }

    /// The most memory of the present step, in bytes.
    pub fn peak_memory(&self, bytes: u64) {
        let mut state = self.lock();
        if let Some(step) = state.recording.steps.last_mut() {
            step.peak_memory = step.peak_memory.max(bytes);
        }
    }

    /// Changes what is known of the rank.
    pub fn know(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.lock().recording.facts);
    }

    /// What is to be added to this rank's clock to get rank 0's, and by how much that may be wrong, in nanoseconds.
    pub fn set_clock(&self, offset: i64, error: u64) {
        let mut state = self.lock();
        (state.recording.clock_offset, state.recording.clock_error) = (offset, error);
    }

    /// Takes what has been recorded.
    pub fn finish(&self) -> Recording {
        self.end_step();
        let mut state = self.lock();
        let mut recording = std::mem::take(&mut state.recording);
        if let Some(sampler) = state.sampler.take() {
            recording.samples = sampler.finish();
        }
        recording
    }
}

impl State {
    fn operations(&self) -> u64 {
        self.count.map_or(0, |count| count())
    }

    /// Has kernels be timed if it is time to; whether it is.
    fn begin_of_timing(&mut self) -> bool {
        let recorded = self.recording.steps.len();
        match &mut self.timer {
            Some(timer) if kernels::is_timed(recorded) => {
                timer.begin();
                true
            }
            _ => false,
        }
    }

    /// Takes the kernels of the step that ends, whose own time it is that this takes.
    fn end_of_timing(&mut self) {
        let is_timed = self.recording.steps.last().is_some_and(|s| s.kernels_timed);
        if let (true, Some(timer)) = (is_timed, &mut self.timer) {
            let timed = timer.end();
            self.recording.kernels.add(timed, clock::converter());
        }
    }

    fn read_counters(&self) -> Counters {
        let (allocations, bytes) = CountingAllocator::counted();
        Counters {
            cpu: clock::thread_cpu(),
            allocations,
            bytes,
            operations: self.operations(),
        }
    }

    /// Ends what is continuing; when, if anything was.
    fn close(&mut self) -> Option<u64> {
        let first = self.open.first()?.begin;
        let (now, counters) = (clock::now(), self.read_counters());
        let all = now.saturating_sub(first).max(1);
        let since = |new: u64, old: u64| new.saturating_sub(old);
        let before = self.counters;
        // What was not read in between is shared out by time.
        let part =
            |count: u64, time: u64| (u128::from(count) * u128::from(time) / u128::from(all)) as u64;
        let computed = since(counters.operations, before.operations);
        let mut counted = before.operations;
        let mut open = self.open.drain(..).peekable();
        while let Some(Open { phase, begin, .. }) = open.next() {
            let next = open.peek().copied();
            let end = next.map_or(now, |next| next.begin.min(now));
            let time = end.saturating_sub(begin);
            let by_end = match next {
                None => counters.operations,
                Some(next) => next.operations.unwrap_or_else(|| {
                    before.operations + part(computed, end.saturating_sub(first))
                }),
            };
            // A count that somebody else has told does not go beyond what there is to share out.
            let by_end = by_end.max(counted).min(counters.operations.max(counted));
            self.recording.phases.push(PhaseSpan {
                phase,
                step: self.step,
                begin: begin.min(end),
                end,
                cpu: part(since(counters.cpu, before.cpu), time),
                allocations: part(since(counters.allocations, before.allocations), time),
                bytes: part(since(counters.bytes, before.bytes), time),
                operations: [counted, by_end],
            });
            counted = by_end;
        }
        self.counters = counters;
        Some(now)
    }
}

fn own_thread() -> u32 {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    u32::try_from(thread).unwrap_or_default()
}

/// How long the calling thread has been ready to run without a core, in nanoseconds; 0 where the system does not tell.
fn without_cpu() -> u64 {
    proc::time_without_cpu().map_or(0, |time| time.as_nanos() as u64)
}

#[cfg(test)]
mod tests;
