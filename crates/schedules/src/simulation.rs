//! Runs a schedule without its model: when would each rank do what?
//!
//! Every rank works through its list. Before an action it waits for the message that the action
//! needs, after it it sends the one that the action yields. That is all there is to time: a rank's
//! clock only depends on its own list and on the messages that it gets, so ranks can be advanced in
//! any order, each as far as it comes. What is stuck when nobody can be advanced is a deadlock.
//!
//! The cost is proportional to the number of actions.

use std::collections::{HashMap, VecDeque};

use crate::{
    Action, Awaited, Costs, Deadlock, Message, Pass, Schedule, Sends, Span, Timeline, Wait,
};

/// When each rank does what, if passes and transfers take as long as `costs` say.
///
/// # Errors
/// [`SimulationError::Deadlock`] if the ranks wait for each other (a [`Schedule`] never does with
/// [`Sends::Buffered`]); the other variants if `costs` are not those of this schedule's stages.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Costs, Schedule, ScheduleKind, simulate};
///
/// let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 4, 8, 1)?;
/// let timeline = simulate(&schedule, &Costs::equal(4))?;
/// assert_eq!(timeline.makespan(), (8 + 3) as f64 * 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn simulate(schedule: &Schedule, costs: &Costs) -> Result<Timeline, SimulationError> {
    costs.check_stages_of(schedule)?;
    for (stage, costs) in costs.stages.iter().enumerate() {
        let bad = |(_, seconds): &(&str, f64)| !(seconds.is_finite() && *seconds >= 0.0);
        if let Some((field, seconds)) = costs.times().into_iter().find(bad) {
            return Err(SimulationError::NotATime {
                stage,
                field,
                seconds,
            });
        }
    }
    let spans = Simulation::new(schedule, costs).run()?;
    Ok(Timeline::new(schedule, costs, spans))
}

/// Why there is no [`Timeline`].
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Costs, Schedule, ScheduleKind, simulate};
///
/// let schedule = Schedule::new(ScheduleKind::GPipe, 4, 8, 1)?;
/// let error = simulate(&schedule, &Costs::equal(3)).unwrap_err();
/// assert_eq!(error.to_string(), "the schedule has 4 stages, but there are costs of 3");
/// # Ok::<(), everburn_schedules::ScheduleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The costs are those of another number of stages.
    #[error("the schedule has {schedule} stages, but there are costs of {costs}")]
    OtherStages {
        /// How many stages the schedule has.
        schedule: usize,
        /// How many stages there are costs of.
        costs: usize,
    },
    /// A time that no clock shows.
    #[error("`{field}` of stage {stage} is {seconds} s: it must be finite and not negative")]
    NotATime {
        /// The stage.
        stage: usize,
        /// The field of [`StageCosts`](crate::StageCosts).
        field: &'static str,
        /// Its value.
        seconds: f64,
    },
    /// The ranks wait for each other.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
}

/// Whether the lists can be executed without a deadlock, if sends do not block.
pub(crate) fn check_order(schedule: &Schedule) -> Result<(), Deadlock> {
    let costs = Costs::equal(schedule.stages());
    Simulation::new(schedule, &costs).run().map(|_| ())
}

/// How far a rank is in its list.
#[derive(Clone, Copy)]
struct RankProgress {
    position: usize,
    step: Step,
    /// When it got here, in seconds.
    clock: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Receive,
    Compute,
    Send,
}

struct Simulation<'a> {
    schedule: &'a Schedule,
    costs: &'a Costs,
    ranks: Vec<RankProgress>,
    spans: Vec<Vec<Span>>,
    /// Actions done, by stage and micro-batch: forward, gradients of inputs.
    forward_done: Vec<bool>,
    gradient_done: Vec<bool>,
    arrivals: HashMap<Message, f64>,
    /// Until when the link from one rank to another is busy.
    busy_until: HashMap<(usize, usize), f64>,
    /// Ranks that may be able to continue.
    ready: VecDeque<usize>,
}

impl<'a> Simulation<'a> {
    fn new(schedule: &'a Schedule, costs: &'a Costs) -> Self {
        let start = RankProgress {
            position: 0,
            step: Step::Receive,
            clock: 0.0,
        };
        let cells = schedule.stages() * schedule.micro_batches();
        Self {
            schedule,
            costs,
            ranks: vec![start; schedule.ranks()],
            spans: vec![Vec::new(); schedule.ranks()],
            forward_done: vec![false; cells],
            gradient_done: vec![false; cells],
            arrivals: HashMap::new(),
            busy_until: HashMap::new(),
            ready: (0..schedule.ranks()).collect(),
        }
    }

    fn run(mut self) -> Result<Vec<Vec<Span>>, Deadlock> {
        while let Some(rank) = self.ready.pop_front() {
            while self.advance(rank) {}
        }
        let waits: Vec<Wait> = (0..self.ranks.len())
            .filter_map(|rank| self.wait_of(rank))
            .collect();
        if waits.is_empty() {
            Ok(self.spans)
        } else {
            Err(Deadlock::among(waits))
        }
    }

    /// The action that `rank` is at, unless it is at its end.
    fn action(&self, rank: usize) -> Option<Action> {
        let position = self.ranks[rank].position;
        self.schedule.actions(rank).get(position).copied()
    }

    /// Takes one step of `rank`. `false` if it has to wait or is at its end.
    fn advance(&mut self, rank: usize) -> bool {
        let Some(action) = self.action(rank) else {
            return false;
        };
        match self.ranks[rank].step {
            Step::Receive => self.receive(rank, action),
            Step::Compute => {
                self.compute(rank, action);
                true
            }
            Step::Send => self.send(rank, action),
        }
    }

    fn receive(&mut self, rank: usize, action: Action) -> bool {
        if self.awaited_of_itself(action).is_some() {
            return false;
        }
        if let Some(message) = self.schedule.receives(action) {
            match self.costs.sends {
                Sends::Buffered => {
                    let Some(arrival) = self.arrivals.remove(&message) else {
                        return false;
                    };
                    let clock = &mut self.ranks[rank].clock;
                    *clock = clock.max(arrival);
                }
                // The sender takes both on, if it is there.
                Sends::Blocking => return self.hand_over(message),
            }
        }
        self.ranks[rank].step = Step::Compute;
        true
    }

    fn compute(&mut self, rank: usize, action: Action) {
        let costs = &self.costs.stages[action.stage()];
        let seconds = match action.pass() {
            Pass::Forward => costs.forward,
            Pass::Backward => costs.backward(),
            Pass::BackwardInput => costs.backward_input,
            Pass::BackwardWeight => costs.backward_weight,
        };
        let cell = self.cell(action.micro_batch(), action.stage());
        match action.pass() {
            Pass::Forward => self.forward_done[cell] = true,
            Pass::Backward | Pass::BackwardInput => self.gradient_done[cell] = true,
            Pass::BackwardWeight => {}
        }
        let standing = &mut self.ranks[rank];
        let start = standing.clock;
        let end = start + seconds;
        standing.clock = end;
        standing.step = Step::Send;
        self.spans[rank].push(Span { action, start, end });
    }

    fn send(&mut self, rank: usize, action: Action) -> bool {
        if let Some(message) = self.schedule.sends(action) {
            match self.costs.sends {
                Sends::Buffered => {
                    let way = (message.from_rank, message.to_rank);
                    let busy_until = self.busy_until.entry(way).or_default();
                    let start = self.ranks[rank].clock.max(*busy_until);
                    let arrival = start + transfer(self.costs, &message);
                    *busy_until = arrival;
                    self.arrivals.insert(message, arrival);
                    self.ready.push_back(message.to_rank);
                }
                Sends::Blocking => return self.hand_over(message),
            }
        }
        self.ranks[rank].next_action();
        true
    }

    /// A blocking send and its receive, if both ranks are there. Both continue then.
    fn hand_over(&mut self, message: Message) -> bool {
        let Message {
            from_rank, to_rank, ..
        } = message;
        let at = |rank: usize, step| self.ranks[rank].step == step;
        let sent = self.action(from_rank).and_then(|a| self.schedule.sends(a));
        let taken = self.action(to_rank).and_then(|a| self.schedule.receives(a));
        let both_are_there = at(from_rank, Step::Send)
            && at(to_rank, Step::Receive)
            && sent == Some(message)
            && taken == Some(message);
        if !both_are_there {
            return false;
        }
        let start = self.ranks[from_rank].clock.max(self.ranks[to_rank].clock);
        let end = start + transfer(self.costs, &message);
        self.ranks[from_rank].clock = end;
        self.ranks[from_rank].next_action();
        self.ranks[to_rank].clock = end;
        self.ranks[to_rank].step = Step::Compute;
        self.ready.extend([from_rank, to_rank]);
        true
    }

    fn wait_of(&self, rank: usize) -> Option<Wait> {
        let action = self.action(rank)?;
        let awaited = if self.ranks[rank].step == Step::Send {
            Awaited::Taken(self.schedule.sends(action)?)
        } else if let Some(other) = self.awaited_of_itself(action) {
            Awaited::Own(other)
        } else {
            Awaited::Received(self.schedule.receives(action)?)
        };
        let position = self.ranks[rank].position;
        Some(Wait {
            rank,
            position,
            action,
            awaited,
        })
    }

    /// What `action` needs that the same rank has not done yet, and, as it is at `action`, will
    /// never do.
    fn awaited_of_itself(&self, action: Action) -> Option<Action> {
        let (micro_batch, stage) = (action.micro_batch(), action.stage());
        let same_rank = |other| self.schedule.rank_of(other) == self.schedule.rank_of(stage);
        let forward = |stage| Action::Forward { micro_batch, stage };
        let needs_forward =
            |stage| (!self.forward_done[self.cell(micro_batch, stage)]).then(|| forward(stage));
        let needs_gradient = |stage| {
            let done = self.gradient_done[self.cell(micro_batch, stage)];
            (!done).then(|| self.yields_gradient(micro_batch, stage))
        };
        match action.pass() {
            Pass::Forward => {
                let before = stage.checked_sub(1).filter(|before| same_rank(*before));
                before.and_then(needs_forward)
            }
            Pass::Backward | Pass::BackwardInput => needs_forward(stage).or_else(|| {
                let behind = Some(stage + 1).filter(|behind| *behind < self.schedule.stages());
                behind
                    .filter(|behind| same_rank(*behind))
                    .and_then(needs_gradient)
            }),
            Pass::BackwardWeight => needs_gradient(stage),
        }
    }

    /// The action by which this schedule computes the gradient of a stage's input.
    fn yields_gradient(&self, micro_batch: usize, stage: usize) -> Action {
        let whole = Action::Backward { micro_batch, stage };
        let list = self.schedule.actions(self.schedule.rank_of(stage));
        if list.contains(&whole) {
            whole
        } else {
            Action::BackwardInput { micro_batch, stage }
        }
    }

    fn cell(&self, micro_batch: usize, stage: usize) -> usize {
        stage * self.schedule.micro_batches() + micro_batch
    }
}

impl RankProgress {
    fn next_action(&mut self) {
        self.position += 1;
        self.step = Step::Receive;
    }
}

/// What the output of a stage needs, and the gradient of it on its way back.
fn transfer(costs: &Costs, message: &Message) -> f64 {
    costs.stages[message.cut()].transfer
}
