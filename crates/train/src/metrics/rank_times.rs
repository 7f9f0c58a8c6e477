//! How each rank spends its steps, and how rank 0 gets the numbers of all.
//!
//! A rank can measure a step only when the step is over, and then nothing is exchanged any more. So
//! the numbers of a step travel with the sums of the next one, each in a place of its own of the same
//! all-reduce: no message more, `8 W` numbers of 8 bytes longer with `W` ranks. Above 64 ranks they come
//! with every second step, above 128 with every third and so on, so that a sums stays about as short as
//! with 64. All ranks derive that from the number of the step.

use everburn_record::RankStep;

/// How long a step's passes took a rank, in seconds.
///
/// Where a device works behind the host's back, as GPUs do, it is the host's time: what has been asked for
/// in the forward pass may be computed, and waited for, in the backward pass.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::PassTimes;
///
/// let one = PassTimes { forward: 0.25, backward: 0.5, ..PassTimes::default() };
/// let mut both = one;
/// both += one;
/// assert_eq!(both.forward, 0.5);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PassTimes {
    /// In forward passes.
    pub forward: f64,
    /// In backward passes.
    pub backward: f64,
    /// Standing still for other stages of the model.
    pub waited: f64,
    /// How many floating point operations the forward passes computed; 0 where nobody counts.
    pub forward_operations: u64,
}

/// What a forward pass was.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::ForwardPass;
///
/// let pass = ForwardPass { seconds: 0.5, operations: 1_000_000_000 };
/// assert_eq!(pass.operations as f64 / pass.seconds, 2e9); // per second
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ForwardPass {
    /// How long it took, in seconds.
    pub seconds: f64,
    /// How many floating point operations it computed ([`everburn::nn::count_operations`](everburn_nn::count_operations)); 0 where nobody counts.
    pub operations: u64,
}

impl PassTimes {
    /// Of a pass forward and backward that took this many `seconds`, of which it was `forward` first.
    pub(crate) fn of_pass(seconds: f64, forward: Option<ForwardPass>) -> Self {
        let forward = forward.unwrap_or_default();
        Self {
            forward: forward.seconds,
            backward: (seconds - forward.seconds).max(0.0),
            waited: 0.0,
            forward_operations: forward.operations,
        }
    }
}

impl std::ops::AddAssign for PassTimes {
    fn add_assign(&mut self, other: Self) {
        self.forward += other.forward;
        self.backward += other.backward;
        self.waited += other.waited;
        self.forward_operations += other.forward_operations;
    }
}

/// How many ranks there may be for all numbers to come with each step.
const EACH_STEP: usize = 64;

/// The numbers of a [`RankStep`] that travel.
pub(crate) const NUMBERS: usize = 9;

/// What the newest step was for this rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PastStep {
    pub(crate) step: usize,
    /// Its rank is left to who receives it.
    pub(crate) times: RankStep,
}

/// Whether the sums of `step` brings what the step before it was for each of `ranks`.
pub(crate) fn come_with(step: usize, ranks: usize) -> bool {
    ranks > 0 && step.is_multiple_of(ranks.div_ceil(EACH_STEP))
}

impl PastStep {
    /// What travels; `seconds` is above zero, and zeros are of ranks that have no such step.
    pub(crate) fn numbers(&self) -> [f64; NUMBERS] {
        numbers_of(&self.times)
    }
}

/// What travels of a step, or of the mean of some.
pub(crate) fn numbers_of(times: &RankStep) -> [f64; NUMBERS] {
    [
        times.seconds,
        times.waited,
        times.data,
        times.forward,
        times.backward,
        times.exposed,
        times.optimizer,
        times.samples.unwrap_or(0) as f64,
        times.peak_memory.unwrap_or(0) as f64,
    ]
}

/// What ranks have told, in their order; `name` gives each the number by which the user knows it.
pub(crate) fn of_ranks(numbers: &[f64], name: impl Fn(usize) -> usize) -> Vec<RankStep> {
    let ranks = numbers.chunks_exact(NUMBERS).enumerate();
    let told = ranks.filter(|(_, numbers)| numbers[0] > 0.0);
    let step = told.map(|(rank, numbers)| RankStep {
        rank: name(rank),
        seconds: rounded(numbers[0]),
        waited: rounded(numbers[1]),
        data: rounded(numbers[2]),
        forward: rounded(numbers[3]),
        backward: rounded(numbers[4]),
        exposed: rounded(numbers[5]),
        optimizer: rounded(numbers[6]),
        samples: Some(numbers[7] as u64),
        peak_memory: Some(numbers[8] as u64).filter(|bytes| *bytes > 0),
    });
    step.collect()
}

/// To microseconds: what comes after is noise, and would double the length of a line.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_was_measured() {
        let times = RankStep {
            rank: 0,
            seconds: 0.5,
            waited: 0.125,
            data: 0.25,
            samples: Some(3),
            peak_memory: None,
            ..RankStep::default()
        };
        let mut numbers = vec![0.0; NUMBERS];
        numbers.extend(PastStep { step: 7, times }.numbers());
        let told = of_ranks(&numbers, |rank| rank + 10);
        assert_eq!(told, [RankStep { rank: 11, ..times }]);
    }

    #[test]
    fn many_ranks_tell_less_often() {
        let often = |ranks| (1..=12).filter(|step| come_with(*step, ranks)).count();
        assert_eq!([1, 64, 65, 128, 256].map(often), [12, 12, 6, 6, 3]);
    }
}
