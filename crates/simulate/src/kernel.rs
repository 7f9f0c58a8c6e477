//! The scheduler: one simulated thread runs at a time, and time passes only when none can.
//!
//! Events of equal time come in the order in which they were made, so a seed repeats the whole run. The simulated thread
//! that an event wakes runs until it waits. All are coroutines of the one thread that has started the simulation.

mod process_runtime;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use corosensei::stack::DefaultStack;
use everburn_collectives::runtime::{self, Runtime};
use everburn_collectives::sync::lock;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use self::process_runtime::ProcessRuntime;
use crate::coroutine::{self, Coroutine, Panicked};

/// What happens at a time of the simulation.
pub(crate) type Action = Box<dyn FnOnce(&Arc<Kernel>) + Send>;

/// What a time of the simulation brings.
enum Event {
    /// A thread continues, if it still waits for this.
    Wake {
        thread: usize,
        ticket: u64,
    },
    Act(Action),
}

/// The stack of a simulated thread.
const STACK: usize = 384 << 10;

struct SimulatedThread {
    name: String,
    process: usize,
    /// Counts its waits: a wake-up for an earlier one is void.
    ticket: u64,
    /// Where its deadline is among all.
    deadline: Option<(u64, u64)>,
    runtime: Arc<dyn Runtime>,
    begins: Option<Begins>,
}

/// What a simulated thread begins with.
struct Begins {
    stack: DefaultStack,
    work: Box<dyn FnOnce() + Send>,
}

struct Process {
    machine: usize,
    alive: bool,
    stopped: bool,
    /// Wake-ups that came while it was stopped.
    deferred: Vec<(usize, u64)>,
    /// By how much its clock is ahead.
    offset: u64,
    /// How many nanoseconds per second its clock is fast.
    drift: i64,
}

struct State {
    now: u64,
    number: u64,
    /// By time, and in the order in which they were made.
    queue: BTreeMap<(u64, u64), Event>,
    threads: Vec<SimulatedThread>,
    /// The one that runs.
    current: usize,
    /// Of those that have ended.
    stacks: Vec<DefaultStack>,
    processes: Vec<Process>,
    /// Which waits each condition ends.
    conditions: HashMap<usize, Vec<(usize, u64)>>,
    random: StdRng,
    trace: u64,
    over: bool,
}

/// The simulation's time, threads and chance.
pub(crate) struct Kernel {
    /// The time of all clocks at the start.
    epoch: Instant,
    state: Mutex<State>,
}

impl Kernel {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let state = State {
            now: 0,
            number: 0,
            queue: BTreeMap::new(),
            threads: Vec::new(),
            current: usize::MAX,
            stacks: Vec::new(),
            processes: Vec::new(),
            conditions: HashMap::new(),
            random: StdRng::seed_from_u64(seed),
            trace: 0xcbf2_9ce4_8422_2325,
            over: false,
        };
        Arc::new(Self {
            epoch: Instant::now() + Duration::from_secs(3600),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The time since the start of the simulation.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.state().now)
    }

    /// A digest of all that has happened.
    pub(crate) fn trace(&self) -> u64 {
        self.state().trace
    }

    pub(crate) fn random_below(&self, end: u64) -> u64 {
        self.state().random.random_range(0..end.max(1))
    }

    /// A process on `machine`, with a clock of its own, which runs nothing yet.
    pub(crate) fn add_process(&self, machine: usize) -> usize {
        let mut state = self.state();
        let offset = state.random.random_range(0..3_000_000_000_000);
        let drift = state.random.random_range(-50_000..50_000);
        state.processes.push(Process {
            machine,
            alive: true,
            stopped: false,
            deferred: Vec::new(),
            offset,
            drift,
        });
        state.processes.len() - 1
    }

    pub(crate) fn machine_of(&self, process: usize) -> usize {
        self.state().processes[process].machine
    }

    pub(crate) fn is_alive(&self, process: usize) -> bool {
        self.state().processes[process].alive
    }

    pub(crate) fn is_stopped(&self, process: usize) -> bool {
        self.state().processes[process].stopped
    }

    /// Ends a process: none of its threads runs again.
    pub(crate) fn kill(&self, process: usize) {
        let mut state = self.state();
        state.processes[process].alive = false;
        state.processes[process].deferred.clear();
        state.note(1, process as u64);
    }

    /// Stops or continues a process, as SIGSTOP and SIGCONT do.
    pub(crate) fn set_stopped(&self, process: usize, stopped: bool) {
        let mut state = self.state();
        state.processes[process].stopped = stopped;
        state.note(2, process as u64);
        if !stopped {
            let now = state.now;
            for (thread, ticket) in std::mem::take(&mut state.processes[process].deferred) {
                state.push(now, Event::Wake { thread, ticket });
            }
        }
    }

    pub(crate) fn after(&self, delay: Duration, action: Action) {
        let mut state = self.state();
        let at = state.now + nanoseconds(delay);
        state.push(at, Event::Act(action));
    }

    /// Has `action` happen at a time since the start.
    pub(crate) fn at(&self, at: Duration, action: Action) {
        let mut state = self.state();
        let at = nanoseconds(at).max(state.now);
        state.push(at, Event::Act(action));
    }

    /// The calling thread and the number of its next wait, which [`Kernel::wake`] ends.
    pub(crate) fn prepare(&self) -> (usize, u64) {
        let mut state = self.state();
        let thread = state.current;
        let waiting = &mut state.threads[thread];
        waiting.ticket += 1;
        (thread, waiting.ticket)
    }

    /// Ends the wait that [`Kernel::prepare`] has numbered, now.
    pub(crate) fn wake(&self, (thread, ticket): (usize, u64)) {
        let mut state = self.state();
        let now = state.now;
        state.push(now, Event::Wake { thread, ticket });
    }

    /// Waits for [`Kernel::wake`], or until `at`.
    pub(crate) fn block(&self, (thread, ticket): (usize, u64), at: Option<Duration>) {
        if let Some(at) = at {
            let mut state = self.state();
            let at = nanoseconds(at).max(state.now);
            let deadline = state.push(at, Event::Wake { thread, ticket });
            state.threads[thread].deadline = Some(deadline);
        }
        coroutine::suspend();
    }

    /// Waits for a while.
    pub(crate) fn sleep(&self, time: Duration) {
        let wait = self.prepare();
        let until = self.now() + time;
        self.block(wait, Some(until));
    }

    /// Lets events happen until [`Kernel::end`].
    ///
    /// # Errors
    /// Why the simulation cannot continue.
    pub(crate) fn run(self: &Arc<Self>) -> Result<(), String> {
        // One that has not ended holds what others use: its stack is never unwound.
        let mut coroutines: ManuallyDrop<Vec<Option<Coroutine>>> = ManuallyDrop::default();
        loop {
            let mut state = self.state();
            if state.over {
                return Ok(());
            }
            let Some(((at, _), event)) = state.queue.pop_first() else {
                return Err("all processes wait for each other".to_owned());
            };
            state.now = at;
            match event {
                Event::Act(action) => {
                    drop(state);
                    action(self);
                }
                Event::Wake { thread, ticket } if state.may_run(thread, ticket) => {
                    state.current = thread;
                    let of = &mut state.threads[thread];
                    let (runtime, begins) = (of.runtime.clone(), of.begins.take());
                    coroutines.resize_with(state.threads.len(), || None);
                    drop(state);
                    let begun = begins.map(|it| Coroutine::new(it.stack, it.work));
                    let Some(runs) = begun.or_else(|| coroutines[thread].take()) else {
                        continue;
                    };
                    match runtime::enter(runtime, || runs.resume()) {
                        ControlFlow::Continue(waits) => coroutines[thread] = Some(waits),
                        ControlFlow::Break(Ok(stack)) => self.state().stacks.push(stack),
                        ControlFlow::Break(Err(Panicked)) => {
                            return Err(format!(
                                "{} has panicked",
                                self.state().threads[thread].name
                            ));
                        }
                    }
                }
                Event::Wake { .. } => {}
            }
        }
    }

    /// Starts a thread of `process`, which runs once the caller waits.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        process: usize,
        name: &str,
        work: Box<dyn FnOnce() + Send>,
    ) -> io::Result<()> {
        let runtime = self.runtime(process);
        let mut state = self.state();
        let stack = match state.stacks.pop() {
            Some(stack) => stack,
            None => DefaultStack::new(STACK)?,
        };
        let thread = state.threads.len();
        state.threads.push(SimulatedThread {
            name: name.to_owned(),
            process,
            ticket: 1,
            deadline: None,
            runtime,
            begins: Some(Begins { stack, work }),
        });
        let now = state.now;
        state.push(now, Event::Wake { thread, ticket: 1 });
        Ok(())
    }

    /// What the code of `process` asks for its time.
    pub(crate) fn runtime(self: &Arc<Self>, process: usize) -> Arc<dyn Runtime> {
        Arc::new(ProcessRuntime {
            kernel: self.clone(),
            process,
        })
    }

    /// Ends the simulation: no thread continues once it waits.
    pub(crate) fn end(&self) {
        self.state().over = true;
    }
}

impl State {
    /// Has `event` happen at a time. Returns its place in the queue.
    fn push(&mut self, at: u64, event: Event) -> (u64, u64) {
        self.number += 1;
        let place = (at, self.number);
        self.queue.insert(place, event);
        place
    }

    /// Adds to the digest of the run.
    fn note(&mut self, kind: u64, what: u64) {
        for value in [kind, what, self.now] {
            self.trace = (self.trace ^ value).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Whether a thread continues by this wake-up. One of a stopped process does so later.
    fn may_run(&mut self, thread: usize, ticket: u64) -> bool {
        let of = &self.threads[thread];
        if of.ticket != ticket {
            return false;
        }
        let process = &mut self.processes[of.process];
        if process.stopped {
            process.deferred.push((thread, ticket));
        }
        if process.stopped || !process.alive {
            return false;
        }
        // A second wake-up for the same wait is void.
        self.threads[thread].ticket += 1;
        if let Some(deadline) = self.threads[thread].deadline.take() {
            self.queue.remove(&deadline);
        }
        self.note(3, thread as u64);
        true
    }
}

impl Process {
    /// What its clock shows at `time`.
    fn local(&self, time: u64) -> u64 {
        let fast = i128::from(time) * i128::from(self.drift) / 1_000_000_000;
        let local = i128::from(time) + fast + i128::from(self.offset);
        u64::try_from(local).unwrap_or(0)
    }

    /// When its clock shows `local`, or a little later.
    fn global(&self, local: u64) -> u64 {
        let since = i128::from(local) - i128::from(self.offset);
        let time = since * 1_000_000_000 / (1_000_000_000 + i128::from(self.drift)) + 2;
        u64::try_from(time).unwrap_or(0)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
