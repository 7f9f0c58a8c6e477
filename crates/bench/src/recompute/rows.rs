//! What `bench recompute` found: as a table and as JSON.

use everburn_record::table::aligned;
use serde_json::{Value, json};

use super::options::RecomputeBench;
use super::order::Side;
use crate::cells;
use crate::rounds::Rounds;

pub(super) const MIB: f64 = 1_048_576.0;

/// All sides, by round.
#[derive(Debug, Clone)]
pub(crate) struct RecomputeResults {
    pub(super) sides: Vec<String>,
    pub(super) rounds: Rounds<Side>,
}

impl RecomputeResults {
    /// How much more time and memory `how` takes than no checkpointing; less is negative.
    pub(crate) fn more_time_and_memory(&self, how: &str) -> Option<(f64, f64)> {
        let side = self.sides.iter().position(|side| side == how)?;
        let more = |what: fn(&Side) -> f64| self.rounds.more(side, what);
        Some((more(milliseconds), more(peak)))
    }
}

fn milliseconds(side: &Side) -> f64 {
    side.milliseconds
}

fn peak(side: &Side) -> f64 {
    side.peak_bytes as f64
}

fn loss(side: &Side) -> f64 {
    side.loss
}

/// The result for a reader.
pub(crate) fn table(measured: &RecomputeResults) -> String {
    let header = [
        "kept by",
        "ms / step",
        "(min-max)",
        "time",
        "peak MiB",
        "memory",
        "loss",
    ];
    let lines = measured.sides.iter().enumerate().filter_map(|(side, how)| {
        let [middle, range] = cells::spread(measured.rounds.spread(side, milliseconds)?, 0);
        let more = |what: fn(&Side) -> f64| match side {
            0 => String::new(),
            _ => cells::more(measured.rounds.more(side, what), 0),
        };
        Some(vec![
            how.clone(),
            middle,
            range,
            more(milliseconds),
            format!("{:.0}", measured.rounds.median(side, peak) / MIB),
            more(peak),
            format!("{:.6}", measured.rounds.median(side, loss)),
        ])
    });
    aligned(&header, &lines.collect::<Vec<_>>(), &[])
}

/// The result for a program: an array of one object a side.
pub(crate) fn to_json(
    measured: &RecomputeResults,
    options: &RecomputeBench,
    machine: &Value,
) -> Value {
    let sides = measured.sides.iter().enumerate().map(|(side, how)| {
        let found = json!({
            "rounds": measured.rounds.count(),
            "step_ms": measured.rounds.median(side, milliseconds),
            "peak_bytes": measured.rounds.median(side, peak),
            "more_time": measured.rounds.more(side, milliseconds),
            "more_memory": measured.rounds.more(side, peak),
            "loss": measured.rounds.median(side, loss),
            "parameters": measured.rounds.0.first().map(|round| round[side].parameters),
            "machine": machine,
        });
        cells::joined(json!(options.order(how)), found)
    });
    sides.collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A side that keeps two fifths and takes a quarter longer, unless it is the plain one.
    pub(crate) fn side(how: &str) -> Side {
        let plain = how == "none";
        Side {
            milliseconds: if plain { 100.0 } else { 125.0 },
            peak_bytes: if plain { 500 << 20 } else { 200 << 20 },
            parameters: 7,
            loss: 4.1,
        }
    }

    /// Both sides, in three rounds.
    pub(crate) fn measured() -> RecomputeResults {
        RecomputeResults {
            sides: vec!["none".into(), "blocks".into()],
            rounds: Rounds(vec![vec![side("none"), side("blocks")]; 3]),
        }
    }

    #[test]
    fn both_sides_stand_beside_each_other() {
        let measured = measured();
        assert_eq!(measured.more_time_and_memory("burn"), None);
        let table = table(&measured);
        let last = table.lines().last().unwrap();
        assert!(last.contains("+25 %") && last.contains("-60 %"), "{table}");
    }
}
