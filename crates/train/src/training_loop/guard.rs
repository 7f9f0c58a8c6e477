//! The guard that finds replicas which are no longer equal.

use everburn_distributed::{Buffers, Ddp, Divergence};
use everburn_record::{Event, EventKind};

use super::RankLoop;
use crate::config::divergence::OnDivergence;
use crate::error::TrainError;
use crate::metrics::sums::MetricSums;
use crate::model::erased::AnyModel;

impl RankLoop {
    /// Compares the parameters of all ranks after an epoch, or after a step with these `sums`. Repairs or refuses a
    /// difference. After a repair it fails with [`TrainError::Repaired`], and the ranks restart from the snapshot.
    pub(super) fn compare(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
        sums: Option<&MetricSums>,
    ) -> Result<AnyModel, TrainError> {
        let common = self.common(&model);
        let found = match &self.setup.state.outer {
            Some(outer) => outer.find_divergence(&common)?,
            None => ddp.find_divergence(&common)?,
        };
        let Some(found) = found else {
            return Ok(model);
        };
        let model = self.mend(common, found)?;
        if let Some(sums) = sums {
            let step = self.outcome.step;
            self.hash(&model, step..=step, sums)?;
        }
        // A restored model has parameters of its own, which another `Ddp` has to know.
        self.elastic.snapshot = Some((model.clone(), Buffers::read(&model)?));
        Err(TrainError::Repaired)
    }

    /// Gives the ranks that differ from most others the state of those, if that is wanted and can be.
    pub(super) fn mend(
        &mut self,
        model: AnyModel,
        found: Divergence,
    ) -> Result<AnyModel, TrainError> {
        let Divergence {
            ranks,
            parameter,
            trusted,
        } = found;
        let step = self.outcome.step;
        let may_repair =
            self.setup.config.on_divergence == OnDivergence::Repair && self.setup.over.is_none();
        let group = &self.setup.group;
        let (Some(source), true) = (trusted, may_repair) else {
            let members = self.members();
            return Err(TrainError::Diverged {
                ranks: ranks.into_iter().map(|rank| members[rank]).collect(),
                has_majority: trusted.is_some(),
                parameter,
                step,
            });
        };
        let has_it = !ranks.contains(&group.rank());
        if !has_it || self.is_first() {
            let members = self.members();
            let ranks = ranks.iter().map(|rank| members[*rank]).collect::<Vec<_>>();
            let text = format!(
                "after step {step}, `{parameter}` of rank {ranks:?} differed from the other ranks'; it is \
                 given the state of rank {}",
                members[source]
            );
            tracing::warn!("{text}");
            if self.is_first() {
                self.note(Event {
                    rank: ranks.first().copied(),
                    ..Event::new(EventKind::Divergence, text)
                });
            }
        }
        self.share_from(model, source, &ranks)
    }

    /// The number by which the user knows each rank.
    pub(super) fn members(&self) -> Vec<usize> {
        self.setup.elasticity.members(&self.setup.group)
    }
}
