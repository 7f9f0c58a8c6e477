//! What `bench recompute` found: as a table and as JSON.

use everburn_record::table::aligned;
use serde_json::{Value, json};

use super::options::RecomputeOptions;
use crate::bench::process::Failure;
use crate::bench::statistics::{Spread, median_ratio};

const MIB: f64 = 1_048_576.0;

/// What a run tells.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::bench) struct Side {
    how: String,
    milliseconds: f64,
    peak_bytes: f64,
    parameters: u64,
    loss: f64,
}

impl Side {
    /// Reads the line of a run with `how`; a run that did something else is no measurement.
    pub(super) fn parse(said: &[Value], how: &str) -> Result<Self, Failure> {
        let broken = |what: String| Failure::new(format!("the result of `{how}`: {what}"));
        let line = said
            .iter()
            .rev()
            .find(|line| line["step_ms_p50"].is_number());
        let line = line.ok_or_else(|| broken("none has been told".into()))?;
        if line["activation_checkpointing"] != how {
            let other = &line["activation_checkpointing"];
            return Err(broken(format!("it is of {other}")));
        }
        let number = |name: &str| {
            let number = line[name].as_f64().filter(|value| *value > 0.0);
            number.ok_or_else(|| broken(format!("no `{name}` in {line}")))
        };
        Ok(Self {
            how: how.to_string(),
            milliseconds: number("step_ms_p50")?,
            peak_bytes: number("peak_bytes")?,
            parameters: number("parameters")? as u64,
            loss: number("loss")?,
        })
    }

    pub(super) fn describe(&self) -> String {
        let (how, mebibytes) = (&self.how, self.peak_bytes / MIB);
        format!("{how} {:.0} ms {mebibytes:.0} MiB", self.milliseconds)
    }
}

/// All sides, by round.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Measured {
    pub(super) sides: Vec<String>,
    pub(super) rounds: Vec<Vec<Side>>,
}

impl Measured {
    fn of(&self, side: usize, what: fn(&Side) -> f64) -> Vec<f64> {
        self.rounds.iter().map(|round| what(&round[side])).collect()
    }

    fn median(&self, side: usize, what: fn(&Side) -> f64) -> f64 {
        Spread::of(&self.of(side, what)).map_or(f64::NAN, |spread| spread.median)
    }

    /// How much more time and memory `how` takes than no checkpointing; less is negative.
    pub(in crate::bench) fn more_time_and_memory(&self, how: &str) -> Option<(f64, f64)> {
        let side = self.sides.iter().position(|side| side == how)?;
        Some((self.more(side, milliseconds), self.more(side, peak)))
    }

    /// How much more than without checkpointing, compared within each round; less is negative.
    fn more(&self, side: usize, what: fn(&Side) -> f64) -> f64 {
        let ratio = median_ratio(&self.of(side, what), &self.of(0, what));
        ratio.map_or(f64::NAN, |ratio| ratio - 1.0)
    }
}

fn milliseconds(side: &Side) -> f64 {
    side.milliseconds
}

fn peak(side: &Side) -> f64 {
    side.peak_bytes
}

fn loss(side: &Side) -> f64 {
    side.loss
}

/// The result for a reader.
pub(in crate::bench) fn table(measured: &Measured) -> String {
    let header = [
        "kept by",
        "ms a step",
        "(min-max)",
        "time",
        "peak MiB",
        "memory",
        "loss",
    ];
    let lines = measured.sides.iter().enumerate().filter_map(|(side, how)| {
        let Spread { median, min, max } = Spread::of(&measured.of(side, milliseconds))?;
        let more = |what| match side {
            0 => String::new(),
            _ => format!("{:+.0} %", 100.0 * measured.more(side, what)),
        };
        Some(vec![
            how.clone(),
            format!("{median:.0}"),
            format!("({min:.0}-{max:.0})"),
            more(milliseconds),
            format!("{:.0}", measured.median(side, peak) / MIB),
            more(peak),
            format!("{:.6}", measured.median(side, loss)),
        ])
    });
    aligned(&header, &lines.collect::<Vec<_>>(), &[])
}

/// The result for a program: an array of one object a side.
pub(in crate::bench) fn to_json(
    measured: &Measured,
    options: &RecomputeOptions,
    machine: &Value,
) -> Value {
    let sides = measured.sides.iter().enumerate().map(|(side, how)| {
        let mut row = json!({
            "activation_checkpointing": how,
            "rounds": measured.rounds.len(),
            "step_ms": measured.median(side, milliseconds),
            "peak_bytes": measured.median(side, peak),
            "more_time": measured.more(side, milliseconds),
            "more_memory": measured.more(side, peak),
            "loss": measured.median(side, loss),
            "parameters": measured.rounds.first().map(|round| round[side].parameters),
            "machine": machine,
        });
        for (flag, number) in options.numbers() {
            row[flag.trim_start_matches("--")] = number.into();
        }
        row
    });
    sides.collect()
}

#[cfg(test)]
pub(in crate::bench) mod tests {
    use super::*;

    /// A side that keeps two fifths and takes a quarter longer, unless it is the plain one.
    pub(in crate::bench) fn side(how: &str) -> Side {
        let plain = how == "none";
        Side {
            how: how.to_string(),
            milliseconds: if plain { 100.0 } else { 125.0 },
            peak_bytes: if plain { 500.0 * MIB } else { 200.0 * MIB },
            parameters: 7,
            loss: 4.1,
        }
    }

    /// Both sides, in three rounds.
    pub(in crate::bench) fn measured() -> Measured {
        Measured {
            sides: vec!["none".into(), "blocks".into()],
            rounds: vec![vec![side("none"), side("blocks")]; 3],
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

    #[test]
    fn a_run_of_something_else_is_no_measurement() {
        let line = json!({
            "activation_checkpointing": "burn", "step_ms_p50": 1.5, "peak_bytes": 7, "parameters": 3,
            "loss": 4.0,
        });
        let side = Side::parse(std::slice::from_ref(&line), "burn").unwrap();
        assert_eq!((side.milliseconds, side.peak_bytes), (1.5, 7.0));
        assert!(Side::parse(&[line], "blocks").is_err());
        assert!(Side::parse(&[json!({})], "none").is_err());
    }
}
