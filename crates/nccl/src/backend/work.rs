//! An operation under way.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everburn_collectives::group::CollectiveError;

use super::NcclBackend;
use super::core::InFlightOperation;
use super::timed_mutex::Backoff;

/// How often a waiter asks NCCL how the communicator is; the backend's own thread does so too.
const ASKING: Duration = Duration::from_millis(10);

/// An operation that this rank has put on the backend's stream.
///
/// It continues whether or not it is waited for; dropping a `Work` does not cancel it. A `Work` keeps
/// its backend alive.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::ReduceOp;
/// use everburn_nccl_fake::FakeCluster;
///
/// let cluster = FakeCluster::new(1);
/// let nccl = cluster.alone();
/// let gradients = cluster.allocate(0, &[1f32, 2.0]);
/// let work = nccl.all_reduce(&gradients, ReduceOp::Mean)?;
/// // What the GPU is given from now on waits for it; this thread does not.
/// work.hold_device()?;
/// // Or this thread does.
/// work.wait()?;
/// assert_eq!(cluster.read::<f32>(&gradients), [1.0, 2.0]);
/// # Ok::<(), everburn_collectives::group::CollectiveError>(())
/// ```
#[must_use = "an operation fails unseen unless it is waited for"]
pub struct Work {
    pub(super) in_flight: Arc<InFlightOperation>,
    pub(super) backend: Arc<NcclBackend>,
}

impl Work {
    /// Whether [`Work::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.backend.core.calls.failure().is_some() || self.in_flight.is_over().unwrap_or(true)
    }

    /// Waits on this thread until the GPU has finished, for the group's timeout, which begins when the
    /// operation's turn comes.
    ///
    /// # Errors
    /// What happened to the operation; the group is unusable on all its ranks then.
    pub fn wait(self) -> Result<(), CollectiveError> {
        let core = &self.backend.core;
        let call = &self.in_flight.call;
        let backoff = Backoff::new();
        let mut asked = Instant::now();
        loop {
            core.check(call)?;
            let is_over = self.in_flight.is_over();
            if is_over.map_err(|source| core.gpu_failed(call, &source))? {
                // But kernels also end when NCCL gives up, and then there is no result.
                core.check_library(call)?;
                let retired = core.retire();
                return retired.map_err(|source| core.gpu_failed(call, &source));
            }
            if asked.elapsed() >= ASKING {
                asked = Instant::now();
                core.check_library(call)?;
                core.keep_deadline(call)?;
            }
            backoff.sleep();
        }
    }

    /// What any stream of this process on the GPU is given from now on waits for the operation. This
    /// thread does not.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] where the driver cannot ([`NcclBackend::orders_device`]), and what has
    /// failed the group.
    pub fn hold_device(&self) -> Result<(), CollectiveError> {
        let core = &self.backend.core;
        let call = &self.in_flight.call;
        core.check(call)?;
        if !core.api.orders_all() {
            let reason = "this driver cannot order all streams of a GPU (CUDA 12.5 and later can): \
                          synchronize the device before the operation, and wait for the work";
            return Err(call.invalid(reason.to_owned()));
        }
        let Some(done) = &self.in_flight.done else {
            return Ok(());
        };
        let held = core.api.wait_all(done.get());
        held.map_err(|source| core.gpu_failed(call, &source))
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("call", &self.in_flight.call)
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}
