//! What `bench ddp` found: as a table and as JSON.

use everburn_record::statistics::{Spread, median};
use everburn_record::table::aligned;
use serde::Serialize;
use serde_json::{Value, json};

use super::order::{Mode, Step};
use crate::cells::{self, mark, times};
use crate::rounds::Rounds;

/// Gradients are 32-bit floats.
const BYTES_OF_A_PARAMETER: usize = 4;

/// What was run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Setting {
    pub(super) ranks: usize,
    pub(super) transport: String,
    pub(super) width: usize,
    pub(super) layers: usize,
    pub(super) batch: usize,
    pub(super) steps: usize,
    /// The links in words, where there are some.
    #[serde(skip)]
    pub(super) network: Option<String>,
    /// Bytes per second of each link, and the delay in microseconds.
    #[serde(skip)]
    pub(super) link: Option<f64>,
    pub(super) delay_us: Option<f64>,
}

/// A step of each mode, in the order of [`Mode::ALL`], by round.
#[derive(Debug, Clone)]
pub(crate) struct DdpResults {
    pub(super) setting: Setting,
    pub(super) rounds: Rounds<Step>,
}

impl DdpResults {
    fn spread(&self, mode: Mode) -> Option<Spread> {
        self.rounds.spread(mode as usize, |step| step.milliseconds)
    }

    fn median(&self, mode: Mode) -> f64 {
        self.spread(mode).map_or(f64::NAN, |spread| spread.median)
    }

    /// A step of `mode` beside the larger of compute and exchange of its round.
    fn to_the_larger(&self, mode: Mode) -> f64 {
        let of = |round: &Vec<Step>| {
            let larger = time(round, Mode::Compute).max(time(round, Mode::Communication));
            time(round, mode) / larger
        };
        let ratios: Vec<_> = self.rounds.0.iter().map(of).collect();
        median(&ratios).unwrap_or(f64::NAN)
    }

    fn exposed_ms(&self) -> f64 {
        self.rounds
            .median(Mode::Overlapped as usize, |step| step.exposed_ms)
    }

    fn parameters(&self) -> usize {
        self.rounds.0.first().map_or(0, |round| round[0].parameters)
    }

    fn bytes(&self) -> usize {
        self.parameters() * BYTES_OF_A_PARAMETER
    }

    /// The least milliseconds that the links allow an exchange of all gradients.
    fn bound_ms(&self) -> Option<f64> {
        let ranks = self.setting.ranks as f64;
        let sent = 2.0 * (ranks - 1.0) / ranks * self.bytes() as f64;
        self.setting.link.map(|link| sent / link * 1e3)
    }

    fn is_steady(&self) -> bool {
        Mode::ALL
            .into_iter()
            .filter_map(|mode| self.spread(mode))
            .all(|spread| spread.is_steady())
    }
}

fn time(round: &[Step], mode: Mode) -> f64 {
    round[mode as usize].milliseconds
}

/// The result for a reader.
pub(super) fn table(measured: &DdpResults) -> String {
    let header = ["a step", "ms", "(min-max)", "to the larger", ""];
    let lines: Vec<_> = Mode::ALL
        .into_iter()
        .filter_map(|mode| {
            let spread = measured.spread(mode)?;
            let [middle, range] = cells::spread(spread, 1);
            let both = matches!(mode, Mode::Sequential | Mode::Overlapped);
            let ratio = both.then(|| times(Some(measured.to_the_larger(mode))));
            Some(vec![
                mode.to_string(),
                middle,
                range,
                ratio.unwrap_or_default(),
                mark(spread.is_steady()),
            ])
        })
        .collect();
    let mut text = aligned(&header, &lines, &[]);
    text.push_str(&format!(
        "\n\noverlapped / max(compute, communication) = {:.2}; {:.1} ms of communication exposed",
        measured.to_the_larger(Mode::Overlapped),
        measured.exposed_ms()
    ));
    if let Some(bound) = measured.bound_ms() {
        text.push_str(&format!(
            "\nbound of communication: 2(n-1)/n x {:.1} MiB / link = {bound:.1} ms, {:.0} % of it \
             reached",
            measured.bytes() as f64 / f64::from(1 << 20),
            bound / measured.median(Mode::Communication) * 100.0
        ));
    }
    text
}

/// The result for a program: an array of one object.
pub(super) fn to_json(measured: &DdpResults, machine: &Value) -> Value {
    let found = json!({
        "link_gbps": measured.setting.link.map(|link| link / 1e9),
        "parameters": measured.parameters(),
        "bytes": measured.bytes(),
        "rounds": measured.rounds.count(),
        "compute_ms": measured.median(Mode::Compute),
        "communication_ms": measured.median(Mode::Communication),
        "sequential_ms": measured.median(Mode::Sequential),
        "overlapped_ms": measured.median(Mode::Overlapped),
        "exposed_ms": measured.exposed_ms(),
        "bound_ms": measured.bound_ms(),
        "sequential_ratio": measured.to_the_larger(Mode::Sequential),
        "ratio": measured.to_the_larger(Mode::Overlapped),
        "steady": measured.is_steady(),
        "machine": machine,
    });
    json!([cells::joined(json!(measured.setting), found)])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::ddp) fn setting() -> Setting {
        Setting {
            ranks: 4,
            transport: "tcp".into(),
            width: 1024,
            layers: 6,
            batch: 40,
            steps: 20,
            network: None,
            link: Some(125e6),
            delay_us: None,
        }
    }

    fn measured() -> DdpResults {
        let step = |milliseconds| Step {
            milliseconds,
            exposed_ms: 12.0,
            parameters: 6_553_600,
        };
        DdpResults {
            setting: setting(),
            rounds: Rounds(vec![
                [340.0, 350.0, 700.0, 385.0].map(step).to_vec(),
                [300.0, 360.0, 690.0, 378.0].map(step).to_vec(),
                [300.0, 340.0, 900.0, 374.0].map(step).to_vec(),
            ]),
        }
    }

    #[test]
    fn the_table_compares_with_the_larger_of_both() {
        let expected = "\
a step            ms      (min-max)  to the larger
compute        300.0  (300.0-340.0)
communication  350.0  (340.0-360.0)
sequential     700.0  (690.0-900.0)          2.00x  unsteady
overlapped     378.0  (374.0-385.0)          1.10x

overlapped / max(compute, communication) = 1.10; 12.0 ms of communication exposed
bound of communication: 2(n-1)/n x 25.0 MiB / link = 314.6 ms, 90 % of it reached";
        assert_eq!(table(&measured()), expected);
    }

    #[test]
    fn a_row_of_json_has_all_four() {
        let rows = to_json(&measured(), &json!({ "cores": 2 }));
        let row = &rows[0];
        assert_eq!(row["compute_ms"], 300.0);
        assert_eq!(row["communication_ms"], 350.0);
        assert_eq!(row["sequential_ms"], 700.0);
        assert_eq!(row["overlapped_ms"], 378.0);
        assert_eq!(row["bytes"], 25 << 20);
        assert!((row["ratio"].as_f64().unwrap() - 1.1).abs() < 1e-9);
        assert_eq!(row["steady"], false);
        assert_eq!(row["delay_us"], Value::Null);
    }

    #[test]
    fn without_links_there_is_no_bound() {
        let mut measured = measured();
        measured.setting.link = None;
        assert!(!table(&measured).contains("bound"));
        assert_eq!(to_json(&measured, &Value::Null)[0]["bound_ms"], Value::Null);
    }
}
