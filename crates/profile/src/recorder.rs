//! Records what a rank does while it does it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::allocations::CountingAllocator;
use crate::clock;
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
/// use everburn_profile::{Facts, Phase, Recorder};
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

#[derive(Debug, Default)]
struct State {
    recording: Recording,
    /// What has been entered since the counters were last read: the newest is still going on.
    open: Vec<(Phase, u64)>,
    counters: Counters,
    step: u32,
    is_full: bool,
    sampler: Option<Sampler>,
}

/// What is counted of the training thread and its process.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    cpu: u64,
    allocations: u64,
    bytes: u64,
}

impl Counters {
    fn read() -> Self {
        let (allocations, bytes) = CountingAllocator::counted();
        Self {
            cpu: clock::thread_cpu(),
            allocations,
            bytes,
        }
    }
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

    /// The same, which has `sampler` ask what the threads of this process do while steps go on.
    #[must_use]
    pub fn sampling(self, sampler: Sampler) -> Self {
        self.lock().sampler = Some(sampler);
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is recorded is written in one go.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Step `step` begins, with its data. To be called by the training thread.
    pub fn begin_step(&self, step: usize) {
        let kept_waiting = clock::kept_waiting_for_a_core().unwrap_or(0);
        let mut state = self.lock();
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
        };
        if state.recording.steps.is_empty() {
            state.recording.facts.training_thread = own_thread();
        }
        state.recording.steps.push(start);
        state.counters = Counters::read();
        state.open.push((Phase::Data, at));
    }

    /// From now on the step is in `phase`. Without a step, nothing happens.
    pub fn enter(&self, phase: Phase) {
        let mut state = self.lock();
        if let Some(now) = state.close() {
            state.open.push((phase, now));
        }
    }

    /// The step was in `phase` since `instant`, which lies behind the beginning of the phase before.
    pub fn enter_at(&self, phase: Phase, instant: Instant) {
        let at = clock::at(instant);
        let mut state = self.lock();
        if let Some((_, begin)) = state.open.last().copied() {
            state.open.push((phase, at.max(begin)));
        }
    }

    /// No step follows at once: an epoch is over.
    pub fn end_step(&self) {
        let mut state = self.lock();
        if let Some(now) = state.close() {
            // Where the last step ends.
            state.step = 0;
            if let Some(sampler) = &state.sampler {
                sampler.pause();
            }
            let kept_waiting = clock::kept_waiting_for_a_core().unwrap_or(0);
            state.recording.steps.push(StepStart {
                step: 0,
                at: now,
                kept_waiting,
                peak_memory: 0,
            });
        }
    }

    /// The paths of the parameters that [`mark`](Self::mark) tells the numbers of.
    pub fn name_parameters(&self, paths: impl IntoIterator<Item = String>) {
        self.lock().recording.parameters = paths.into_iter().collect();
    }

    /// A pass has come to a parameter.
    pub fn mark(&self, parameter: usize, pass: Pass) {
        let at = clock::now();
        let mut state = self.lock();
        if !state.open.is_empty() {
            let parameter = u32::try_from(parameter).unwrap_or(u32::MAX);
            state.recording.marks.push(Mark {
                parameter,
                pass,
                at,
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
    /// Ends what is going on; when, if anything was.
    fn close(&mut self) -> Option<u64> {
        if self.open.is_empty() {
            return None;
        }
        let (now, counters) = (clock::now(), Counters::read());
        let first = self.open[0].1;
        let all = now.saturating_sub(first).max(1);
        let since = |new: u64, old: u64| new.saturating_sub(old);
        let (before, open) = (self.counters, std::mem::take(&mut self.open));
        for (index, (phase, begin)) in open.iter().copied().enumerate() {
            let end = open
                .get(index + 1)
                .map_or(now, |(_, next)| (*next).min(now));
            // What was not read in between is shared out by time.
            let part = |count: u64| {
                (u128::from(count) * u128::from(end.saturating_sub(begin)) / u128::from(all)) as u64
            };
            self.recording.phases.push(PhaseSpan {
                phase,
                step: self.step,
                begin: begin.min(end),
                end,
                cpu: part(since(counters.cpu, before.cpu)),
                allocations: part(since(counters.allocations, before.allocations)),
                bytes: part(since(counters.bytes, before.bytes)),
            });
        }
        self.counters = counters;
        self.open = open;
        self.open.clear();
        Some(now)
    }
}

fn own_thread() -> u32 {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    u32::try_from(thread).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_no_gaps_whatever_is_entered_late() {
        let recorder = Recorder::new(Facts::default());
        recorder.begin_step(7);
        recorder.enter(Phase::Forward);
        let earlier = Instant::now();
        recorder.enter_at(Phase::Backward, earlier);
        // Before the phase that goes on: it takes no time.
        recorder.enter_at(Phase::Exchange, earlier);
        recorder.enter(Phase::Optimizer);
        recorder.begin_step(8);
        let recording = recorder.finish();
        let phases: Vec<(u32, Phase)> = recording
            .phases
            .iter()
            .map(|span| (span.step, span.phase))
            .collect();
        let expected = [
            (7, Phase::Data),
            (7, Phase::Forward),
            (7, Phase::Backward),
            (7, Phase::Exchange),
            (7, Phase::Optimizer),
            (8, Phase::Data),
        ];
        assert_eq!(phases, expected);
        for pair in recording.phases.windows(2) {
            assert!(pair[0].end == pair[1].begin && pair[0].begin <= pair[0].end);
        }
        let steps: Vec<u32> = recording.steps.iter().map(|start| start.step).collect();
        assert_eq!(steps, [7, 8, 0]);
    }

    #[test]
    fn outside_of_steps_nothing_is_recorded() {
        let recorder = Recorder::new(Facts::default());
        recorder.enter(Phase::Forward);
        recorder.enter_at(Phase::Backward, Instant::now());
        recorder.mark(3, Pass::Forward);
        recorder.end_step();
        recorder.peak_memory(9);
        let recording = recorder.finish();
        assert!(
            recording.phases.is_empty() && recording.marks.is_empty() && recording.steps.is_empty()
        );
    }
}
