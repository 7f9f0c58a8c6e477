//! What is recorded when the training is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use everburn_collectives::group::CollectiveError;
use everburn_collectives::worker::message_of;
use everburn_record::{Event, EventKind, TrainingReport, sync::lock};

use super::Trainer;
use crate::error::TrainError;
use crate::hook::Hook;
use crate::metrics::rank_times::{self, NUMBERS, PastStep};
use crate::record::record_files::RankLines;
use crate::renderer::Display;

impl Trainer {
    /// The exchange of gradients, where there was a choice.
    pub(super) fn gradients_by(&self) -> Option<String> {
        let choice = self.connector.as_ref()?.choice()?;
        Some(choice.to_string())
    }

    /// The lines of a rank that may become rank 0 are ready, and hidden until then.
    pub(super) fn display(&self) -> Display {
        match self.display {
            display if self.is_first() => display,
            Display::Lines if self.elasticity.any_may_be_first() => Display::Lines,
            _ => Display::Silent,
        }
    }

    /// Lets rank 0 know what the last step was for all ranks: there is no next one to tell it with. Every rank calls
    /// it, and leaves when all have.
    pub(super) fn tell_last_step(
        &self,
        step: usize,
        past: Option<PastStep>,
    ) -> Result<(), CollectiveError> {
        let group = self.present_group();
        let past = past.filter(|past| past.step == step);
        let own = past.map_or([0.0; NUMBERS], |past| past.numbers());
        let all = group.all_gather(own.to_vec()).wait()?.concat();
        let Some(run) = self.run.as_ref().filter(|_| group.rank() == 0) else {
            return Ok(());
        };
        let members = self.elasticity.members(&group);
        let name = |rank: usize| members.get(rank).copied().unwrap_or(rank);
        let ranks = rank_times::of_ranks(&all, name);
        // A run that was resumed at its end has made no step, and has the line of its last one.
        if step > 0 && !ranks.is_empty() {
            let before = step - 1;
            RankLines::open(run, before, self.config.log_every).write_now(step, ranks);
        }
        Ok(())
    }

    /// Notes how the training ended, if that was before its time.
    pub(super) fn record_end(&self, report: &TrainingReport) {
        if let (Some(run), Some(why)) = (&self.run, &report.stopped) {
            run.note(Event {
                step: Some(report.steps as u64),
                ..Event::new(EventKind::Stop, format!("stopped {why}"))
            });
        }
    }

    /// Tells the hooks that all is over.
    pub(super) fn end_hooks(
        &self,
        hooks: &Mutex<Vec<Box<dyn Hook>>>,
        report: &TrainingReport,
    ) -> Result<(), TrainError> {
        for hook in lock(hooks).iter_mut() {
            let ended = catch_unwind(AssertUnwindSafe(|| hook.at_end(report)));
            let ended = ended.map_err(|panic| format!("it panicked: {}", message_of(&*panic)));
            let ended = ended.and_then(|ended| ended.map_err(|error| error.to_string()));
            ended.map_err(|reason| TrainError::Hook {
                hook: hook.name().into_owned(),
                rank: self.present_group().rank(),
                step: report.steps,
                reason,
            })?;
        }
        Ok(())
    }
}
