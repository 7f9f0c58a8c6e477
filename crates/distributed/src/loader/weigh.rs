//! How much a sample counts.

use std::sync::Arc;

/// How much a sample counts beside others, at least 1: how many predictions its loss is the mean of.
///
/// The mean loss of a batch of texts is that over their tokens. Where texts have different numbers of tokens, as with a loss
/// on answers only, the mean over all micro-batches and ranks is that of all tokens only if each mean counts by its
/// tokens: a mean of means is another number. It has to be known before the backward pass, during which gradients leave.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use std::sync::Arc;
/// use everburn::distributed::Weigh;
///
/// let weigh: Weigh<Vec<u32>> = Arc::new(|tokens| tokens.len() - 1);
/// assert_eq!(weigh(&vec![5, 6, 7]), 2);
/// ```
pub type Weigh<I> = Arc<dyn Fn(&I) -> usize + Send + Sync>;
