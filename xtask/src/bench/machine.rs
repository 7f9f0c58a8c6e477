//! What a measurement was made on.

use std::fs;

use serde_json::{Value, json};

/// The machine, as far as it bears on speed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Machine {
    /// Cores that this process may use.
    pub(super) cores: usize,
    pub(super) cpu: String,
    /// How many processes wanted a core in the last minute, before we began.
    pub(super) load: Option<f64>,
}

impl Machine {
    pub(super) fn look() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu_name(&cpuinfo),
            load: load.split(' ').next().and_then(|load| load.parse().ok()),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "cores": self.cores, "cpu": self.cpu, "load_before": self.load })
    }

    /// One line, and how far the numbers are to be trusted.
    pub(super) fn describe(&self) -> String {
        let Self { cores, cpu, load } = self;
        let plural = if *cores == 1 { "" } else { "s" };
        let others = match load {
            None => "how busy it was is not known".to_owned(),
            Some(load) => format!("load {load} before the start"),
        };
        let noise = match load {
            // A quarter of the cores is enough to shift a measurement that wants them all.
            Some(load) if *load > *cores as f64 / 4.0 => {
                "OTHER PROCESSES ARE RUNNING: samples/s are too low, trust the ratios only"
            }
            _ => "noisy all the same: ratios vary less than samples/s",
        };
        format!("machine: {cores} core{plural}, {cpu}; {others}\n         {noise}")
    }
}

fn cpu_name(cpuinfo: &str) -> String {
    let name = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| format!("an {} processor", std::env::consts::ARCH))
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
        let machine = |load| Machine {
            cores: 2,
            cpu: "Xeon 9".into(),
            load,
        };
        let busy = machine(Some(3.5)).describe();
        assert!(
            busy.starts_with("machine: 2 cores, Xeon 9; load 3.5"),
            "{busy}"
        );
        assert!(busy.contains("OTHER PROCESSES"), "{busy}");
        assert!(!machine(Some(0.1)).describe().contains("OTHER PROCESSES"));
        assert!(machine(None).describe().contains("noisy"));
    }
}
