//! What a step's synchronization yields, and what it has cost.

use std::time::Duration;

use burn::optim::GradientsParams;

use super::norm::GradientNorm;

/// What [`Synchronization::finish`](crate::Synchronization::finish) yields.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::optim::GradientsParams;
/// use everburn::distributed::SyncedGradients;
///
/// /// Prints the cost of the synchronization, and returns what the optimizer takes.
/// fn report(synced: SyncedGradients) -> GradientsParams {
///     println!("{} samples, {} bytes sent", synced.samples, synced.communication.bytes);
///     synced.gradients
/// }
/// ```
#[derive(Debug)]
pub struct SyncedGradients {
    /// The mean gradient over the samples of all ranks: equal to the bit on every rank. A parameter
    /// that no rank used has no gradient.
    pub gradients: GradientsParams,
    /// How many samples all ranks together had.
    pub samples: u64,
    /// The norm of all gradients together before they were clipped; `None` unless
    /// [`crate::DdpConfig::max_gradient_norm`] is set.
    pub norm: Option<GradientNorm>,
    /// What the synchronization cost this rank.
    pub communication: Communication,
}

/// What a step's synchronization cost a rank.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::Communication;
///
/// let cost = Communication::default();
/// assert!(cost.exposed.is_zero() && cost.busy.is_zero());
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Communication {
    /// How long the training thread stood still for it: the part that the backward pass did not
    /// hide.
    pub exposed: Duration,
    /// How long collectives ran, hidden or not, waiting for slower ranks included; those that ran at the
    /// same time are added up. What a device reduces by itself is not known to the host, and not in it.
    pub busy: Duration,
    /// How many bytes of gradients this rank handed to collectives, after compression.
    pub bytes: u64,
}
