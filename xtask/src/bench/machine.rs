//! What a measurement was made on, and who else used it meanwhile.

use std::fs;

use serde_json::{Value, json};

/// Above this share, others have shifted what we measured.
const DISTURBING: f64 = 0.05;

/// The machine, as far as it bears on speed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Machine {
    /// Cores that this process may use.
    pub(super) cores: usize,
    pub(super) cpu: String,
}

impl Machine {
    pub(super) fn look() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu_name(&cpuinfo),
        }
    }

    /// `others`: the share of the processor time that went to other processes.
    pub(super) fn to_json(&self, others: Option<f64>) -> Value {
        json!({ "cores": self.cores, "cpu": self.cpu, "others_share": others })
    }

    /// Says how far the numbers are to be trusted.
    pub(super) fn describe(&self, others: Option<f64>) -> String {
        let Self { cores, cpu } = self;
        let plural = if *cores == 1 { "" } else { "s" };
        let trust = match others {
            None => "how busy others were is not known; expect noise".to_owned(),
            Some(share) if share <= DISTURBING => format!(
                "others took {:.0} % of it meanwhile; expect noise of some percent",
                share * 100.0
            ),
            // PyTorch's threads spin for each other: one that is kept waiting stops them all.
            Some(share) => format!(
                "OTHERS TOOK {:.0} % OF IT MEANWHILE: do not quote these numbers, nor the ratios, \
                 because\n         what shares cores badly (threads that spin, as PyTorch's do) \
                 loses more than its share",
                share * 100.0
            ),
        };
        format!("machine: {cores} core{plural}, {cpu}\n         {trust}")
    }
}

fn cpu_name(cpuinfo: &str) -> String {
    let name = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| format!("an {} processor", std::env::consts::ARCH))
}

/// Processor time so far, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessorTime {
    /// Of all cores, idle or not.
    total: u64,
    busy: u64,
    /// Of the children that have ended, with theirs.
    children: u64,
}

impl ProcessorTime {
    /// `None` where the system does not say.
    pub(super) fn now() -> Option<Self> {
        let machine = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&machine, &own)
    }

    fn parse(machine: &str, own: &str) -> Option<Self> {
        let numbers = |text: &str| -> Vec<u64> {
            let words = text.split_whitespace();
            words.map_while(|word| word.parse().ok()).collect()
        };
        // user nice system idle iowait irq softirq steal; what follows is part of these.
        let cpu = numbers(machine.lines().next()?.strip_prefix("cpu ")?);
        let cpu = cpu.get(..8)?;
        let total = cpu.iter().sum();
        // The name in parentheses may hold anything; the state and 12 numbers come before cutime.
        let (_, after_name) = own.rsplit_once(')')?;
        let mut words = after_name.split_whitespace().skip(13);
        let mut next = || words.next()?.parse::<u64>().ok();
        let (user, system) = (next()?, next()?);
        Some(Self {
            total,
            busy: total - cpu[3] - cpu[4],
            children: user + system,
        })
        .filter(|time| time.busy > 0)
    }

    /// The share of the time between `self` and `later` that went to neither us nor idleness.
    pub(super) fn others_share(self, later: Self) -> Option<f64> {
        let total = later.total.checked_sub(self.total)?;
        let busy = later.busy.checked_sub(self.busy)?;
        let children = later.children.checked_sub(self.children)?;
        (total > 0).then(|| busy.saturating_sub(children) as f64 / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named_where_the_system_names_it() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Xeon 9 @ 2.50GHz\nprocessor\t: 1\n";
        assert_eq!(cpu_name(cpuinfo), "Xeon 9 @ 2.50GHz");
        assert!(cpu_name("processor\t: 0\n").contains(std::env::consts::ARCH));
    }

    #[test]
    fn a_busy_machine_is_called_so() {
        let machine = Machine {
            cores: 2,
            cpu: "Xeon 9".into(),
        };
        let busy = machine.describe(Some(0.47));
        assert!(busy.starts_with("machine: 2 cores, Xeon 9\n"), "{busy}");
        assert!(busy.contains("OTHERS TOOK 47 %"), "{busy}");
        assert!(machine.describe(Some(0.01)).contains("others took 1 %"));
        assert!(machine.describe(None).contains("not known"));
    }

    #[test]
    fn what_others_took_is_the_busy_time_less_ours() {
        let own = |user, system| {
            format!("7 (a ) b) S 1 7 7 0 -1 0 1 2 3 4 5 6 {user} {system} 20 0 1 0 99")
        };
        let time = |machine: &str, own: &str| ProcessorTime::parse(machine, own).unwrap();
        let before = time("cpu  100 0 50 800 50 0 0 0 9 9\ncpu0 1", &own(10, 0));
        let expected = ProcessorTime {
            total: 1000,
            busy: 150,
            children: 10,
        };
        assert_eq!(before, expected);
        // 1000 later: 200 idle, 800 busy, of which 600 are our children's.
        let later = time("cpu  800 0 100 1000 50 0 0 50 9 9\ncpu0 1", &own(600, 10));
        assert_eq!(before.others_share(later), Some(0.2));
        assert_eq!(before.others_share(before), None);
        assert_eq!(
            ProcessorTime::parse("cpu  0 0 0 0 0 0 0 0", &own(1, 1)),
            None
        );
        assert_eq!(ProcessorTime::parse("", ""), None);
    }
}
