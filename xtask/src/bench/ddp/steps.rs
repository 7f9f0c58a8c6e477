//! The four kinds of steps, and the batch with which compute and exchange take about as long.

use std::fmt;

use serde_json::Value;

use crate::bench::process::Failure;

/// What a run does in each of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Forward, backward and optimizer, without any exchange.
    Compute,
    /// The exchange of gradients alone.
    Communication,
    /// The exchange begins when the backward pass has ended.
    Sequential,
    /// The exchange begins during the backward pass.
    Overlapped,
}

impl Mode {
    pub(super) const ALL: [Self; 4] = [
        Self::Compute,
        Self::Communication,
        Self::Sequential,
        Self::Overlapped,
    ];

    /// The name, as `everburn bench-ddp --mode` reads it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Communication => "communication",
            Self::Sequential => "sequential",
            Self::Overlapped => "overlapped",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What rank 0 tells of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    /// The median of the steps, in milliseconds.
    pub(super) milliseconds: f64,
    /// How long a step waited for the exchange and did nothing else.
    pub(super) exposed_ms: f64,
    /// Of the model.
    pub(super) parameters: u64,
}

impl Step {
    /// Reads the line of a run of `mode`; a run that did something else is no measurement.
    pub(super) fn parse(said: &[Value], mode: Mode) -> Result<Self, Failure> {
        let broken = |what: String| Failure::new(format!("the result of the {mode} steps: {what}"));
        let of_steps = |line: &&Value| line["mode"].is_string();
        let line = said.iter().rev().find(of_steps);
        let line = line.ok_or_else(|| broken("rank 0 has told none".into()))?;
        if line["mode"] != mode.name() {
            return Err(broken(format!("it is of {} steps", line["mode"])));
        }
        let number = |name: &str| {
            let number = line[name].as_f64().filter(|value| value.is_finite());
            number.ok_or_else(|| broken(format!("no `{name}` in {line}")))
        };
        let milliseconds = number("step_ms_p50")?;
        if milliseconds <= 0.0 {
            return Err(broken(format!("a step of {milliseconds} ms")));
        }
        Ok(Self {
            milliseconds,
            exposed_ms: number("exposed_ms")?,
            parameters: number("parameters")? as u64,
        })
    }
}

/// Something that makes steps: ranks of `everburn`, or a model of them in tests.
pub(super) trait Steps {
    /// Runs steps of `mode` with `batch` samples of each rank.
    fn run(&mut self, mode: Mode, batch: usize) -> Result<Step, Failure>;
}

/// Where the search for a batch begins.
const FIRST_BATCH: usize = 32;

/// A model that computes less than it exchanges even with this many is no use to the benchmark.
const MOST_SAMPLES: usize = 1 << 16;

/// How much longer compute is to take than the exchange. The forward pass is a third of compute and can
/// hide nothing, so where the two take equally long, no overlap ends before 1.33 times either.
const COMPUTE_TO_EXCHANGE: f64 = 1.4;

/// Near enough: machines are not steadier than that.
const ABOUT_AS_LONG: f64 = 1.07;

/// How many batches are tried. Compute grows nearly in proportion, so few are needed.
const TRIES: usize = 6;

/// The batch with which compute takes about as long as the exchange, which no batch changes.
pub(super) fn balanced_batch(
    steps: &mut impl Steps,
    mut tell: impl FnMut(usize, f64, f64),
) -> Result<usize, Failure> {
    let exchange = steps.run(Mode::Communication, FIRST_BATCH)?.milliseconds;
    let goal = COMPUTE_TO_EXCHANGE * exchange;
    let mut batch = FIRST_BATCH;
    let mut best = (f64::INFINITY, batch);
    for _ in 0..TRIES {
        let compute = steps.run(Mode::Compute, batch)?.milliseconds;
        tell(batch, compute, exchange);
        let off = (compute / goal).max(goal / compute);
        if off < best.0 {
            best = (off, batch);
        }
        // A step has a cost that does not grow with the batch, so far jumps overshoot.
        let factor = (goal / compute).clamp(0.05, 8.0);
        let next = ((batch as f64 * factor).round() as usize).clamp(1, MOST_SAMPLES);
        if off <= ABOUT_AS_LONG || next == batch {
            break;
        }
        batch = next;
    }
    Ok(best.1)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A machine on which a step costs `fixed + each * batch`, and an exchange what it costs.
    pub(in crate::bench::ddp) struct Machine {
        pub(in crate::bench::ddp) fixed: f64,
        pub(in crate::bench::ddp) each: f64,
        pub(in crate::bench::ddp) exchange: f64,
        pub(in crate::bench::ddp) runs: Vec<Mode>,
    }

    impl Steps for Machine {
        fn run(&mut self, mode: Mode, batch: usize) -> Result<Step, Failure> {
            self.runs.push(mode);
            let compute = self.fixed + self.each * batch as f64;
            let larger = compute.max(self.exchange);
            let milliseconds = match mode {
                Mode::Compute => compute,
                Mode::Communication => self.exchange,
                Mode::Sequential => compute + self.exchange,
                Mode::Overlapped => larger * 1.1,
            };
            Ok(Step {
                milliseconds,
                exposed_ms: milliseconds - compute,
                parameters: 1000,
            })
        }
    }

    fn balanced(fixed: f64, each: f64, exchange: f64) -> (usize, usize) {
        let runs = Vec::new();
        let mut machine = Machine {
            fixed,
            each,
            exchange,
            runs,
        };
        let batch = balanced_batch(&mut machine, |_, _, _| {}).unwrap();
        (batch, machine.runs.len())
    }

    #[test]
    fn a_batch_is_found_with_which_both_take_as_long() {
        assert_eq!(balanced(0.0, 1.0, 32.0), (45, 3));
        for (fixed, each, exchange) in [(0.0, 2.0, 400.0), (30.0, 0.5, 300.0), (5.0, 9.0, 60.0)] {
            let (batch, runs) = balanced(fixed, each, exchange);
            let compute = fixed + each * batch as f64;
            let goal = COMPUTE_TO_EXCHANGE * exchange;
            let off = (compute / goal).max(goal / compute);
            assert!(
                off < 1.15,
                "batch {batch}: {compute} ms beside {exchange} ms"
            );
            assert!(runs <= 1 + TRIES);
        }
    }

    #[test]
    fn where_there_is_none_the_nearest_is_taken() {
        // One sample is too many, and all are too few.
        assert_eq!(balanced(100.0, 1.0, 1.0).0, 1);
        assert_eq!(balanced(0.0, 1e-6, 1e6).0, MOST_SAMPLES);
    }

    #[test]
    fn the_line_of_a_run_is_read() {
        let line = json!({"mode": "overlapped", "step_ms_p50": 12.5, "compute_ms": 10.0,
                          "exposed_ms": 2.5, "parameters": 6_297_600});
        let said = [json!({ "progress": 1 }), line.clone()];
        let step = Step::parse(&said, Mode::Overlapped).unwrap();
        assert_eq!((step.milliseconds, step.exposed_ms), (12.5, 2.5));
        assert_eq!(step.parameters, 6_297_600);
        let wrong = |said: &[Value], mode| Step::parse(said, mode).unwrap_err().to_string();
        assert!(wrong(&said, Mode::Compute).contains("it is of \"overlapped\" steps"));
        assert!(wrong(&[], Mode::Compute).contains("told none"));
        let mut still = line;
        still["step_ms_p50"] = json!(0);
        assert!(wrong(&[still.clone()], Mode::Overlapped).contains("a step of 0 ms"));
        still["step_ms_p50"] = Value::Null;
        assert!(wrong(&[still], Mode::Overlapped).contains("no `step_ms_p50`"));
    }
}
