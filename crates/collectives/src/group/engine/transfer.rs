//! Transfers on one channel, as far as they can progress without waiting.

use std::ops::Range;

use super::header::HEADER_BYTES;
use super::task::{Action, Plan, Space, Task, allowed};
use crate::channel::{Channel, ChannelError};
use crate::group::element::Element;
use crate::group::reduce::ReduceOp;

/// The most bytes per step through shared memory. A block fits the L1 cache, so a reduced block is
/// forwarded from there, and the peer can read it while the next one is being written.
pub(super) const BLOCK: usize = 32 << 10;

/// The most bytes per step over TCP, where each step is a system call.
pub(super) const SOCKET_BLOCK: usize = 128 << 10;

/// The most slices per write: usually header, two tasks and padding.
const PIECES: usize = 8;

const ZEROS: [u8; 64] = [0; 64];

/// The memory that a collective works on.
pub(crate) struct Buffers<'b, T> {
    /// [`Space::Values`].
    pub(crate) values: &'b mut [T],
    /// [`Space::Input`], by rank.
    pub(crate) inputs: &'b [Vec<T>],
    /// [`Space::Output`], by rank.
    pub(crate) outputs: &'b mut [Vec<T>],
}

impl<T: Element> Buffers<'_, T> {
    fn bytes(&self, space: Space, range: Range<usize>) -> &[u8] {
        let values: &[T] = match space {
            Space::Values => self.values,
            Space::Input(rank) => &self.inputs[rank],
            Space::Output(rank) => &self.outputs[rank],
        };
        &bytemuck::cast_slice(values)[range]
    }

    fn bytes_mut(&mut self, space: Space, range: Range<usize>) -> &mut [u8] {
        let values: &mut [T] = match space {
            Space::Output(rank) => &mut self.outputs[rank],
            // Inputs are only ever sent.
            Space::Values | Space::Input(_) => self.values,
        };
        &mut bytemuck::cast_slice_mut(values)[range]
    }
}

/// Sends header, tasks and padding to `peer` as far as its channel has room. Returns the bytes sent.
pub(super) fn send<T: Element>(
    channel: &mut Channel,
    plan: &mut Plan,
    buffers: &Buffers<'_, T>,
    peer: usize,
    header: &[u8; HEADER_BYTES],
    block: usize,
) -> Result<usize, ChannelError> {
    let (tasks, gates, queue) = plan.sending(peer);
    queue.head(tasks);
    let mut pieces = [&[][..]; PIECES];
    let mut used = 0;
    let mut room = block;
    let mut all_tasks = true;
    if queue.header < HEADER_BYTES {
        pieces[0] = &header[queue.header..];
        used = 1;
    }
    for id in queue.waiting(tasks) {
        let task = &tasks[id as usize];
        let length = allowed(tasks, gates, id).min(room);
        let whole = length == task.length - task.done;
        if length > 0 && used < PIECES - 1 {
            let start = task.start + task.done;
            pieces[used] = buffers.bytes(task.space, start..start + length);
            used += 1;
            room -= length;
        } else {
            all_tasks = false;
            break;
        }
        if !whole {
            all_tasks = false;
            break;
        }
    }
    if all_tasks && queue.padding_left() > 0 {
        pieces[used] = &ZEROS[..queue.padding_left()];
        used += 1;
    }
    if used == 0 {
        return Ok(0);
    }
    let sent = channel.try_send(&pieces[..used])?;
    let mut left = sent;
    let mut take = |most: usize| {
        let taken = left.min(most);
        left -= taken;
        taken
    };
    queue.header += take(HEADER_BYTES - queue.header);
    while let Some(id) = queue.head(tasks) {
        let task = &mut tasks[id as usize];
        let taken = take(task.length - task.done);
        if taken == 0 {
            break;
        }
        task.done += taken;
    }
    queue.padding += take(queue.padding_left());
    Ok(sent)
}

/// Receives for the first unfinished task from `peer`. Returns the bytes received.
pub(super) fn receive<T: Element>(
    channels: &mut [Option<Channel>],
    plan: &mut Plan,
    buffers: &mut Buffers<'_, T>,
    scratch: &mut [u64],
    (rank, peer): (usize, usize),
    (op, block): (ReduceOp, usize),
) -> Result<usize, (usize, ChannelError)> {
    let Some(id) = plan.receiving(peer) else {
        return padding(channels, plan, peer).map_err(|error| (peer, error));
    };
    let length = plan.allowed(id).min(block);
    let task = plan.tasks[id as usize];
    if length == 0 {
        return Ok(0);
    }
    let start = task.start + task.done;
    let moved = match task.action {
        Action::Send => 0,
        Action::Copy => {
            let into = buffers.bytes_mut(task.space, start..start + length);
            channel(channels, peer)
                .try_recv(into)
                .map_err(|error| (peer, error))?
        }
        Action::Combine { own_first, last } => {
            let divide_by = (last && op == ReduceOp::Mean).then_some(channels.len());
            combine(
                channel(channels, peer),
                buffers,
                scratch,
                start..start + length,
                (op, own_first, divide_by),
            )
            .map_err(|error| (peer, error))?
        }
        Action::Reduce {
            target,
            offset,
            first,
            end,
            last,
            alone,
        } => {
            if !plan.can_read(id) {
                return Ok(0);
            }
            let reduction = Reduction {
                task,
                target,
                offset,
                op: match op {
                    ReduceOp::Mean if !last => ReduceOp::Sum,
                    op => op,
                },
                sources: plan.sources(first, end),
                alone,
                rank,
                length,
            };
            reduction.run(channels, buffers, scratch)?
        }
    };
    plan.tasks[id as usize].done += moved;
    Ok(moved)
}

/// The channel to `peer`, which is another rank.
fn channel(channels: &mut [Option<Channel>], peer: usize) -> &mut Channel {
    channels[peer]
        .as_mut()
        .expect("a channel to every other rank")
}

fn padding(
    channels: &mut [Option<Channel>],
    plan: &mut Plan,
    peer: usize,
) -> Result<usize, ChannelError> {
    let queue = &mut plan.receives[peer];
    let left = queue.padding_left();
    if left == 0 {
        return Ok(0);
    }
    let taken = channel(channels, peer).try_recv(&mut [0; 64][..left])?;
    queue.padding += taken;
    Ok(taken)
}

/// Reduces received bytes into the bytes `range` of the values.
fn combine<T: Element>(
    channel: &mut Channel,
    buffers: &mut Buffers<'_, T>,
    scratch: &mut [u64],
    range: Range<usize>,
    (op, own_first, divide_by): (ReduceOp, bool, Option<usize>),
) -> Result<usize, ChannelError> {
    let received = elements::<T>(channel.peek(range.len())?)?;
    let bytes = size_of_val(received);
    let own = buffers.bytes_mut(Space::Values, range.start..range.start + bytes);
    let own: &mut [T] = bytemuck::cast_slice_mut(own);
    if own_first {
        T::accumulate(op, own, received);
    } else {
        // Not with the operands of the same loop exchanged: of two NaN the processor keeps one by
        // its place, and the peer, for whom these are its own values, must get the same.
        let left = &mut bytemuck::cast_slice_mut::<u64, T>(scratch)[..received.len()];
        left.copy_from_slice(received);
        T::accumulate(op, left, own);
        own.copy_from_slice(left);
    }
    if let Some(ranks) = divide_by {
        T::finish_mean(own, ranks);
    }
    channel.consume(bytes);
    Ok(bytes)
}

/// The whole elements of a view. Messages begin aligned, and only whole elements are consumed.
fn elements<T: Element>(view: &[u8]) -> Result<&[T], ChannelError> {
    let whole = view.len() - view.len() % size_of::<T>();
    bytemuck::try_cast_slice(&view[..whole])
        .map_err(|_| ChannelError::new("it sent elements that are not aligned"))
}

/// One step of a reduction over several channels.
struct Reduction<'p> {
    task: Task,
    target: Space,
    offset: usize,
    op: ReduceOp,
    sources: &'p [usize],
    alone: bool,
    rank: usize,
    length: usize,
}

impl Reduction<'_> {
    fn run<T: Element>(
        &self,
        channels: &mut [Option<Channel>],
        buffers: &mut Buffers<'_, T>,
        scratch: &mut [u64],
    ) -> Result<usize, (usize, ChannelError)> {
        let mut length = self.length;
        // All of them, even where one has nothing: what a socket holds would end every sleep.
        for source in self.sources {
            let view = channel(channels, *source).peek(self.length);
            let view = view.map_err(|error| (*source, error))?;
            length = length.min(view.len() - view.len() % size_of::<T>());
        }
        if length == 0 {
            return Ok(0);
        }
        let start = self.task.start + self.task.done;
        let range = start / size_of::<T>()..(start + length) / size_of::<T>();
        let views = self.views::<T>(channels, length)?;
        let Buffers {
            values, outputs, ..
        } = buffers;
        match self.target {
            Space::Output(rank) => {
                let shift = self.offset / size_of::<T>();
                let result = &mut outputs[rank][range.start - shift..range.end - shift];
                self.combine(&values[range], &views, result);
            }
            _ if self.alone => {
                let own_rank = self
                    .sources
                    .iter()
                    .filter(|source| **source < self.rank)
                    .count();
                T::reduce_in_place_in_rank_order(self.op, &mut values[range], own_rank, &views);
            }
            _ => {
                // The same loop with the operands in the same places on all ranks: of two NaN the
                // processor keeps one by its place.
                let own = &mut bytemuck::cast_slice_mut::<u64, T>(scratch)[..range.len()];
                own.copy_from_slice(&values[range.clone()]);
                self.combine(own, &views, &mut values[range]);
            }
        }
        for source in self.sources {
            channel(channels, *source).consume(length);
        }
        Ok(length)
    }

    /// What the sources have sent, in rank order.
    fn views<'l, T: Element>(
        &self,
        channels: &'l mut [Option<Channel>],
        length: usize,
    ) -> Result<Vec<&'l [T]>, (usize, ChannelError)> {
        let mut views = Vec::with_capacity(self.sources.len() + 1);
        for (peer, channel) in channels.iter_mut().enumerate() {
            let Some(channel) = channel.as_mut().filter(|_| self.sources.contains(&peer)) else {
                continue;
            };
            let view = channel.peek(length).and_then(elements::<T>);
            let view = view.map_err(|error| (peer, error))?;
            views.push(&view[..length / size_of::<T>()]);
        }
        Ok(views)
    }

    /// Combines `own`, at its place among the others, into `result`.
    fn combine<T: Element>(&self, own: &[T], others: &[&[T]], result: &mut [T]) {
        let before = self
            .sources
            .iter()
            .filter(|source| **source < self.rank)
            .count();
        let mut contributions = Vec::with_capacity(others.len() + 1);
        contributions.extend_from_slice(&others[..before]);
        contributions.push(own);
        contributions.extend_from_slice(&others[before..]);
        T::reduce_in_rank_order(self.op, &contributions, result);
    }
}
