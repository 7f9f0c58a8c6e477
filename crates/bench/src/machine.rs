//! What a measurement was made on, and who else used it meanwhile.

use everburn_record::units::counted;
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
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: everburn_record::proc::cpu_name()
                .unwrap_or_else(|| format!("an {} processor", std::env::consts::ARCH)),
        }
    }

    /// `others`: the share of the processor time that went to other processes.
    pub(super) fn to_json(&self, others: Option<f64>) -> Value {
        json!({ "cores": self.cores, "cpu": self.cpu, "others_share": others })
    }

    /// Says how far the numbers are to be trusted.
    pub(super) fn describe(&self, others: Option<f64>) -> String {
        let Self { cores, cpu } = self;
        let cores = counted(*cores, "core");
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
        format!("machine: {cores}, {cpu}\n         {trust}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
