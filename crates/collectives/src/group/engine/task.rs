//! The plan of one collective: its transfers and reductions, and their order.
//!
//! A [`Plan`] is a list of tasks. Each channel has a send queue and a receive queue of tasks, in the
//! order of the bytes on it. A task may be gated by other tasks on the same elements: it never overtakes
//! them. So a collective streams, without separate phases.

use std::ops::Range;

use super::header::HEADER_BYTES;

/// Messages on a channel begin at multiples of this, so that received elements are aligned and
/// begin a cache line.
pub(crate) const ALIGNMENT: usize = 64;

/// A task, by its place in the plan.
pub(crate) type TaskId = u32;

/// Where the elements of a task are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// The caller's values, in place.
    Values,
    /// The list that is meant for a rank.
    Input(usize),
    /// The list that comes from a rank.
    Output(usize),
}

/// What a task does with its elements.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    /// Sends them.
    Send,
    /// Replaces them by what is received.
    Copy,
    /// Combines them with what is received.
    Combine {
        /// This rank's values are the left operand, the received ones the right.
        own_first: bool,
        /// This is the last of the contributions: a mean is divided here.
        last: bool,
    },
    /// Combines them with what several ranks send, in rank order.
    Reduce {
        /// Where the result goes.
        target: Space,
        /// What to subtract from a position among the values for that in the target, in bytes.
        offset: usize,
        /// The ranks, as a range of [`Plan::sources`].
        first: u32,
        end: u32,
        /// A mean is divided here.
        last: bool,
        /// No other rank computes these elements.
        alone: bool,
    },
}

/// A run of elements and what is done with them; positions in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    pub(crate) action: Action,
    pub(crate) space: Space,
    pub(crate) start: usize,
    pub(crate) length: usize,
    /// How far it has come.
    pub(crate) done: usize,
    first_gate: u32,
    end_gate: u32,
}

impl Task {
    pub(crate) const fn is_done(&self) -> bool {
        self.done == self.length
    }
}

/// One direction of a channel.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    tasks: Vec<TaskId>,
    at: usize,
    /// How many bytes all tasks have together.
    pub(crate) bytes: usize,
    /// How many bytes of the header have been moved, and of the padding after the tasks.
    pub(crate) header: usize,
    pub(crate) padding: usize,
    /// The header has been read, and elements follow.
    pub(crate) is_open: bool,
}

impl Queue {
    fn reset(&mut self) {
        self.tasks.clear();
        (self.at, self.bytes, self.header, self.padding) = (0, 0, 0, 0);
        self.is_open = false;
    }

    fn push(&mut self, task: TaskId, bytes: usize) {
        self.tasks.push(task);
        self.bytes += bytes;
    }

    /// The first task that is not done.
    pub(crate) fn head(&mut self, tasks: &[Task]) -> Option<TaskId> {
        while let Some(task) = self.tasks.get(self.at) {
            if !tasks[*task as usize].is_done() {
                return Some(*task);
            }
            self.at += 1;
        }
        None
    }

    /// As [`Queue::head`], without forgetting tasks that are done.
    pub(crate) fn waiting(&self, tasks: &[Task]) -> impl Iterator<Item = TaskId> {
        let open = |task: &TaskId| !tasks[*task as usize].is_done();
        self.tasks[self.at..].iter().copied().filter(open)
    }

    /// How many bytes follow the tasks, so that the next message is aligned.
    pub(crate) const fn padding_left(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT) - self.bytes - self.padding
    }

    /// Whether the header, all tasks and the padding have been moved.
    pub(crate) fn is_done(&mut self, tasks: &[Task]) -> bool {
        self.header == HEADER_BYTES && self.head(tasks).is_none() && self.padding_left() == 0
    }
}

/// All tasks of one collective on this rank. Its memory is used again for the next one.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    element: usize,
    pub(crate) tasks: Vec<Task>,
    gates: Vec<TaskId>,
    sources: Vec<usize>,
    /// By group rank; that of this rank stays empty.
    pub(crate) sends: Vec<Queue>,
    pub(crate) receives: Vec<Queue>,
}

impl Plan {
    /// Forgets everything; `ranks` take part and elements have `element` bytes.
    pub(crate) fn reset(&mut self, ranks: usize, element: usize) {
        self.element = element;
        self.tasks.clear();
        self.gates.clear();
        self.sources.clear();
        for queues in [&mut self.sends, &mut self.receives] {
            queues.resize_with(ranks, Queue::default);
            queues.iter_mut().for_each(Queue::reset);
        }
    }

    fn add(&mut self, action: Action, space: Space, range: Range<usize>) -> TaskId {
        let gates = self.gates.len() as u32;
        self.tasks.push(Task {
            action,
            space,
            start: range.start * self.element,
            length: range.len() * self.element,
            done: 0,
            first_gate: gates,
            end_gate: gates,
        });
        self.tasks.len() as TaskId - 1
    }

    pub(crate) fn send(&mut self, to: usize, space: Space, range: Range<usize>) -> TaskId {
        let bytes = range.len() * self.element;
        let task = self.add(Action::Send, space, range);
        self.sends[to].push(task, bytes);
        task
    }

    /// Receives the elements `range` of `space` from rank `from`.
    pub(crate) fn copy(&mut self, from: usize, space: Space, range: Range<usize>) -> TaskId {
        let bytes = range.len() * self.element;
        let task = self.add(Action::Copy, space, range);
        self.receives[from].push(task, bytes);
        task
    }

    /// Combines the values `range` with the values that rank `from` sends.
    pub(crate) fn combine(
        &mut self,
        from: usize,
        range: Range<usize>,
        own_first: bool,
        last: bool,
    ) -> TaskId {
        let bytes = range.len() * self.element;
        let action = Action::Combine { own_first, last };
        let task = self.add(action, Space::Values, range);
        self.receives[from].push(task, bytes);
        task
    }

    /// Combines the values `range` with the values that the ranks `from` send, into `target` from
    /// its element `at`. `last`: a mean is divided here; `alone`: no other rank computes these
    /// elements too.
    pub(crate) fn reduce(
        &mut self,
        from: impl Iterator<Item = usize>,
        range: Range<usize>,
        (target, at): (Space, usize),
        (last, alone): (bool, bool),
    ) -> TaskId {
        let bytes = range.len() * self.element;
        let first = self.sources.len() as u32;
        self.sources.extend(from);
        let end = self.sources.len() as u32;
        let action = Action::Reduce {
            target,
            offset: (range.start - at) * self.element,
            first,
            end,
            last,
            alone,
        };
        let task = self.add(action, Space::Values, range);
        for source in first..end {
            self.receives[self.sources[source as usize]].push(task, bytes);
        }
        task
    }

    /// The last task that was added may only come as far as `task` has come among the elements
    /// that both touch.
    pub(crate) fn after(&mut self, task: TaskId) {
        if let Some(last) = self.tasks.last_mut() {
            self.gates.push(task);
            last.end_gate = self.gates.len() as u32;
        }
    }

    /// The ranks that the reduction `first..end` hears, in the order given.
    pub(crate) fn sources(&self, first: u32, end: u32) -> &[usize] {
        &self.sources[first as usize..end as usize]
    }

    /// How many more bytes of `task` its gates let through.
    pub(crate) fn allowed(&self, task: TaskId) -> usize {
        allowed(&self.tasks, &self.gates, task)
    }

    /// Whether all ranks that `task` hears have come to it, if it hears several.
    pub(crate) fn can_read(&mut self, task: TaskId) -> bool {
        let Action::Reduce { first, end, .. } = self.tasks[task as usize].action else {
            return true;
        };
        (first..end).all(|at| {
            let source = self.sources[at as usize];
            self.is_next(source, task)
        })
    }

    /// Whether elements of `task` are what comes next from `peer`.
    fn is_next(&mut self, peer: usize, task: TaskId) -> bool {
        self.receives[peer].is_open && self.receiving(peer) == Some(task)
    }

    /// The parts of a plan that sending to `peer` needs.
    pub(crate) fn sending(&mut self, peer: usize) -> (&mut Vec<Task>, &[TaskId], &mut Queue) {
        (&mut self.tasks, &self.gates, &mut self.sends[peer])
    }

    /// The first task that is not done of what is received from `peer`.
    pub(crate) fn receiving(&mut self, peer: usize) -> Option<TaskId> {
        self.receives[peer].head(&self.tasks)
    }

    /// Whether more bytes of `peer` are useful now. They are not if a block is buffered already and its
    /// task is gated by others.
    pub(super) fn wants_more(&mut self, peer: usize, buffered: usize, block: usize) -> bool {
        let queue = &self.receives[peer];
        if queue.header < HEADER_BYTES {
            return true;
        }
        if !queue.is_open {
            // The peer called another operation.
            return false;
        }
        match self.receiving(peer) {
            // This channel is not read before the other sources reach the same task. Polling it would end
            // every sleep at once.
            Some(task) if !self.can_read(task) => false,
            Some(task) => {
                let allowed = self.allowed(task);
                allowed > 0 && buffered < allowed.min(block)
            }
            None => true,
        }
    }

    /// Whether bytes are left to send to `peer` now.
    pub(super) fn has_more(&mut self, peer: usize) -> bool {
        let (tasks, _, queue) = self.sending(peer);
        if queue.header < HEADER_BYTES {
            return true;
        }
        match queue.head(tasks) {
            Some(task) => self.allowed(task) > 0,
            None => true,
        }
    }
}

/// How many more bytes of `task` its gates let through.
pub(crate) fn allowed(tasks: &[Task], gates: &[TaskId], task: TaskId) -> usize {
    let task = &tasks[task as usize];
    let mut limit = task.length;
    for gate in &gates[task.first_gate as usize..task.end_gate as usize] {
        let gate = &tasks[*gate as usize];
        if !gate.is_done() {
            limit = limit.min((gate.start + gate.done).saturating_sub(task.start));
        }
    }
    limit.saturating_sub(task.done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_holds_back_what_both_touch() {
        let mut plan = Plan::default();
        plan.reset(3, 4);
        let first = plan.copy(1, Space::Values, 10..20);
        let send = plan.send(2, Space::Values, 5..20);
        plan.after(first);
        assert_eq!(plan.allowed(send), 20, "the elements before the gate");
        plan.tasks[first as usize].done = 8;
        assert_eq!(plan.allowed(send), 28);
        plan.tasks[send as usize].done = 28;
        assert_eq!(plan.allowed(send), 0);
        plan.tasks[first as usize].done = 40;
        assert_eq!(plan.allowed(send), 32);
    }

    #[test]
    fn a_queue_ends_with_padding() {
        let mut plan = Plan::default();
        plan.reset(2, 1);
        plan.send(1, Space::Values, 0..0);
        let task = plan.send(1, Space::Values, 0..65);
        let queue = &mut plan.sends[1];
        queue.header = HEADER_BYTES;
        assert_eq!(queue.head(&plan.tasks), Some(task));
        assert_eq!(queue.padding_left(), 63);
        plan.tasks[task as usize].done = 65;
        assert!(!queue.is_done(&plan.tasks));
        queue.padding = 63;
        assert!(queue.is_done(&plan.tasks));
    }
}
