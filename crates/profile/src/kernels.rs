//! Kernels of a device, one by one.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// In one of how many steps kernels are timed. Timing them makes a step longer, so that it counts for nothing else.
const EVERY: usize = 10;

/// How many steps pass before the first of them: kernels are compiled and tuned there.
const FIRST: usize = 3;

/// How many kernels are kept; later ones are only counted.
const MOST_LAUNCHES: usize = 1 << 20;

/// Times each kernel that a process has its device run. [`Recorder::time_kernels`](crate::Recorder::time_kernels) takes
/// one.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Facts, KernelTimer, Recorder, TimedKernel};
///
/// /// For a device on which nothing ever runs.
/// struct Idle;
///
/// impl KernelTimer for Idle {
///     fn begin(&mut self) {}
///     fn end(&mut self) -> Vec<TimedKernel> { Vec::new() }
/// }
/// Recorder::new(Facts::default()).time_kernels(Box::new(Idle));
/// ```
pub trait KernelTimer: Send {
    /// From now on kernels are timed.
    fn begin(&mut self);

    /// From now on they are not; those that were, in the order in which they were asked for. Waits for the device.
    fn end(&mut self) -> Vec<TimedKernel>;
}

/// A kernel that has run.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use std::time::{Duration, Instant};
///
/// let asked = Instant::now();
/// let kernel = everburn::profile::TimedKernel {
///     name: "matmul".to_owned(),
///     asked,
///     began: asked + Duration::from_micros(8),
///     took: Duration::from_micros(30),
/// };
/// assert!(kernel.began > kernel.asked);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedKernel {
    /// What it calls itself.
    pub name: String,
    /// When the host asked for it.
    pub asked: Instant,
    /// When the device began it, by the host's clock.
    pub began: Instant,
    /// How long the device computed.
    pub took: Duration,
}

/// The kernels of the steps in which they were timed.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{KernelLaunch, Kernels};
///
/// let launch = KernelLaunch { name: 0, asked: 10, begin: 14, end: 20 };
/// let kernels = Kernels { names: vec!["matmul".to_owned()], launches: vec![launch], dropped: 0 };
/// assert_eq!(kernels.names[kernels.launches[0].name as usize], "matmul");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Kernels {
    /// Their names.
    pub names: Vec<String>,
    /// What ran, step by step, in the order in which it was asked for.
    pub launches: Vec<KernelLaunch>,
    /// How many did not fit.
    pub dropped: u64,
}

/// A kernel that has run once.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::KernelLaunch;
///
/// let launch = KernelLaunch { name: 0, asked: 10, begin: 14, end: 20 };
/// assert_eq!(launch.begin - launch.asked, 4); // it waited
/// assert_eq!(launch.end - launch.begin, 6); // it ran
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLaunch {
    /// The place of its name in [`Kernels::names`].
    pub name: u32,
    /// When the host asked for it.
    pub asked: u64,
    /// When the device began it.
    pub begin: u64,
    /// When the device was done with it.
    pub end: u64,
}

/// Whether kernels are timed in the step after `recorded` others.
pub(crate) fn is_timed(recorded: usize) -> bool {
    recorded >= FIRST && (recorded - FIRST).is_multiple_of(EVERY)
}

impl Kernels {
    /// Adds what ran; `at` tells what time an instant is.
    pub(crate) fn add(&mut self, timed: Vec<TimedKernel>, at: impl Fn(Instant) -> u64) {
        for kernel in timed {
            if self.launches.len() >= MOST_LAUNCHES {
                self.dropped += 1;
                continue;
            }
            // A model has some dozens of kernels, and asks for the same again and again.
            let known = self.names.iter().rposition(|name| *name == kernel.name);
            let name = known.unwrap_or_else(|| {
                self.names.push(kernel.name.clone());
                self.names.len() - 1
            });
            let begin = at(kernel.began);
            self.launches.push(KernelLaunch {
                name: name as u32,
                asked: at(kernel.asked),
                begin,
                end: begin + kernel.took.as_nanos() as u64,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_steps_are_not_timed_and_then_one_in_ten_is() {
        let timed: Vec<usize> = (0..30).filter(|step| is_timed(*step)).collect();
        assert_eq!(timed, [3, 13, 23]);
    }

    #[test]
    fn a_name_is_kept_once() {
        let start = Instant::now();
        let kernel = |name: &str, micros| TimedKernel {
            name: name.to_owned(),
            asked: start,
            began: start + Duration::from_micros(micros),
            took: Duration::from_micros(2),
        };
        let mut kernels = Kernels::default();
        let at = |instant: Instant| instant.duration_since(start).as_nanos() as u64;
        kernels.add(vec![kernel("a", 1), kernel("b", 4)], at);
        kernels.add(vec![kernel("a", 9)], at);
        assert_eq!(kernels.names, ["a", "b"]);
        let launches: Vec<(u32, u64, u64)> = kernels
            .launches
            .iter()
            .map(|launch| (launch.name, launch.begin, launch.end))
            .collect();
        assert_eq!(
            launches,
            [(0, 1_000, 3_000), (1, 4_000, 6_000), (0, 9_000, 11_000)]
        );
    }
}
