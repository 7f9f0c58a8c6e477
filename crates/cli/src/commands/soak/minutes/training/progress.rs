//! How far a training has come.

use super::InjectedFault;

/// What a training has done in its time.
pub(in crate::commands::soak::minutes) struct Progress {
    pub(in crate::commands::soak::minutes) steps: u64,
    /// Those that ranks have trained on.
    pub(in crate::commands::soak::minutes) batches: u64,
    pub(in crate::commands::soak::minutes) seconds: f64,
    pub(in crate::commands::soak::minutes) faults: Vec<InjectedFault>,
    /// The machine that has the records and checkpoints of the end.
    pub(in crate::commands::soak::minutes) recorder: usize,
}

impl Progress {
    /// Batches per second: a step of fewer ranks trains on fewer.
    pub(in crate::commands::soak::minutes) fn rate(&self) -> f64 {
        self.batches as f64 / self.seconds
    }
}

/// Batches that ranks have trained on, counted from step to step.
#[derive(Default)]
pub(super) struct Batches {
    /// The newest step that is counted; one that is made again after a loss counts once.
    pub(super) step: u64,
    pub(super) trained: u64,
}

impl Batches {
    pub(super) fn add(&mut self, step: u64, of_a_step: u64) {
        self.trained += step.saturating_sub(self.step) * of_a_step;
        self.step = self.step.max(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_the_ranks_that_are_there_count_once() {
        let mut batches = Batches {
            step: 10,
            trained: 0,
        };
        batches.add(20, 4);
        batches.add(15, 3);
        batches.add(22, 3);
        assert_eq!(batches.trained, 40 + 6);
    }
}
