//! The arithmetic of reductions, as fast as memory allows.

pub(crate) mod conversion;

mod accumulator;
mod instruction_set;
mod kernel;

pub use self::accumulator::Accumulator;
pub use self::conversion::ConvertF16;

pub(crate) use self::accumulator::{Greatest, Least, Mean, Product, Sum, Swapped};
pub(crate) use self::instruction_set::InstructionSet;
pub(crate) use self::kernel::{Accumulate, Finish, Reduce, ReduceInPlace};
