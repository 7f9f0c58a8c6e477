//! A request to stop a job of several machines that is not elastic, at the launcher of another machine.
//!
//! The ranks of all machines learn of it at the end of their step, by a collective. A rank that is stopped (SIGSTOP) calls
//! none, so its launcher asks the store whether others were asked to stop, and continues it as for a request of its own.

use everburn_collectives::elastic::MembershipCoordinator;
use everburn_collectives::store::StoreError;
use signal_hook::consts::SIGINT;

use super::{LOOK, Plan, Supervisor};
use crate::outcome::EndedRank;

impl Supervisor<'_> {
    /// Has the other launchers find in the store that this one was asked to stop: `by` says which, and how.
    pub(super) fn leave_word_of_stop(&self, by: &str) {
        let word = self.coordinator().map(|coordinator| {
            let coordinator = coordinator?;
            coordinator.request_stop(by)
        });
        if let Some(Err(error)) = word {
            tracing::debug!("other machines do not find the request to stop: {error}");
        }
    }

    /// Stops the ranks of this machine, of which some are stopped, where the launcher of another was asked to.
    pub(super) fn stop_with_others(&mut self) {
        if !matches!(self.plan, Plan::Train) {
            return;
        }
        if let Some(by) = self.stop_of_others() {
            self.stop(SIGINT, &by);
        }
    }

    /// Says which machine or rank was asked to stop where ranks have stopped without a request to this launcher.
    pub(super) fn say_who_asked(&self) {
        if self.was_interrupted() || !self.ended.iter().any(EndedRank::was_stopped) {
            return;
        }
        // After a failure the ranks that are left get a signal from this launcher.
        let is_asked = matches!(self.plan, Plan::Train | Plan::Stopping(_));
        let mut ranks = self.ended.iter().filter(|_| is_asked);
        let of_rank = || ranks.find_map(EndedRank::asked_by);
        if let Some(by) = self.stop_of_others().or_else(of_rank) {
            self.say_stopping(&by, format!("the job was stopped on {by}"));
        }
    }

    /// Which launcher was asked to stop the job, and how, as far as the store says so.
    fn stop_of_others(&self) -> Option<String> {
        let news = self.coordinator()?.and_then(|store| store.news(0));
        let news = news.inspect_err(|error| {
            tracing::debug!("whether another machine was asked to stop is not known: {error}");
        });
        news.ok()?.stop_requested
    }

    /// The words that launchers leave for each other in a store that ends with the job; `None` where there is no such store,
    /// or nobody to read it.
    fn coordinator(&self) -> Option<Result<MembershipCoordinator, StoreError>> {
        let job = self.starter.as_ref()?.job;
        if self.config.nodes == 1 || self.config.elastic.is_some() || !job.store.is_hosted() {
            return None;
        }
        let store = job.reach_store(LOOK);
        Some(store.map(|store| MembershipCoordinator::new(store.shared)))
    }
}
