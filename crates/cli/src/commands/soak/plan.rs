//! What goes wrong in a run: drawn from a seed, so that a run can be repeated.

use std::fmt;

/// What happens to a training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// Each at a step.
    pub(super) faults: Vec<Fault<u64>>,
    /// This many ranks are lost, and none comes back, that the others are too few to continue.
    pub(super) too_few: bool,
}

/// A fault, and at which step or how long after the first one it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault<At> {
    pub(super) kind: Kind,
    /// The rank; with `--minutes` it chooses one of the ranks or machines that are there.
    pub(super) rank: u64,
    pub(super) at: At,
}

/// What happens to a rank, or to a machine and all of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// SIGKILL to a rank.
    Kill,
    /// SIGSTOP to a rank: its launcher kills it.
    Stall,
    /// The connections between a rank and this one are lost. By `--chaos` alone.
    Drop(u64),
    /// SIGSTOP to a rank, and SIGCONT before it counts as stopped. From outside alone.
    Freeze,
    /// SIGKILL to a launcher, whose ranks end with it. From outside alone.
    Machine,
    /// The link of a machine is lost until the others continue without it. From outside alone.
    Cut,
    /// The link of a machine is lost for a moment. From outside alone.
    LostLink,
    /// The link of a machine has a low rate for a while. From outside alone.
    Slow,
    /// The disk of the machine that writes checkpoints is full until one has failed. From outside alone.
    Disk,
}

impl Kind {
    /// Whether it happens to a link or a launcher, so that the others may have to continue without the machine.
    pub(super) fn takes_a_machine(self) -> bool {
        matches!(
            self,
            Self::Machine | Self::Cut | Self::LostLink | Self::Slow
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Stall => "stall",
            Self::Drop(_) => "drop",
            Self::Freeze => "freeze",
            Self::Machine => "machine",
            Self::Cut => "cut",
            Self::LostLink => "lost-link",
            Self::Slow => "slow",
            Self::Disk => "disk",
        })
    }
}

impl fmt::Display for Plan {
    /// As `--chaos` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Fault { kind, rank, at }) in self.faults.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{kind}={rank}")?;
            if let Kind::Drop(other) = kind {
                write!(f, "-{other}")?;
            }
            write!(f, "@step:{at}")?;
        }
        Ok(())
    }
}

/// In what a plan is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) ranks: u64,
    pub(super) min: u64,
    pub(super) steps: u64,
}

/// One in this many plans loses more ranks than it may.
const TOO_FEW_IN: u64 = 8;

impl Plan {
    pub(super) fn draw(seed: u64, bounds: Bounds) -> Self {
        let mut random = Random(seed);
        let Bounds { ranks, min, steps } = bounds;
        // The first step has no checkpoint before it, and after the last nothing is left to lose.
        let mut step = || 2 + random.below(steps.saturating_sub(3).max(1));
        let steps: [u64; 8] = std::array::from_fn(|_| step());
        if random.below(TOO_FEW_IN) == 0 {
            let lost = (ranks - min + 1).min(steps.len() as u64);
            let first = random.below(ranks);
            let kill = |number: u64| Fault {
                kind: Kind::Kill,
                rank: (first + number) % ranks,
                at: steps[number as usize],
            };
            return Self {
                faults: (0..lost).map(kill).collect(),
                too_few: true,
            };
        }
        let faults = 1 + random.below(2);
        let faults = (0..faults).map(|number| {
            let rank = random.below(ranks);
            let kind = match random.below(3) {
                0 => Kind::Kill,
                1 => Kind::Stall,
                _ => Kind::Drop((rank + 1 + random.below(ranks - 1)) % ranks),
            };
            let at = steps[number as usize];
            Fault { kind, rank, at }
        });
        Self {
            faults: faults.collect(),
            too_few: false,
        }
    }

    /// Whether all faults are of one kind, so that what was lost can be told to be lost by it.
    pub(super) fn is_all(&self, kind: Kind) -> bool {
        !self.too_few && self.faults.iter().all(|fault| fault.kind == kind)
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014, figure 15).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; the bias is far too small to matter here.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        ranks: 4,
        min: 2,
        steps: 40,
    };

    #[test]
    fn a_seed_names_a_plan() {
        assert_eq!(Plan::draw(7, BOUNDS), Plan::draw(7, BOUNDS));
        let plans = (0..200).map(|seed| Plan::draw(seed, BOUNDS));
        let plans = plans.collect::<Vec<_>>();
        let has = |what: &str| plans.iter().any(|plan| plan.to_string().contains(what));
        assert!(has("kill=") && has("stall=") && has("drop=") && has(","));
        assert!(plans.iter().any(|plan| plan.too_few));
        for plan in &plans {
            assert!(!plan.faults.is_empty());
            assert!(
                plan.faults.iter().all(|f| (2..40).contains(&f.at)),
                "{plan}"
            );
            for fault in &plan.faults {
                if let Kind::Drop(other) = fault.kind {
                    assert_ne!(fault.rank, other, "{plan}");
                }
            }
        }
        let fault = |kind, rank, at| Fault { kind, rank, at };
        let plan = Plan {
            faults: vec![
                fault(Kind::Kill, 1, 7),
                fault(Kind::Stall, 0, 9),
                fault(Kind::Drop(3), 2, 11),
            ],
            too_few: false,
        };
        let chaos = "kill=1@step:7,stall=0@step:9,drop=2-3@step:11";
        assert_eq!(plan.to_string(), chaos, "as --chaos takes it");
        assert!(!plan.is_all(Kind::Kill));
    }

    #[test]
    fn too_few_are_left_where_that_is_planned() {
        let plans = (0..200).map(|seed| Plan::draw(seed, BOUNDS));
        let plans: Vec<_> = plans.filter(|plan| plan.too_few).collect();
        assert!(!plans.is_empty());
        for plan in plans {
            let mut lost = plan
                .faults
                .iter()
                .map(|fault| fault.rank)
                .collect::<Vec<_>>();
            lost.dedup();
            assert_eq!(lost.len(), 3, "{plan}");
        }
    }
}
