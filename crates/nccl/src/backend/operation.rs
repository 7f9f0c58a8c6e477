//! What ranks call, and whether it can be.

use std::fmt;

use everburn_collectives::group::{Call, DType, Operation as Collective, ReduceOp, Signature};

use crate::foreign::DeviceBuffer;

/// One call of this rank.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_nccl as nccl; }
/// use everburn::collectives::group::ReduceOp;
/// use everburn::nccl::api::Operation;
/// use everburn_nccl_fake::FakeCluster;
///
/// let buffer = FakeCluster::new(1).allocate(0, &[1f32, 2.0]);
/// let sum = Operation::AllReduce { buffer, op: ReduceOp::Sum };
/// assert_eq!(sum.to_string(), "all_reduce(f32[2], sum)");
/// ```
#[derive(Debug, Clone)]
pub enum Operation {
    /// Combines all ranks' numbers, in place.
    AllReduce {
        /// The numbers.
        buffer: DeviceBuffer,
        /// How they are combined.
        op: ReduceOp,
    },
    /// Combines all ranks' numbers and gives each rank its part.
    ReduceScatter {
        /// A part for each rank.
        send: DeviceBuffer,
        /// This rank's part.
        receive: DeviceBuffer,
        /// How they are combined.
        op: ReduceOp,
    },
    /// Gives every rank the numbers of all.
    AllGather {
        /// This rank's numbers.
        send: DeviceBuffer,
        /// Room for those of all ranks.
        receive: DeviceBuffer,
    },
}

impl Operation {
    pub(crate) fn dtype(&self) -> DType {
        self.input().dtype()
    }

    /// As the group counts, records and names it.
    pub(crate) fn call(&self) -> Call {
        let (operation, op) = match self {
            Self::AllReduce { op, .. } => (Collective::AllReduce, Some(*op)),
            Self::ReduceScatter { op, .. } => (Collective::ReduceScatter, Some(*op)),
            Self::AllGather { .. } => (Collective::AllGather, None),
        };
        Call::Collective(Signature {
            operation,
            dtype: Some(self.dtype()),
            length: Some(self.input().len() as u64),
            op,
            root: None,
            algorithm: None,
        })
    }

    /// Whether there is nothing to move, on any rank that makes the same call.
    pub(crate) fn is_empty(&self) -> bool {
        self.input().is_empty()
    }

    fn input(&self) -> &DeviceBuffer {
        match self {
            Self::ReduceScatter { send, .. } | Self::AllGather { send, .. } => send,
            Self::AllReduce { buffer, .. } => buffer,
        }
    }

    fn buffers(&self) -> (&DeviceBuffer, Option<&DeviceBuffer>) {
        match self {
            Self::ReduceScatter { send, receive, .. } | Self::AllGather { send, receive } => {
                (send, Some(receive))
            }
            Self::AllReduce { buffer, .. } => (buffer, None),
        }
    }

    /// What is wrong with its buffers on this rank, if something is.
    pub(crate) fn fault(&self, rank: usize, world_size: usize) -> Option<String> {
        if let (send, Some(receive)) = self.buffers()
            && send.dtype() != receive.dtype()
        {
            let (from, to) = (send.dtype(), receive.dtype());
            return Some(format!("it would write {from} into {to}"));
        }
        self.wrong_lengths(world_size)
            .or_else(|| self.overlap(rank))
    }

    fn wrong_lengths(&self, world_size: usize) -> Option<String> {
        let (shorter, longer, times) = match self {
            Self::ReduceScatter { send, receive, .. } => (receive, send, world_size),
            Self::AllGather { send, receive } => (send, receive, world_size),
            Self::AllReduce { .. } => return None,
        };
        if shorter.len().checked_mul(times) == Some(longer.len()) {
            return None;
        }
        Some(format!(
            "with {world_size} ranks, {} numbers do not go with {}",
            shorter.len(),
            longer.len()
        ))
    }

    /// Input and output are the same memory, or nothing of it: in place, a rank's part is where it
    /// belongs in the whole.
    fn overlap(&self, rank: usize) -> Option<String> {
        let (send, Some(receive)) = self.buffers() else {
            return None;
        };
        let (from, to) = (send.bytes(), receive.bytes());
        if from.start >= to.end || to.start >= from.end {
            return None;
        }
        let at = |whole: &std::ops::Range<u64>, part: &std::ops::Range<u64>| {
            part.start == whole.start + rank as u64 * (part.end - part.start)
        };
        let in_place = match self {
            Self::ReduceScatter { .. } => at(&from, &to),
            _ => at(&to, &from),
        };
        (!in_place).then(|| "input and output share a part of their memory".to_owned())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.call().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn buffer(pointer: u64, len: usize, dtype: DType) -> DeviceBuffer {
        DeviceBuffer::imagined(pointer, len, dtype, ()).unwrap()
    }

    fn f32s(pointer: u64, len: usize) -> DeviceBuffer {
        buffer(pointer, len, DType::F32)
    }

    fn fault(operation: &Operation) -> String {
        operation.fault(1, 4).unwrap_or_default()
    }

    #[test]
    fn what_can_never_be_is_refused_with_the_reason() {
        let sum = ReduceOp::Sum;
        let (send, receive) = (f32s(4096, 8), f32s(8192, 3));
        let wrong = Operation::ReduceScatter {
            send: send.clone(),
            receive,
            op: sum,
        };
        assert_eq!(fault(&wrong), "with 4 ranks, 3 numbers do not go with 8");
        let receive = buffer(8192, 2, DType::I32);
        let wrong = Operation::ReduceScatter {
            send: send.clone(),
            receive: receive.clone(),
            op: sum,
        };
        assert_eq!(fault(&wrong), "it would write f32 into i32");
        let wrong = Operation::ReduceScatter {
            send: send.clone(),
            receive: f32s(4100, 2),
            op: sum,
        };
        assert_eq!(
            fault(&wrong),
            "input and output share a part of their memory"
        );
        let long = usize::MAX / 8;
        let wrong = Operation::AllGather {
            send: f32s(1, long),
            receive: f32s(1 << 62, long),
        };
        assert!(fault(&wrong).contains("do not go with"));
    }

    #[test]
    fn in_place_is_where_a_ranks_part_belongs() {
        let whole = f32s(4096, 16);
        let part = |rank: usize| whole.slice(rank * 4..rank * 4 + 4).unwrap();
        for rank in 0..4 {
            let gather = Operation::AllGather {
                send: part(rank),
                receive: whole.clone(),
            };
            assert_eq!(gather.fault(rank, 4), None);
            assert!(gather.fault((rank + 1) % 4, 4).is_some());
            let op = ReduceOp::Sum;
            let scatter = Operation::ReduceScatter {
                send: whole.clone(),
                receive: part(rank),
                op,
            };
            assert_eq!(scatter.fault(rank, 4), None);
        }
    }

    #[test]
    fn a_call_reads_as_it_was_made() {
        let gather = Operation::AllGather {
            send: f32s(4096, 3),
            receive: f32s(8192, 6),
        };
        assert_eq!(gather.to_string(), "all_gather(f32[3])");
        let sum = Operation::AllReduce {
            buffer: f32s(4096, 3),
            op: ReduceOp::Sum,
        };
        assert_eq!(sum.to_string(), "all_reduce(f32[3], sum)");
    }

    proptest! {
        #[test]
        fn gathering_takes_exactly_a_part_of_each_rank(
            len in 0usize..1000, whole in 0usize..4000, world_size in 1usize..9,
        ) {
            let operation = Operation::AllGather {
                send: f32s(1 << 20, len),
                receive: f32s(1 << 30, whole),
            };
            prop_assert_eq!(operation.fault(0, world_size).is_none(), len * world_size == whole);
        }
    }
}
