//! What a run of `everburn bench-pipeline` tells of its steps.

use serde_json::Value;

use crate::bench::process::Failure;

/// Medians over the steps of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) milliseconds: f64,
    /// The share of the step for which a rank computes nothing, the mean over ranks.
    pub(super) idle: f64,
    /// What the formula says, for stages of equal cost.
    pub(super) theory: f64,
    /// What the simulation says, with the costs that were measured.
    pub(super) simulated: f64,
    /// By rank: the most memory of a step above what there was before it.
    pub(super) bytes: Vec<f64>,
    /// By rank: the most micro-batches kept.
    pub(super) live: Vec<u64>,
    /// By stage: what its passes take.
    pub(super) stages: Value,
}

impl Step {
    /// Reads the line of a run of `schedule`; a run that did something else is no measurement.
    pub(super) fn parse(
        said: &[Value],
        schedule: &str,
        micro_batches: usize,
    ) -> Result<Self, Failure> {
        let broken = |what: String| Failure::new(format!("the result of {schedule}: {what}"));
        let of_steps = |line: &&Value| line["schedule"].is_string();
        let line = said.iter().rev().find(of_steps);
        let line = line.ok_or_else(|| broken("rank 0 has told none".into()))?;
        let (other, number) = (&line["schedule"], &line["micro_batches"]);
        if other != schedule || number.as_u64() != Some(micro_batches as u64) {
            return Err(broken(format!(
                "it is of {other} with {number} micro-batches"
            )));
        }
        let missing = |name: &str| broken(format!("no `{name}` in {line}"));
        let number = |name: &str| {
            let number = line[name].as_f64().filter(|value| *value >= 0.0);
            number.ok_or_else(|| missing(name))
        };
        let list = |name: &str| line[name].as_array().ok_or_else(|| missing(name));
        let bytes = list("activation_bytes")?.iter().map(Value::as_f64);
        let live = list("live")?.iter().map(Value::as_u64);
        Ok(Self {
            milliseconds: number("step_ms_p50")?,
            idle: number("idle_share")?,
            theory: number("theory")?,
            simulated: number("simulated")?,
            bytes: bytes
                .collect::<Option<_>>()
                .ok_or_else(|| missing("activation_bytes"))?,
            live: live.collect::<Option<_>>().ok_or_else(|| missing("live"))?,
            stages: line["stages"].clone(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A step of two ranks that is idle for `idle`, where 0.1 is right, and keeps so many MiB.
    pub(in crate::bench::pipeline) fn step(idle: f64, mebibytes: [u64; 2]) -> Step {
        Step {
            milliseconds: 900.0,
            idle,
            theory: 0.1,
            simulated: 0.105,
            bytes: mebibytes.map(|n| (n << 20) as f64).to_vec(),
            live: vec![2, 1],
            stages: json!([]),
        }
    }

    #[test]
    fn a_run_of_something_else_is_no_measurement() {
        let line = json!({
            "schedule": "1f1b", "micro_batches": 8, "step_ms_p50": 900.0, "idle_share": 0.1,
            "theory": 0.1, "simulated": 0.105, "activation_bytes": [2097152.0, 1048576.0],
            "live": [2, 1], "stages": [],
        });
        let said = [json!({ "chatter": 1 }), line.clone()];
        assert_eq!(Step::parse(&said, "1f1b", 8), Ok(step(0.1, [2, 1])));
        let wrong = |schedule, micro_batches| {
            let failure = Step::parse(&said, schedule, micro_batches).unwrap_err();
            failure.to_string()
        };
        assert!(wrong("gpipe", 8).contains("of \"1f1b\" with 8"));
        assert!(wrong("1f1b", 16).contains("with 8 micro-batches"));
        let mut without = line;
        without["live"] = Value::Null;
        let failure = Step::parse(&[without], "1f1b", 8).unwrap_err().to_string();
        assert!(failure.contains("no `live`"), "{failure}");
        assert!(Step::parse(&[], "1f1b", 8).is_err());
    }
}
