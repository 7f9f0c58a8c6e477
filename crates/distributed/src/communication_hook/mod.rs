//! Communication hooks: how the gradients of a bucket become their sum over all ranks.
//!
//! A hook decides what travels. [`AllReduce`] sends the numbers as they are, [`Fp16`] and [`Bf16`]
//! round them to 16 bits, [`PowerSgd`] sends the factors of a low-rank approximation. All ranks
//! call the same hook with the same buckets in the same order, on one thread and over a process
//! group that nobody else uses; then all of them hold the same bits afterwards.
//!
//! With a bucket of `S` elements, bytes that one rank hands to collectives:
//!
//! | Hook | Collectives | Bytes |
//! |---|---|---|
//! | none | 1 | 4 S |
//! | fp16 | 1; the first step of a bucket, and where the half type could not hold the sum, f32 | 2 S |
//! | bf16 | 1; f32 as well where the half type could not hold the sum | 2 S |
//! | power-sgd | 2 | 4 (rank (n + m) for each n x m matrix, and what is not compressed) |
//!
//! What is deliberately absent: Burn. A bucket is a slice of `f32`, wherever it came from. (With fp16 and bf16, buckets of
//! GPUs are rounded before they come to host memory: `device/rounded.rs`.)

mod all_reduce;
mod config;
mod half;
mod power_sgd;

use std::fmt;

use everburn_collectives::group::{CollectiveError, ProcessGroup};

pub use self::all_reduce::AllReduce;
pub(crate) use self::all_reduce::sum_over_ranks;
pub use self::config::CommunicationHookConfig;
pub use self::half::{Bf16, Fp16};
pub(crate) use self::half::{HalfType, power_of_two, sum_rounded};
pub use self::power_sgd::PowerSgd;

/// A parameter's place in a bucket.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::ParameterSlot;
///
/// let weight = ParameterSlot { path: "fc1.weight".to_owned(), shape: vec![4, 2], offset: 0 };
/// let bias = ParameterSlot { path: "fc1.bias".to_owned(), shape: vec![2], offset: 8 };
/// assert_eq!(bias.offset - weight.offset, weight.shape.iter().product::<usize>());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterSlot {
    /// The parameter's path in the model, `fc1.weight` say; the same on all ranks.
    pub path: String,
    /// The shape of the parameter and of its gradient.
    pub shape: Vec<usize>,
    /// Where the gradient begins, in elements from the start of the bucket.
    pub offset: usize,
}

/// One bucket of this rank's gradients.
///
/// The values are already weighted with the rank's share of the samples: their sum over the ranks
/// is the mean gradient. Values that belong to no slot are summed too.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{GradientBucket, ParameterSlot};
///
/// let slots = [ParameterSlot { path: "bias".to_owned(), shape: vec![2], offset: 0 }];
/// let mut values = [1.0, -3.0];
/// let bucket = GradientBucket { index: 0, slots: &slots, values: &mut values };
/// assert_eq!(bucket.slots[0].shape, [bucket.values.len()]);
/// ```
#[derive(Debug)]
pub struct GradientBucket<'a> {
    /// The bucket's place in the order in which buckets are reduced.
    pub index: usize,
    /// Which parameters are where.
    pub slots: &'a [ParameterSlot],
    /// The gradients, one after the other; afterwards their sum over all ranks.
    pub values: &'a mut [f32],
}

/// How the gradients of a bucket become their sum over all ranks.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// # use everburn_collectives::group::{CollectiveError, ProcessGroup};
/// use everburn::distributed::{AllReduce, CommunicationHook, GradientBucket};
///
/// #[derive(Debug)]
/// struct Loud;
/// impl CommunicationHook for Loud {
///     fn name(&self) -> String { "loud".to_owned() }
///     fn reduce(&mut self, bucket: GradientBucket<'_>, all: &ProcessGroup) -> Result<u64, CollectiveError> {
///         println!("bucket {} has {} values", bucket.index, bucket.values.len());
///         AllReduce.reduce(bucket, all)
///     }
/// }
/// ```
#[doc(alias = "register_comm_hook")]
pub trait CommunicationHook: Send + fmt::Debug {
    /// `none`, `fp16`, `bf16`, `power-sgd(4)`: for reports.
    fn name(&self) -> String;

    /// Puts the sum over all ranks into `bucket.values`, equal to the bit on every rank. Returns
    /// the payload bytes that this rank handed to collectives.
    ///
    /// # Errors
    /// Those of the collectives. The values are then in no particular state, and neither is what
    /// the hook remembers: a new group needs a new hook.
    fn reduce(
        &mut self,
        bucket: GradientBucket<'_>,
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError>;
}
