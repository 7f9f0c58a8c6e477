//! How a rank meets the others that its launcher has started.

use std::time::Duration;

use everburn_collectives::rendezvous::{
    Rendezvous, RendezvousError, RendezvousRequest, WaitListener, rendezvous,
};

use super::RankEnvironment;

impl RankEnvironment {
    /// Meets the other ranks of the job, whatever has started them, within `timeout`, by default that of
    /// [`rendezvous`].
    ///
    /// ```no_run
    /// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_launch as launch; }
    /// use everburn::collectives::group::{GroupOptions, ProcessGroup};
    /// use everburn::launch::RankEnvironment;
    ///
    /// let rank = RankEnvironment::from_env()?;
    /// let group = ProcessGroup::connect(rank.rendezvous(None)?, GroupOptions::default())?;
    /// assert_eq!(group.rank(), rank.rank);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`rendezvous`]: the error names the ranks that have not come.
    pub fn rendezvous(&self, timeout: Option<Duration>) -> Result<Rendezvous, RendezvousError> {
        self.rendezvous_telling(timeout, WaitListener::default())
    }

    /// The same; `on_wait` learns of ranks that are waited for.
    ///
    /// # Errors
    /// As [`rendezvous`].
    pub fn rendezvous_telling(
        &self,
        timeout: Option<Duration>,
        on_wait: WaitListener,
    ) -> Result<Rendezvous, RendezvousError> {
        let request = RendezvousRequest {
            rank: Some(self.rank),
            world_size: Some(self.world_size),
            timeout,
            job_token: self.job_token.clone(),
            open_store: self.open_store,
            on_wait,
        };
        // Under torchrun the variables say more: which part of its store belongs to this attempt.
        let init_method = match self.origin.started_by.is_foreign() {
            true => self.init_method(),
            false => "env://".to_owned(),
        };
        let mut meeting = rendezvous(&init_method, request)?;
        meeting.local_rank = self.local_rank;
        Ok(meeting)
    }
}
