//! What a caller can get wrong.

use thiserror::Error;

/// Why a kernel does not run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A count that must be at least one is zero.
    #[error("{operation}: {what} is zero, but must be at least 1")]
    Zero {
        /// The operation.
        operation: &'static str,
        /// What is zero.
        what: &'static str,
    },
    /// Channels that groups do not divide.
    #[error("{operation}: {channels} channels cannot be shared by {groups} groups")]
    Groups {
        /// The operation.
        operation: &'static str,
        /// Input or output channels.
        channels: usize,
        /// Groups.
        groups: usize,
    },
    /// A slice of another length than its shape says.
    #[error("{operation}: {what} holds {actual} values where the shape says {expected}")]
    Length {
        /// The operation.
        operation: &'static str,
        /// Which slice.
        what: &'static str,
        /// What the shape says.
        expected: usize,
        /// What the slice holds.
        actual: usize,
    },
    /// A shape whose element count does not fit the machine.
    #[error("{operation}: the shape has more elements than this machine can count")]
    Overflow {
        /// The operation.
        operation: &'static str,
    },
    /// Dilation where there is none.
    #[error("{operation}: averages have no dilation; set it to 1")]
    Dilated {
        /// The operation.
        operation: &'static str,
    },
    /// A class that is none.
    #[error("{operation}: class {target} is none of the {classes}, which are counted from 0")]
    Class {
        /// The operation.
        operation: &'static str,
        /// The class.
        target: i64,
        /// How many there are.
        classes: usize,
    },
    /// An index of a maximum outside its plane.
    #[error("{operation}: index {index} is outside a plane of {plane} values")]
    Index {
        /// The operation.
        operation: &'static str,
        /// The index.
        index: i64,
        /// How many values the plane has.
        plane: usize,
    },
}

/// Checks that `what` holds `expected` values.
pub(crate) fn check_length(
    operation: &'static str,
    what: &'static str,
    expected: usize,
    actual: usize,
) -> Result<(), KernelError> {
    if expected == actual {
        return Ok(());
    }
    Err(KernelError::Length {
        operation,
        what,
        expected,
        actual,
    })
}

/// The product of `factors`.
pub(crate) fn product(operation: &'static str, factors: &[usize]) -> Result<usize, KernelError> {
    factors
        .iter()
        .try_fold(1_usize, |product, &factor| product.checked_mul(factor))
        // Slices hold at most `isize::MAX` bytes.
        .filter(|&product| product <= isize::MAX as usize / size_of::<f64>())
        .ok_or(KernelError::Overflow { operation })
}
