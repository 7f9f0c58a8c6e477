//! Reports what the training thread does to a recorder, if there is one.

use std::time::{Duration, Instant};

use everburn_profile::Phase;

use super::RankLoop;
use crate::metrics::rank_times::PassTimes;

impl RankLoop {
    /// The next step begins, with its data.
    pub(super) fn profile_step(&self) {
        if let Some(recorder) = &self.setup.recorder {
            self.wait_for_device();
            recorder.begin_step(self.outcome.step + 1);
        }
    }

    pub(super) fn profile(&self, phase: Phase) {
        if let Some(recorder) = &self.setup.recorder {
            self.wait_for_device();
            recorder.enter(phase);
        }
    }

    /// No step follows at once.
    pub(super) fn profile_end(&self) {
        if let Some(recorder) = &self.setup.recorder {
            self.wait_for_device();
            recorder.end_step();
        }
    }

    /// Runs a pass forward and backward; what it adds to `times` tells where the backward pass began.
    pub(super) fn profile_pass<T>(
        &self,
        times: &mut PassTimes,
        run: impl FnOnce(&mut PassTimes) -> T,
    ) -> T {
        let Some(recorder) = &self.setup.recorder else {
            return run(times);
        };
        self.profile(Phase::Forward);
        let (began, before) = (Instant::now(), *times);
        let done = run(times);
        let turned = began + seconds(times.forward - before.forward);
        let operations = times.forward_operations - before.forward_operations;
        recorder.enter_at(Phase::Backward, turned, Some(operations));
        done
    }

    /// Shares out what ranks that hold a model together have done since `began`. Their passes change too often for
    /// each to be told, so that each phase is there once, as long as all its parts together.
    pub(super) fn profile_parts(&self, began: Instant, times: &PassTimes) {
        let Some(recorder) = &self.setup.recorder else {
            return;
        };
        let backward = began + seconds(times.forward);
        let waiting = backward + seconds(times.backward);
        recorder.enter_at(Phase::Backward, backward, None);
        recorder.enter_at(Phase::Waiting, waiting, None);
        recorder.enter_at(Phase::Exchange, waiting + seconds(times.waited), None);
    }

    /// What a device has yet to compute belongs to the phase that asked for it.
    fn wait_for_device(&self) {
        if self.setup.device.memory_pool_usage().is_some() {
            // What fails is told where its result is read.
            let _ = self.setup.device.sync();
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
