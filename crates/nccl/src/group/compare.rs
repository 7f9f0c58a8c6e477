//! Ranks compare through the store what they call, where they are asked to: NCCL itself waits for ever,
//! or mixes numbers up, when one calls something else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everburn_collectives::group::RankCall;
use everburn_collectives::store::{Store, StoreError};

use super::core::{Core, Place};
use super::error::NcclError;
use super::failing::Tell;
use super::news::{News, bounded};
use super::operation::Operation;

/// How often a rank that waits for another's call looks whether the group has failed.
const LOOKING: Duration = Duration::from_millis(200);

/// The longest description of a batch that is compared, in characters; its length is compared too.
const MAX_CALL: usize = 8000;

impl Core {
    /// Whether all ranks are about to make the same collective calls. Every rank reaches the same
    /// verdict.
    pub(super) fn compare(
        &self,
        place: &Place,
        operations: &[Operation],
        deadline: Instant,
    ) -> Result<(), NcclError> {
        let Some(news) = &self.news else {
            return Ok(());
        };
        let own = called(operations);
        let rank = self.config.rank;
        let key = |rank| format!("calls/{}/{rank}", place.sequence);
        self.ask(place, || news.store.set(&key(rank), own.as_bytes()))?;
        let mut calls = Vec::with_capacity(self.config.world_size());
        for (other, job_rank) in self.config.job_ranks.iter().enumerate() {
            let call = match other == rank {
                true => Some(own.clone()),
                false => self.call_of(place, news, &key(other), deadline)?,
            };
            calls.push(RankCall {
                rank: *job_rank,
                call,
            });
        }
        // All have come as far as this call, so nobody looks for the one before any more.
        if let Some(before) = place.sequence.checked_sub(1) {
            let before = format!("calls/{before}/{rank}");
            self.ask(place, || news.store.delete(&before).map(|_| ()))?;
        }
        if calls.iter().all(|call| call.call.as_ref() == Some(&own)) {
            return Ok(());
        }
        // Those who have come find the same; only those who have not must be told.
        let tell = match calls.iter().all(|call| call.call.is_some()) {
            true => Tell::Nobody,
            false => Tell::Others,
        };
        let error = NcclError::Mismatch {
            rank: self.job_rank(),
            sequence: place.sequence,
            step: place.step,
            waited: place.started.elapsed(),
            calls,
        };
        let failed = self.fail(Some(place.started), tell, || error.clone());
        self.standing(place)?;
        Err(failed.map_or(error, |failed| NcclError::clone(&failed)))
    }

    /// What another rank calls, or `None` if it has called nothing when `deadline` passes.
    fn call_of(
        &self,
        place: &Place,
        news: &Arc<News>,
        key: &str,
        deadline: Instant,
    ) -> Result<Option<String>, NcclError> {
        loop {
            self.standing(place)?;
            let left = deadline.saturating_duration_since(Instant::now());
            match news.store.get_within(key, left.min(LOOKING)) {
                Ok(value) => {
                    let text = bounded(&value).map(String::from_utf8_lossy);
                    return Ok(Some(text.unwrap_or_default().into_owned()));
                }
                Err(StoreError::Timeout { .. }) if left > LOOKING => {}
                Err(StoreError::Timeout { .. }) => return Ok(None),
                Err(error) => return Err(self.without_store(place, error)),
            }
        }
    }

    fn ask(
        &self,
        place: &Place,
        request: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), NcclError> {
        request().map_err(|error| self.without_store(place, error))
    }

    fn without_store(&self, place: &Place, error: StoreError) -> NcclError {
        let failed = self.fail(Some(place.started), Tell::Others, || error.clone().into());
        failed.map_or(error.into(), |failed| NcclError::clone(&failed))
    }
}

/// The collective calls of a batch; messages are not alike on all ranks.
fn called(operations: &[Operation]) -> String {
    let collectives = operations
        .iter()
        .filter(|operation| operation.is_collective());
    let calls: Vec<String> = collectives.map(ToString::to_string).collect();
    let text: String = calls.join(", ").chars().take(MAX_CALL).collect();
    match calls.len() {
        1 => text,
        count => format!("{count} calls: {text}"),
    }
}
