//! `live.json`, which rank 0 writes on a thread of its own: a training that hangs shows where.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everburn_collectives::heartbeat::RankStatus;
use everburn_record::sync::lock;
use everburn_record::{Live, LiveRank, Phase, ProcessMetrics, proc, unix_time_ms};

use crate::record::run_directory::RunDirectory;

/// How often the file is written anew, while nothing but numbers changes.
const INTERVAL: Duration = Duration::from_millis(500);

/// The weight of a new step in the mean of steps: that of about the last 20.
const NEWEST: f64 = 0.1;

/// How many of the ranks that one waits for are written: thousands of ranks may wait for as many.
const MOST_AWAITED: usize = 8;

/// Returns the status of each rank, usually by
/// [`HeartbeatMonitor::statuses`](everburn_collectives::heartbeat::HeartbeatMonitor::statuses).
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_train as train; }
/// use std::sync::Arc;
///
/// use everburn::collectives::heartbeat::HeartbeatMonitor;
/// use everburn::train::RankStatuses;
///
/// fn of(monitor: Arc<HeartbeatMonitor>) -> RankStatuses {
///     Arc::new(move || monitor.statuses())
/// }
/// ```
pub type RankStatuses = Arc<dyn Fn() -> Vec<RankStatus> + Send + Sync>;

/// What the loop and the thread share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    live: Live,
    /// It is to be written at once.
    due: bool,
    closed: bool,
    /// All members have made the newest step, which is the last one.
    finished: bool,
    /// When the newest step was finished.
    stepped: Option<Instant>,
}

/// The file of a run that continues. When it is dropped, the file says that the run is over.
pub(crate) struct LiveFile {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl LiveFile {
    /// Begins to write the file of `run`. Without a thread there is none, which stops nothing.
    pub(crate) fn start(
        run: &RunDirectory,
        live: Live,
        rank_statuses: Option<RankStatuses>,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        lock(&shared.state).live = Live {
            moved_unix_ms: Some(unix_time_ms()),
            ..live
        };
        let path = run.path().join(Live::FILE);
        let writer = shared.clone();
        let thread = std::thread::Builder::new()
            .name("everburn-live".to_string())
            .spawn(move || write_until_closed(&writer, &path, rank_statuses.as_ref()));
        let thread =
            thread.inspect_err(|error| tracing::warn!("monitors cannot follow this run: {error}"));
        Self {
            shared,
            thread: thread.ok(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Live)) {
        let mut state = lock(&self.shared.state);
        let phase = state.live.phase;
        change(&mut state.live);
        if state.live.phase != phase {
            state.live.moved_unix_ms = Some(unix_time_ms());
        }
        state.due = true;
        // What is between two phases is no step.
        state.stepped = None;
        drop(state);
        self.shared.changed.notify_all();
    }

    fn step(&self, step: usize) {
        let now = Instant::now();
        let mut state = lock(&self.shared.state);
        let before = state.stepped.replace(now);
        let live = &mut state.live;
        live.step = step as u64;
        live.moved_unix_ms = Some(unix_time_ms());
        if let Some(before) = before {
            let seconds = now.duration_since(before).as_secs_f64();
            let mean = live.seconds_a_step.unwrap_or(seconds);
            live.seconds_a_step = Some(mean + NEWEST * (seconds - mean));
        }
        if !matches!(live.phase, Phase::Training) {
            live.phase = Phase::Training;
            state.due = true;
            drop(state);
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.live.phase = Phase::Ended;
        state.closed = true;
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // An error would be a panic, which has told of itself.
            let _ = thread.join();
        }
    }
}

/// The file of a rank that is, or may become, rank 0.
#[derive(Clone, Default)]
pub(crate) struct LiveSlot(Arc<Mutex<Option<LiveFile>>>);

impl LiveSlot {
    pub(crate) fn is_open(&self) -> bool {
        self.file().is_some()
    }

    /// Begins a file in place of the one before; `None` ends it.
    pub(crate) fn open(&self, file: Option<LiveFile>) {
        let before = std::mem::replace(&mut *self.file(), file);
        drop(before);
    }

    /// Ends the file of a run whose members have all come to its end.
    pub(crate) fn finish(&self) {
        if let Some(file) = &*self.file() {
            lock(&file.shared.state).finished = true;
        }
        self.open(None);
    }

    fn change(&self, change: impl FnOnce(&mut Live)) {
        if let Some(file) = &*self.file() {
            file.change(change);
        }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.change(|live| live.phase = phase);
    }

    pub(crate) fn enter_epoch(&self, phase: Phase, epoch: usize) {
        self.change(|live| {
            live.phase = phase;
            live.epoch = epoch as u64;
        });
    }

    /// Says which ranks make steps.
    pub(crate) fn members(&self, members: Vec<usize>) {
        self.change(|live| live.members = members);
    }

    /// A step is finished. Costs the loop two locks that nobody holds for long.
    pub(crate) fn step(&self, step: usize) {
        if let Some(file) = &*self.file() {
            file.step(step);
        }
    }

    fn file(&self) -> MutexGuard<'_, Option<LiveFile>> {
        lock(&self.0)
    }
}

fn write_until_closed(shared: &Shared, path: &Path, rank_statuses: Option<&RankStatuses>) {
    let (mut told, host) = (false, proc::host_name());
    loop {
        let mut state = lock(&shared.state);
        state.due = false;
        let (mut live, closed, finished) = (state.live.clone(), state.closed, state.finished);
        drop(state);
        if let Some(rank_statuses) = rank_statuses {
            let statuses = rank_statuses();
            let mut store = statuses.iter().filter_map(|status| status.store_silent_for);
            live.store_silent_seconds = store.next().map(|silence| silence.as_secs_f64());
            live.ranks = statuses.into_iter().map(of_status).collect();
            if finished {
                reach_the_end(&mut live);
            }
        } else {
            live.ranks = vec![LiveRank {
                rank: live.writer(),
                alive: !closed,
                pid: Some(std::process::id()),
                host: host.clone(),
                step: Some(live.step),
                ..LiveRank::default()
            }];
        }
        live.unix_time_ms = unix_time_ms();
        if let Err(error) = live.write(path)
            && !std::mem::replace(&mut told, true)
        {
            tracing::warn!("{} is not written: {error}", path.display());
        }
        if closed {
            return;
        }
        let rests = |state: &mut State| !state.due && !state.closed;
        let state = lock(&shared.state);
        drop(shared.changed.wait_timeout_while(state, INTERVAL, rests));
    }
}

/// Heartbeats are up to two intervals old, and a short run is over before they tell of its steps.
fn reach_the_end(live: &mut Live) {
    let step = Some(live.step);
    let mut members: BTreeSet<usize> = live.members.iter().copied().collect();
    for rank in &mut live.ranks {
        if members.remove(&rank.rank) {
            rank.step = step;
        }
    }
    let unheard = members.into_iter().map(|rank| LiveRank {
        rank,
        step,
        ..LiveRank::default()
    });
    live.ranks.extend(unheard);
    live.ranks.sort_by_key(|rank| rank.rank);
}

fn of_status(status: RankStatus) -> LiveRank {
    let under_way = status.doing.as_ref().filter(|it| !it.state.is_over());
    let waiting_for = under_way.iter().flat_map(|it| &it.waiting_for);
    LiveRank {
        rank: status.member,
        alive: status.alive,
        pid: status.pid,
        host: status.host,
        silent_seconds: status
            .silent_for
            .filter(|_| !status.alive)
            .map(|silence| silence.as_secs_f64()),
        step: Some(status.step),
        under_way: under_way.is_some(),
        waiting_for: waiting_for.take(MOST_AWAITED).copied().collect(),
        stopped: false,
        doing: status.doing.map(|doing| doing.to_string()),
        process_metrics: ProcessMetrics::from_text(&status.note),
    }
}

#[cfg(test)]
mod tests;
