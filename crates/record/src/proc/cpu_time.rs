//! The CPU time of this machine and of the children of this process.

use std::time::Duration;

use super::{at_start, stat_words, text};

/// The CPU time that the machine and the children of this process have used so far, in ticks of the kernel.
///
/// ```
/// use everburn_record::proc::CpuTime;
///
/// let before = CpuTime::now();
/// // A measurement.
/// let others = before.zip(CpuTime::now()).and_then(|(before, now)| before.others_share(now));
/// assert!(others.is_none_or(|share| (0.0..=1.0).contains(&share)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTime {
    /// Of all CPUs, idle or not.
    total: u64,
    busy: u64,
    /// Of the children that have ended, with theirs.
    children: u64,
}

impl CpuTime {
    /// The time until now; `None` where the system does not tell.
    pub fn now() -> Option<Self> {
        Self::parse(&text("/proc/stat")?, &text("/proc/self/stat")?)
    }

    fn parse(machine: &str, own: &str) -> Option<Self> {
        // user nice system idle iowait irq softirq steal; what follows is part of these.
        let words = machine.lines().next()?.strip_prefix("cpu ")?;
        let cpu: Vec<u64> = words
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let cpu = cpu.get(..8)?;
        let total = cpu.iter().sum();
        // The state and 12 numbers come before cutime.
        let mut words = stat_words(own).skip(13);
        let mut next = || words.next()?.parse::<u64>().ok();
        let (user, system) = (next()?, next()?);
        Some(Self {
            total,
            busy: total - cpu[3] - cpu[4],
            children: user + system,
        })
        .filter(|time| time.busy > 0)
    }

    /// The share of the time between `self` and `later` that went neither to our children nor to idleness.
    pub fn others_share(self, later: Self) -> Option<f64> {
        let total = later.total.checked_sub(self.total)?;
        let busy = later.busy.checked_sub(self.busy)?;
        let children = later.children.checked_sub(self.children)?;
        (total > 0).then(|| busy.saturating_sub(children) as f64 / total as f64)
    }

    /// The CPU time of the children that have ended between `self` and `later`, their own ended children included.
    pub fn of_children_until(self, later: Self) -> Option<Duration> {
        let ticks = later.children.checked_sub(self.children)?;
        Some(Duration::from_secs_f64(
            ticks as f64 / ticks_per_second()? as f64,
        ))
    }
}

/// The kernel's ticks per second (`AT_CLKTCK`).
fn ticks_per_second() -> Option<usize> {
    at_start(17).filter(|ticks| *ticks > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_took_is_the_busy_time_less_ours() {
        let own = |user, system| {
            format!("7 (a ) b) S 1 7 7 0 -1 0 1 2 3 4 5 6 {user} {system} 20 0 1 0 99")
        };
        let time = |machine: &str, own: &str| CpuTime::parse(machine, own).unwrap();
        let before = time("cpu  100 0 50 800 50 0 0 0 9 9\ncpu0 1", &own(10, 0));
        let expected = CpuTime {
            total: 1000,
            busy: 150,
            children: 10,
        };
        assert_eq!(before, expected);
        // 1000 later: 200 idle, 800 busy, of which 600 are our children's.
        let later = time("cpu  800 0 100 1000 50 0 0 50 9 9\ncpu0 1", &own(600, 10));
        assert_eq!(before.others_share(later), Some(0.2));
        assert_eq!(before.others_share(before), None);
        assert_eq!(CpuTime::parse("cpu  0 0 0 0 0 0 0 0", &own(1, 1)), None);
        assert_eq!(CpuTime::parse("", ""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_counts_once_it_has_ended() {
        let before = CpuTime::now().unwrap();
        let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
        let shell = std::process::Command::new("sh").args(["-c", busy]).status();
        assert!(shell.unwrap().success());
        let later = CpuTime::now().unwrap();
        assert!(before.of_children_until(later) > Some(Duration::ZERO));
        assert_eq!(before.of_children_until(before), Some(Duration::ZERO));
        assert_eq!(later.of_children_until(before), None);
    }
}
