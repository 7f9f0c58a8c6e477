//! The batch with which compute and communication take about as long.

use super::order::{Mode, Step};
use crate::failure::Failure;

/// Where the search for a batch begins.
const FIRST_BATCH: usize = 32;

/// A model that computes less than it exchanges even with this many is no use to the benchmark.
const MOST_SAMPLES: usize = 1 << 16;

/// How much longer compute is to take than the communication. The forward pass is a third of compute and can
/// hide nothing, so where the two take equally long, no overlap ends before 1.33 times either.
const COMPUTE_TO_COMMUNICATION: f64 = 1.4;

/// Near enough: machines are not steadier than that.
const ABOUT_AS_LONG: f64 = 1.07;

/// How many batches are tried. Compute grows nearly in proportion, so few are needed.
const TRIES: usize = 6;

/// The batch with which compute takes about as long as the communication, which no batch changes.
pub(super) fn balanced_batch(
    run: &mut impl FnMut(Mode, usize) -> Result<Step, Failure>,
    mut tell: impl FnMut(usize, f64, f64),
) -> Result<usize, Failure> {
    let communication = run(Mode::Communication, FIRST_BATCH)?.milliseconds;
    let goal = COMPUTE_TO_COMMUNICATION * communication;
    let mut batch = FIRST_BATCH;
    let mut best = (f64::INFINITY, batch);
    for _ in 0..TRIES {
        let compute = run(Mode::Compute, batch)?.milliseconds;
        tell(batch, compute, communication);
        let off = (compute / goal).max(goal / compute);
        if off < best.0 {
            best = (off, batch);
        }
        // A step has a cost that does not grow with the batch, so far jumps overshoot.
        let factor = (goal / compute).clamp(0.05, 8.0);
        let next = ((batch as f64 * factor).round() as usize).clamp(1, MOST_SAMPLES);
        if off <= ABOUT_AS_LONG || next == batch {
            break;
        }
        batch = next;
    }
    Ok(best.1)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine on which a step costs `fixed + each * batch`, and communication what it costs.
    pub(in crate::ddp) struct Machine {
        pub(in crate::ddp) fixed: f64,
        pub(in crate::ddp) each: f64,
        pub(in crate::ddp) communication: f64,
        pub(in crate::ddp) runs: Vec<Mode>,
    }

    impl Machine {
        pub(in crate::ddp) fn run(&mut self, mode: Mode, batch: usize) -> Result<Step, Failure> {
            self.runs.push(mode);
            let compute = self.fixed + self.each * batch as f64;
            let larger = compute.max(self.communication);
            let milliseconds = match mode {
                Mode::Compute => compute,
                Mode::Communication => self.communication,
                Mode::Sequential => compute + self.communication,
                Mode::Overlapped => larger * 1.1,
            };
            Ok(Step {
                milliseconds,
                exposed_ms: milliseconds - compute,
                parameters: 1000,
            })
        }
    }

    fn balanced(fixed: f64, each: f64, communication: f64) -> (usize, usize) {
        let runs = Vec::new();
        let mut machine = Machine {
            fixed,
            each,
            communication,
            runs,
        };
        let batch =
            balanced_batch(&mut |mode, batch| machine.run(mode, batch), |_, _, _| {}).unwrap();
        (batch, machine.runs.len())
    }

    #[test]
    fn a_batch_is_found_with_which_both_take_as_long() {
        assert_eq!(balanced(0.0, 1.0, 32.0), (45, 3));
        for (fixed, each, communication) in
            [(0.0, 2.0, 400.0), (30.0, 0.5, 300.0), (5.0, 9.0, 60.0)]
        {
            let (batch, runs) = balanced(fixed, each, communication);
            let compute = fixed + each * batch as f64;
            let goal = COMPUTE_TO_COMMUNICATION * communication;
            let off = (compute / goal).max(goal / compute);
            assert!(
                off < 1.15,
                "batch {batch}: {compute} ms beside {communication} ms"
            );
            assert!(runs <= 1 + TRIES);
        }
    }

    #[test]
    fn where_there_is_none_the_nearest_is_taken() {
        // One sample is too many, and all are too few.
        assert_eq!(balanced(100.0, 1.0, 1.0).0, 1);
        assert_eq!(balanced(0.0, 1e-6, 1e6).0, MOST_SAMPLES);
    }
}
