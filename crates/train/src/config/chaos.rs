//! Faults on purpose: `kill=2@step:100,slow=3@step:10:200ms`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What goes wrong with a rank. Ranks are those at the start of the job, however they are numbered later.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Chaos;
///
/// // Rank 2 is killed at step 100, rank 1 stopped at step 50.
/// let chaos: Chaos = "kill=2@step:100,stall=1@step:50".parse().unwrap();
/// assert_eq!(chaos.to_string(), "kill=2@step:100,stall=1@step:50");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its process ends by SIGKILL.
    Kill(usize),
    /// Its process stops by SIGSTOP.
    Stall(usize),
    /// It takes so much longer for this step and all later ones.
    Slow(usize, Duration),
    /// The connection between two ranks breaks.
    Drop(usize, usize),
    /// A number among its parameters changes.
    Corrupt(usize),
    /// Its gradients are too large for `f16`.
    Overflow(usize),
}

impl Fault {
    fn befalls(self, rank: usize) -> bool {
        self.rank() == rank || matches!(self, Self::Drop(_, other) if other == rank)
    }

    /// The rank that it befalls, of two the first.
    pub(crate) fn rank(self) -> usize {
        match self {
            Self::Kill(rank)
            | Self::Stall(rank)
            | Self::Slow(rank, _)
            | Self::Drop(rank, _)
            | Self::Corrupt(rank)
            | Self::Overflow(rank) => rank,
        }
    }

    /// What happens at step `step`, in words.
    pub(crate) fn text(self, step: usize) -> String {
        match self {
            Self::Kill(rank) => format!("rank {rank} is killed at step {step}"),
            Self::Stall(rank) => format!("rank {rank} is stopped at step {step}"),
            Self::Slow(rank, by) => {
                let by = by.as_millis();
                format!("rank {rank} takes {by} ms longer per step from step {step} on")
            }
            Self::Drop(one, other) => format!("rank {one} loses rank {other} at step {step}"),
            Self::Corrupt(rank) => format!("a parameter of rank {rank} changes after step {step}"),
            Self::Overflow(rank) => format!("gradients of rank {rank} overflow at step {step}"),
        }
    }
}

/// Faults and the steps at the beginning of which they happen; a changed parameter is found after its step.
/// A process that took the place of a lost one is spared.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{Chaos, Fault};
///
/// let chaos: Chaos = "kill=2@step:100,slow=3@step:10:200ms,drop=0-2@step:30".parse()?;
/// assert_eq!(chaos.at(100, 2).collect::<Vec<_>>(), [Fault::Kill(2)]);
/// assert_eq!(chaos.to_string(), "kill=2@step:100,slow=3@step:10:200ms,drop=0-2@step:30");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chaos {
    faults: Vec<(Fault, usize)>,
}

impl Chaos {
    /// Whether nothing goes wrong.
    pub fn is_none(&self) -> bool {
        self.faults.is_empty()
    }

    /// Whether a rank's parameters are changed.
    pub(crate) fn corrupts(&self) -> bool {
        self.any(|fault| matches!(fault, Fault::Corrupt(_)))
    }

    /// What befalls `rank` at step `step`, counted from 1.
    pub fn at(&self, step: usize, rank: usize) -> impl Iterator<Item = Fault> {
        let now = move |fault: Fault, from: usize| match fault {
            Fault::Slow(..) => step >= from,
            _ => step == from,
        };
        let faults = self.faults.iter().copied();
        faults
            .filter(move |(fault, from)| now(*fault, *from) && fault.befalls(rank))
            .map(|(fault, _)| fault)
    }

    /// The faults that begin at step `step`, counted from 1, of all ranks.
    pub(crate) fn beginning_at(&self, step: usize) -> impl Iterator<Item = Fault> {
        let faults = self.faults.iter();
        let now = faults.filter(move |(_, from)| *from == step);
        now.map(|(fault, _)| *fault)
    }

    /// Whether gradients are to overflow.
    pub(crate) fn overflows(&self) -> bool {
        self.any(|fault| matches!(fault, Fault::Overflow(_)))
    }

    fn any(&self, is_one: impl Fn(Fault) -> bool) -> bool {
        self.faults.iter().any(|(fault, _)| is_one(*fault))
    }

    /// The highest rank that is named.
    pub fn highest_rank(&self) -> Option<usize> {
        let ranks = self.faults.iter().map(|(fault, _)| match *fault {
            Fault::Drop(one, other) => one.max(other),
            fault => fault.rank(),
        });
        ranks.max()
    }
}

impl fmt::Display for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (fault, step)) in self.faults.iter().enumerate() {
            if number > 0 {
                f.write_str(",")?;
            }
            match *fault {
                Fault::Kill(rank) => write!(f, "kill={rank}@step:{step}")?,
                Fault::Stall(rank) => write!(f, "stall={rank}@step:{step}")?,
                Fault::Slow(rank, by) => {
                    write!(f, "slow={rank}@step:{step}:{}ms", by.as_millis())?;
                }
                Fault::Drop(one, other) => write!(f, "drop={one}-{other}@step:{step}")?,
                Fault::Corrupt(rank) => write!(f, "corrupt={rank}@step:{step}")?,
                Fault::Overflow(rank) => write!(f, "overflow={rank}@step:{step}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Chaos {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |text: &str| {
            fault(text.trim()).ok_or_else(|| {
                format!(
                    "`{}` is no fault: use kill=RANK@step:N, stall=RANK@step:N, slow=RANK@step:N:200ms, \
                     drop=RANK-RANK@step:N, corrupt=RANK@step:N or overflow=RANK@step:N, several with commas between",
                    text.trim()
                )
            })
        };
        let faults = text.split(',').filter(|part| !part.trim().is_empty());
        let faults = faults.map(one).collect::<Result<_, _>>()?;
        Ok(Self { faults })
    }
}

fn fault(text: &str) -> Option<(Fault, usize)> {
    let (kind, rest) = text.split_once('=')?;
    let (ranks, when) = rest.split_once('@')?;
    let when = when.strip_prefix("step:")?;
    let (step, more) = match when.split_once(':') {
        Some((step, more)) => (step, Some(more)),
        None => (when, None),
    };
    let step = step.parse().ok().filter(|step| *step > 0)?;
    let rank = || ranks.parse::<usize>().ok();
    let fault = match (kind, more) {
        ("kill", None) => Fault::Kill(rank()?),
        ("stall", None) => Fault::Stall(rank()?),
        ("corrupt", None) => Fault::Corrupt(rank()?),
        ("overflow", None) => Fault::Overflow(rank()?),
        ("slow", Some(by)) => Fault::Slow(rank()?, duration(by)?),
        ("drop", None) => {
            let (one, other) = ranks.split_once('-')?;
            let (one, other) = (one.parse().ok()?, other.parse().ok()?);
            (one != other).then_some(Fault::Drop(one, other))?
        }
        _ => return None,
    };
    Some((fault, step))
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s')?, 1_000),
    };
    let number = number.parse::<u64>().ok()?;
    number.checked_mul(unit).map(Duration::from_millis)
}

everburn_record::serde_as_text!(Chaos);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_fault_is_refused() {
        for text in [
            "kill",
            "kill=1",
            "kill=1@100",
            "kill=x@step:1",
            "kill=1@step:0",
            "kill=1@step:2:3ms",
            "slow=1@step:2",
            "slow=1@step:2:3",
            "drop=1@step:2",
            "drop=1-1@step:2",
            "overflow=1@step:2:3ms",
            "melt=1@step:2",
        ] {
            assert!(text.parse::<Chaos>().is_err(), "{text}");
        }
    }

    #[test]
    fn slowness_lasts_and_all_else_happens_once() {
        let chaos: Chaos = "slow=1@step:5:1s,corrupt=1@step:5".parse().unwrap();
        let slow = Fault::Slow(1, Duration::from_secs(1));
        assert_eq!(chaos.at(4, 1).count(), 0);
        assert_eq!(
            chaos.at(5, 1).collect::<Vec<_>>(),
            [slow, Fault::Corrupt(1)]
        );
        assert_eq!(chaos.at(6, 1).collect::<Vec<_>>(), [slow]);
        assert_eq!(chaos.at(5, 0).count(), 0);
        let of_all = |step| chaos.beginning_at(step).map(move |fault| fault.text(step));
        let texts = [
            "rank 1 takes 1000 ms longer per step from step 5 on",
            "a parameter of rank 1 changes after step 5",
        ];
        assert_eq!(of_all(5).collect::<Vec<_>>(), texts);
        assert_eq!(of_all(6).count(), 0);
    }
}
