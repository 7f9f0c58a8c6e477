//! What a rank called, in a form that all ranks compare.

use std::fmt;

use super::algorithm::Algorithm;
use super::element::{DType, Element};
use super::names::names;
use super::options::GroupOptions;
use super::reduce::ReduceOp;
use crate::fields::field;

/// The collectives.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::Operation;
///
/// assert_eq!(Operation::AllGatherVaried.name(), "all_gather_varied");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`super::ProcessGroup::all_reduce`].
    AllReduce,
    /// [`super::ProcessGroup::broadcast`].
    Broadcast,
    /// [`super::ProcessGroup::reduce`].
    Reduce,
    /// [`super::ProcessGroup::all_gather`].
    AllGather,
    /// [`super::ProcessGroup::all_gather_varied`].
    AllGatherVaried,
    /// [`super::ProcessGroup::gather`].
    Gather,
    /// [`super::ProcessGroup::scatter`].
    Scatter,
    /// [`super::ProcessGroup::reduce_scatter`].
    ReduceScatter,
    /// [`super::ProcessGroup::all_to_all`].
    AllToAll,
    /// [`super::ProcessGroup::barrier`].
    Barrier,
    /// [`super::ProcessGroup::subgroup`].
    Subgroup,
}

impl Operation {
    /// Whether there is a choice of algorithms.
    pub(crate) const fn has_algorithms(self) -> bool {
        matches!(self, Self::AllReduce | Self::Broadcast | Self::Reduce)
    }
}

names!(Operation {
    AllReduce: "all_reduce",
    Broadcast: "broadcast",
    Reduce: "reduce",
    AllGather: "all_gather",
    AllGatherVaried: "all_gather_varied",
    Gather: "gather",
    Scatter: "scatter",
    ReduceScatter: "reduce_scatter",
    AllToAll: "all_to_all",
    Barrier: "barrier",
    Subgroup: "subgroup",
});

/// Everything that must be the same on all ranks for one collective to make sense.
///
/// Each rank sends its signature to each other rank and compares all of them, so all ranks reach
/// the same verdict. What may differ (a length in [`Operation::AllGatherVaried`]) is `None`.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{DType, Operation, ReduceOp, Signature};
///
/// let signature = Signature {
///     operation: Operation::AllReduce,
///     dtype: Some(DType::F32),
///     length: Some(10),
///     op: Some(ReduceOp::Sum),
///     root: None,
///     algorithm: None,
/// };
/// assert_eq!(signature.to_string(), "all_reduce(f32[10], sum)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The collective.
    pub operation: Operation,
    /// The type of the elements.
    pub dtype: Option<DType>,
    /// How many elements each rank gives.
    pub length: Option<u64>,
    /// The reduction.
    pub op: Option<ReduceOp>,
    /// The root, as a rank of the group.
    pub root: Option<u32>,
    /// How the result is computed, where there is a choice.
    pub algorithm: Option<Algorithm>,
}

pub(crate) const SIGNATURE_BYTES: usize = 20;

/// The code of a field that is `None`.
const NONE: u8 = u8::MAX;

impl Signature {
    pub(crate) const fn new(operation: Operation) -> Self {
        Self {
            operation,
            dtype: None,
            length: None,
            op: None,
            root: None,
            algorithm: None,
        }
    }

    pub(crate) const fn of<T: Element>(mut self) -> Self {
        self.dtype = Some(T::DTYPE);
        self
    }

    pub(crate) const fn length(mut self, length: usize) -> Self {
        self.length = Some(length as u64);
        self
    }

    pub(crate) const fn op(mut self, op: ReduceOp) -> Self {
        self.op = Some(op);
        self
    }

    pub(crate) fn root(mut self, root: usize) -> Self {
        // No group has that many ranks.
        self.root = Some(u32::try_from(root).unwrap_or(u32::MAX));
        self
    }

    /// Names the algorithm where one is asked for. Else it is chosen when the collective's turn
    /// has come, and the way between the ranks is known.
    pub(crate) fn under(mut self, options: &GroupOptions) -> Self {
        let given = options.algorithm;
        self.algorithm = given.map(|given| options.restrict(self.operation, given));
        self
    }

    pub(crate) fn encode(&self) -> [u8; SIGNATURE_BYTES] {
        let mut bytes = [0; SIGNATURE_BYTES];
        bytes[0] = self.operation.code();
        bytes[1] = self.dtype.map_or(NONE, DType::code);
        bytes[2] = self.op.map_or(NONE, ReduceOp::code);
        bytes[3] = self.algorithm.map_or(NONE, Algorithm::code);
        bytes[4..8].copy_from_slice(&self.root.unwrap_or(u32::MAX).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.unwrap_or(u64::MAX).to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; SIGNATURE_BYTES]) -> Result<Self, String> {
        fn known<T>(code: u8, what: &str, of: fn(u8) -> Option<T>) -> Result<Option<T>, String> {
            if code == NONE {
                return Ok(None);
            }
            of(code)
                .map(Some)
                .ok_or_else(|| format!("no {what} has the code {code}"))
        }
        let operation = Operation::from_code(bytes[0])
            .ok_or_else(|| format!("no operation has the code {}", bytes[0]))?;
        let root = u32::from_le_bytes(field(bytes, 4));
        let length = u64::from_le_bytes(field(bytes, 8));
        Ok(Self {
            operation,
            dtype: known(bytes[1], "type", DType::from_code)?,
            op: known(bytes[2], "reduction", ReduceOp::from_code)?,
            algorithm: known(bytes[3], "algorithm", Algorithm::from_code)?,
            root: (root != u32::MAX).then_some(root),
            length: (length != u64::MAX).then_some(length),
        })
    }
}

/// `all_reduce(f32[10], sum)`; the alternate form adds the algorithm.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut arguments = Vec::new();
        match (self.dtype, self.length) {
            (Some(dtype), Some(length)) => arguments.push(format!("{dtype}[{length}]")),
            (Some(dtype), None) => arguments.push(dtype.to_string()),
            _ => {}
        }
        arguments.extend(self.op.map(|op| op.to_string()));
        arguments.extend(self.root.map(|root| format!("root {root}")));
        if f.alternate() {
            arguments.extend(
                self.algorithm
                    .map(|algorithm| format!("{algorithm} algorithm")),
            );
        }
        f.write_str(self.operation.name())?;
        if !arguments.is_empty() {
            write!(f, "({})", arguments.join(", "))?;
        }
        Ok(())
    }
}

/// One call of this rank, as errors name it. Ranks in it are ranks of the group.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{Call, DType};
///
/// let call = Call::Recv { dtype: DType::F32, from: 2, tag: 0 };
/// assert_eq!(call.to_string(), "recv(f32, from 2, tag 0)");
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Call {
    /// One of all ranks.
    Collective(Signature),
    /// A message to another rank.
    Send {
        /// The type of the elements.
        dtype: DType,
        /// How many.
        length: usize,
        /// The receiver.
        to: usize,
        /// The message's tag.
        tag: u64,
    },
    /// A message from another rank.
    Recv {
        /// The type of the elements.
        dtype: DType,
        /// The sender.
        from: usize,
        /// The message's tag.
        tag: u64,
    },
    /// Something else that this rank does, by its name.
    Named(&'static str),
}

impl Call {
    /// The other rank of a message, as a rank of the group.
    pub(crate) const fn peer(&self) -> Option<usize> {
        match self {
            Self::Collective(_) | Self::Named(_) => None,
            Self::Send { to: peer, .. } | Self::Recv { from: peer, .. } => Some(*peer),
        }
    }

    /// Refuses what can never succeed in a group of `size` ranks.
    pub(super) fn check(&self, size: usize) -> Result<(), String> {
        let (root, reduction) = match self {
            Self::Collective(signature) => (signature.root, signature.op.zip(signature.dtype)),
            _ => (None, None),
        };
        let other = root.map_or_else(|| self.peer(), |root| Some(root as usize));
        if let Some(rank) = other {
            check_rank(rank, size)?;
        }
        match reduction.filter(|(op, dtype)| !op.supports(*dtype)) {
            None => Ok(()),
            Some((op, dtype)) => Err(format!(
                "{op} does not exist for {dtype}; sum and divide, or convert first"
            )),
        }
    }

    /// How many bytes this rank gives, where the call says so.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let (dtype, length) = match self {
            Self::Collective(signature) => (signature.dtype?, signature.length?),
            Self::Send { dtype, length, .. } => (*dtype, *length as u64),
            Self::Recv { .. } | Self::Named(_) => return None,
        };
        Some(length.saturating_mul(dtype.size() as u64))
    }
}

/// Refuses a rank that a group of `size` ranks does not have.
pub(super) fn check_rank(rank: usize, size: usize) -> Result<(), String> {
    match rank < size {
        true => Ok(()),
        false => Err(format!("rank {rank} does not exist in a group of {size}")),
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collective(signature) => signature.fmt(f),
            Self::Send {
                dtype,
                length,
                to,
                tag,
            } => {
                write!(f, "send({dtype}[{length}], to {to}, tag {tag})")
            }
            Self::Recv { dtype, from, tag } => write!(f, "recv({dtype}, from {from}, tag {tag})"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_survives_the_wire() {
        for operation in Operation::ALL {
            let plain = Signature::new(operation);
            let full = plain.of::<f32>().length(3).op(ReduceOp::Max).root(2);
            let options = GroupOptions {
                algorithm: Some(Algorithm::Direct),
                ..GroupOptions::default()
            };
            for signature in [plain, full, full.under(&options)] {
                assert_eq!(Signature::decode(&signature.encode()), Ok(signature));
            }
        }
    }

    #[test]
    fn unknown_codes_are_refused() {
        let good = Signature::new(Operation::Barrier).encode();
        for place in 0..4 {
            let mut bad = good;
            bad[place] = 100;
            assert!(Signature::decode(&bad).is_err());
        }
    }

    #[test]
    fn a_call_reads_as_it_was_written() {
        let call = Signature::new(Operation::AllReduce)
            .of::<f32>()
            .length(10)
            .op(ReduceOp::Sum);
        assert_eq!(call.to_string(), "all_reduce(f32[10], sum)");
        assert_eq!(Signature::new(Operation::Barrier).to_string(), "barrier");
        let call = Signature::new(Operation::Scatter).of::<u8>().root(3);
        assert_eq!(call.to_string(), "scatter(u8, root 3)");
    }
}
