//! Rounds whose exchange ends while the next one is made (Streaming DiLoCo: Douillard et al. 2025).
//!
//! After each round one fragment of the model is sent, with the metrics and votes of the round. Both are collected after the
//! next round, so a rank waits only for what a whole round has not sufficed for. So a round counts one round late, and between
//! two exchanges the ranks' models differ. Where all must have the same model (the end of an epoch or of the training, a
//! checkpoint, a sample, a hash), the round ends with an outer step of the whole model, which is waited for.

use std::time::Instant;

use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{FragmentInFlight, OuterStream};

use super::RankLoop;
use super::engine::{Engine, EngineStep, SyncedSteps};
use super::local_steps::{JoinedRound, LocalSteps};
use super::round_stats::{PendingStats, Round};
use crate::error::TrainError;
use crate::metrics::step_reduction::Votes;
use crate::model::erased::AnyModel;

/// The exchange of fragments.
pub(super) struct Stream {
    outer: OuterStream,
    pending: Option<PendingRound>,
}

/// A round that is made and does not count yet.
struct PendingRound {
    round: Round,
    stats: PendingStats,
    fragment: FragmentInFlight,
}

impl Stream {
    /// Every rank of `group` calls it.
    pub(super) fn start(group: &ProcessGroup) -> Result<Self, TrainError> {
        Ok(Self {
            outer: OuterStream::start(group)?,
            pending: None,
        })
    }

    /// How many steps are made and do not count yet.
    pub(super) fn steps(&self) -> usize {
        let pending = self.pending.as_ref();
        pending.map_or(0, |pending| pending.round.made())
    }
}

impl LocalSteps<'_> {
    /// Counts the round before `round`, and exchanges this one: a fragment, which is not waited for, or all.
    pub(super) fn stream_round(
        &mut self,
        ranks: &mut RankLoop,
        model: AnyModel,
        round: Round,
        planned: usize,
    ) -> Result<EngineStep, TrainError> {
        let pending = self.stream.as_mut().and_then(|it| it.pending.take());
        let (model, before) = match pending {
            Some(pending) => {
                let (model, before) = self.collect(ranks, &model, pending, &round)?;
                // What fails from here on comes after the round that counts now.
                ranks.take_snapshot(&model)?;
                (model, Some(before))
            }
            None => (model, None),
        };
        let votes = before.as_ref().map_or_else(Votes::default, |it| it.votes);
        if self.must_be_equal(ranks, votes, &round, planned) {
            return match self.join(ranks, model, round, planned, 0) {
                Ok((model, synced)) => {
                    let synced = Some(match before {
                        Some(before) => before.followed_by(synced),
                        None => synced,
                    });
                    Ok(EngineStep { model, synced })
                }
                Err(error) => Err(self.record_before(ranks, before, error)?),
            };
        }
        let pending = self.send(ranks, &model, round.clone(), planned);
        match pending {
            Ok(pending) => self.stream.as_mut().expect("it streams").pending = Some(pending),
            Err(error) => {
                let error = ranks.interrupt(&model, round, error)?;
                return Err(self.record_before(ranks, before, error)?);
            }
        }
        Ok(EngineStep {
            model,
            synced: before,
        })
    }

    /// Records the steps that count, where `error` has ended those after them: the loop does not come to it any more.
    fn record_before(
        &self,
        ranks: &mut RankLoop,
        before: Option<SyncedSteps>,
        error: TrainError,
    ) -> Result<TrainError, TrainError> {
        for step in before.into_iter().flat_map(|before| before.steps) {
            ranks.record(step, self.epoch)?;
        }
        Ok(error)
    }

    /// Whether all ranks must have the same model after `round`. The same on all of them.
    fn must_be_equal(&self, ranks: &RankLoop, votes: Votes, round: &Round, planned: usize) -> bool {
        let config = &ranks.setup.config;
        let last = round.first() + planned - 1;
        let steps = round.first()..=last;
        let ends = self.left() == 0 || config.steps.is_some_and(|limit| last >= limit);
        let hashed = |step: usize| {
            let every = config.hash_every;
            every.is_some_and(|every| step.is_multiple_of(every))
        };
        let due = ranks.saves_after(steps.clone()) || ranks.shows_after(steps.clone());
        let asked = votes != Votes::default();
        ends || asked || due || steps.into_iter().any(hashed)
    }

    /// Waits for the exchange of the round before `round`, and counts it.
    fn collect(
        &mut self,
        ranks: &mut RankLoop,
        model: &AnyModel,
        pending: PendingRound,
        round: &Round,
    ) -> Result<(AnyModel, SyncedSteps), TrainError> {
        let PendingRound {
            round: before,
            stats,
            fragment,
        } = pending;
        let start = Instant::now();
        let waiting = || -> Result<_, TrainError> {
            let stats = stats.wait()?;
            ranks.require_finite_losses(&stats, self.epoch)?;
            let (model, communication) = ranks.outer_mut().collect(model.clone(), fragment)?;
            Ok((model, stats, communication))
        };
        let (model, stats, communication) = match waiting() {
            Ok(collected) => collected,
            Err(error) => {
                let both = before.followed_by(round.clone());
                return Err(ranks.interrupt(model, both, error)?);
            }
        };
        let joined = JoinedRound {
            stats,
            communication,
            waited: start.elapsed().as_secs_f64(),
        };
        self.last_outer_step = joined.times();
        let synced = ranks.count(&model, joined, &before, self.inner.parameters());
        // The steps of the round that does not count yet are made all the same.
        ranks.setup.live.step(ranks.outcome.step + round.made());
        Ok((model, synced))
    }

    /// Sends a fragment of `model` after a round, and the round's metrics.
    fn send(
        &mut self,
        ranks: &mut RankLoop,
        model: &AnyModel,
        round: Round,
        planned: usize,
    ) -> Result<PendingRound, TrainError> {
        let stats = ranks.send_round(&round, planned)?;
        let stream = self.stream.as_ref().expect("it streams");
        let outer = ranks.outer_mut();
        let fragment = outer.begin(model, round.samples(), &stream.outer)?;
        Ok(PendingRound {
            round,
            stats,
            fragment,
        })
    }
}

impl RankLoop {
    /// Whether ranks exchange fragments in turn, so that their models differ between two exchanges.
    pub(super) fn streams(&self) -> bool {
        let config = &self.setup.config;
        config.sync.steps().is_some() && config.outer.fragments.is_some()
    }

    /// `model` as all ranks have it in common.
    pub(super) fn common(&self, model: &AnyModel) -> AnyModel {
        match &self.setup.state.outer {
            Some(outer) if self.streams() => outer.common(model.clone()),
            _ => model.clone(),
        }
    }
}
