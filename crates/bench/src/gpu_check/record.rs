//! What a check has found so far, as the tables that it leaves.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everburn_record::file;
use serde::{Deserialize, Serialize};

use super::Section;
use super::machine::Machine;
use super::markdown;

/// What has become of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// It was measured, and is as it should be.
    Passed,
    /// It is wrong, or could not be measured though it should.
    Failed,
    /// It was measured, and is slower than it is to become.
    Missed,
    /// What it would measure does not exist yet.
    Open,
    /// This machine lacks what it needs.
    Skipped,
    /// Time was up before.
    NotReached,
}

impl State {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Missed => "missed",
            Self::Open => "open",
            Self::Skipped => "SKIPPED",
            Self::NotReached => "NOT REACHED",
        }
    }
}

/// Something that is right or wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Check {
    pub(super) section: Section,
    pub(super) name: String,
    pub(super) state: State,
    /// What was found, and what it may be at most.
    pub(super) value: Option<f64>,
    pub(super) limit: f64,
    /// Why, where it has not simply passed.
    pub(super) note: String,
    /// How long it took.
    pub(super) seconds: f64,
}

/// A side of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SideThroughput {
    pub(super) state: State,
    pub(super) per_second: Option<f64>,
    pub(super) note: String,
}

impl SideThroughput {
    pub(super) fn of(per_second: f64) -> Self {
        Self {
            per_second: Some(per_second),
            ..Self::without(State::Passed, "")
        }
    }

    pub(super) fn without(state: State, note: impl Into<String>) -> Self {
        Self {
            state,
            per_second: None,
            note: note.into(),
        }
    }
}

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Side {
    Everburn,
    Eager,
    Compiled,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Everburn => "Everburn",
            Self::Eager => "PyTorch",
            Self::Compiled => "torch.compile",
        }
    }
}

/// How fast Everburn is to be, as a multiple of another side.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Goal {
    pub(super) against: Side,
    pub(super) ratio: f64,
}

/// How fast the sides train the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Benchmark {
    pub(super) name: String,
    /// What is counted: samples or tokens.
    pub(super) unit: String,
    pub(super) everburn: SideThroughput,
    pub(super) eager: SideThroughput,
    pub(super) compiled: SideThroughput,
    pub(super) goal: Option<Goal>,
}

impl Benchmark {
    pub(super) fn side(&self, side: Side) -> &SideThroughput {
        match side {
            Side::Everburn => &self.everburn,
            Side::Eager => &self.eager,
            Side::Compiled => &self.compiled,
        }
    }

    pub(super) fn side_mut(&mut self, side: Side) -> &mut SideThroughput {
        match side {
            Side::Everburn => &mut self.everburn,
            Side::Eager => &mut self.eager,
            Side::Compiled => &mut self.compiled,
        }
    }

    /// How many times as fast as `side` Everburn is.
    pub(super) fn ratio(&self, side: Side) -> Option<f64> {
        Some(self.everburn.per_second? / self.side(side).per_second?)
    }

    /// Whether the goal is met, as far as there is one and both sides were measured.
    pub(super) fn meets_goal(&self) -> Option<bool> {
        let goal = self.goal?;
        Some(self.ratio(goal.against)? >= goal.ratio)
    }
}

/// What the whole check comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// Nothing is wrong, and all that this machine can do was reached.
    Passed,
    Failed,
    /// Nothing is wrong so far, and time was up.
    Incomplete,
}

/// Everything that was found, in the order of the plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Findings {
    pub(super) verdict: Verdict,
    pub(super) machine: Machine,
    pub(super) device: String,
    /// Smaller models and fewer steps: to test the check itself.
    pub(super) quick: bool,
    pub(super) seconds: f64,
    pub(super) budget_seconds: f64,
    pub(super) checks: Vec<Check>,
    pub(super) benchmarks: Vec<Benchmark>,
}

impl Findings {
    fn states(&self) -> impl Iterator<Item = State> {
        let sides = [Side::Everburn, Side::Eager, Side::Compiled];
        let measured = self.benchmarks.iter();
        let measured = measured.flat_map(move |benchmark| {
            let states = sides.map(|side| benchmark.side(side).state);
            states.into_iter()
        });
        self.checks.iter().map(|check| check.state).chain(measured)
    }

    /// What it comes to by now.
    pub(super) fn judge(&self) -> Verdict {
        let has = |state| self.states().any(|found| found == state);
        match (has(State::Failed), has(State::NotReached)) {
            (true, _) => Verdict::Failed,
            (false, true) => Verdict::Incomplete,
            (false, false) => Verdict::Passed,
        }
    }
}

/// The findings, and the files that they are written to after each of them.
pub(super) struct Record {
    pub(super) findings: Findings,
    start: Instant,
    folder: PathBuf,
}

/// The names of what is left behind.
pub(super) const JSON: &str = "gpu-check.json";
pub(super) const MARKDOWN: &str = "gpu-check.md";
pub(super) const LOG: &str = "gpu-check.log";

impl Record {
    /// Writes a first table, in which nothing has been reached.
    pub(super) fn begin(findings: Findings, folder: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut record = Self {
            findings,
            start: Instant::now(),
            folder: folder.to_path_buf(),
        };
        record.write()?;
        Ok(record)
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn log(&self) -> PathBuf {
        self.folder.join(LOG)
    }

    /// The row of this name.
    pub(super) fn check(&mut self, name: &str) -> &mut Check {
        let mut checks = self.findings.checks.iter_mut();
        let found = checks.find(|check| check.name == name);
        found.expect("the plan has put all rows in")
    }

    pub(super) fn benchmark(&mut self, name: &str) -> Option<&mut Benchmark> {
        let mut benchmarks = self.findings.benchmarks.iter_mut();
        benchmarks.find(|benchmark| benchmark.name == name)
    }

    /// Writes what was found so far, so that it is there however this process ends.
    pub(super) fn write(&mut self) -> std::io::Result<()> {
        self.findings.seconds = self.elapsed().as_secs_f64();
        self.findings.verdict = self.findings.judge();
        let json = serde_json::to_string_pretty(&self.findings)?;
        file::write(&self.folder.join(JSON), json.as_bytes())?;
        let page = markdown::page(&self.findings);
        file::write(&self.folder.join(MARKDOWN), page.as_bytes())
    }
}
