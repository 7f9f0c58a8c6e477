//! What a simulation has found.

use std::fmt;
use std::time::Duration;

use crate::network::{Kind, Traffic};
use crate::scenario::FaultOutcome;
use crate::settings::Settings;

/// The longest time until all ranks are connected.
const RENDEZVOUS: Duration = Duration::from_secs(10);

/// The most messages per rank and second while training.
const MESSAGES: f64 = 20.0;

/// The longest time from a fault to the next step with the right members.
const RESOLVED: Duration = Duration::from_secs(5);

/// What a simulation has found. `Display` makes the table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// How many ranks there are.
    pub ranks: usize,
    /// The seed.
    pub seed: u64,
    /// Until all ranks of a job that is not elastic have met and connected.
    pub rendezvous: Option<Duration>,
    /// Until the first step of an elastic job, the start of its processes included.
    pub formed: Option<Duration>,
    /// The traffic until then, of both.
    pub until_formed: Traffic,
    /// The traffic of undisturbed training.
    pub training: Traffic,
    /// How long that was.
    pub trained: Duration,
    /// The most messages per second in one window, of all ranks.
    pub busiest: f64,
    /// What became of each fault.
    pub faults: Vec<FaultOutcome>,
    /// Why the simulation has not come to its end.
    pub stuck: Option<String>,
    /// Failures of ranks that were not killed.
    pub failures: Vec<String>,
    /// How much time was simulated.
    pub simulated: Duration,
    /// A digest of all that has happened: the same for the same seed.
    pub trace: u64,
}

impl Report {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            ranks: settings.ranks,
            seed: settings.seed,
            ..Self::default()
        }
    }

    /// Messages per rank and second of undisturbed training.
    #[must_use]
    pub fn messages(&self) -> f64 {
        self.per_rank(self.training.total())
    }

    fn per_rank(&self, messages: u64) -> f64 {
        let seconds = self.trained.as_secs_f64();
        match seconds > 0.0 {
            true => messages as f64 / seconds / self.ranks as f64,
            false => 0.0,
        }
    }

    /// What exceeds its bound, in words; empty where nothing does.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        let mut broken: Vec<String> = self.stuck.iter().cloned().collect();
        for (what, time) in [
            ("rendezvous", self.rendezvous),
            ("first round", self.formed),
        ] {
            if time.is_none_or(|time| time > RENDEZVOUS) {
                broken.push(format!("{what}: {time:.2?}, more than {RENDEZVOUS:?}"));
            }
        }
        let messages = (self.busiest / self.ranks as f64).max(self.messages());
        if messages >= MESSAGES {
            broken.push(format!(
                "{messages:.1} messages per rank and second, {MESSAGES} at most"
            ));
        }
        for outcome in &self.faults {
            let fault = &outcome.fault;
            if let Some(time) = outcome.resolved.filter(|time| *time > RESOLVED) {
                broken.push(format!("{fault}: resolved after {time:.2?}"));
            }
            if let Some(wrong) = &outcome.wrong {
                broken.push(format!("{fault}: wrong members: {wrong}"));
            }
        }
        broken
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Option<Duration>| {
            time.map_or("-".to_owned(), |time| {
                format!("{:.2} s", time.as_secs_f64())
            })
        };
        writeln!(f, "{} ranks, seed {}", self.ranks, self.seed)?;
        writeln!(
            f,
            "rendezvous and mesh         {}",
            seconds(self.rendezvous)
        )?;
        writeln!(f, "elastic job, first step     {}", seconds(self.formed))?;
        let until = self.until_formed.total() as f64 / self.ranks as f64;
        writeln!(f, "messages per rank for both  {until:.0}")?;
        writeln!(f, "while training, per rank and second:")?;
        for kind in Kind::ALL {
            let messages = self.per_rank(self.training.messages[kind as usize]);
            writeln!(f, "  {:<12} {messages:>6.2} messages", kind.name())?;
        }
        let bytes = self.per_rank(self.training.bytes) / 1024.0;
        writeln!(
            f,
            "  all          {:>6.2} messages, {bytes:.1} KiB",
            self.messages()
        )?;
        if !self.faults.is_empty() {
            writeln!(
                f,
                "  resolved  complete  members  queue at the store  fault"
            )?;
        }
        for outcome in &self.faults {
            let wrong = outcome.wrong.as_deref().unwrap_or_default();
            writeln!(
                f,
                "  {:>8}  {:>8}  {:>7}  {:>18}  {} {wrong}",
                seconds(outcome.resolved),
                seconds(outcome.complete),
                outcome.members,
                seconds(Some(outcome.longest_queue)),
                outcome.fault
            )?;
        }
        for failure in self.failures.iter().take(8) {
            writeln!(f, "  {failure}")?;
        }
        let simulated = self.simulated.as_secs_f64();
        write!(
            f,
            "{simulated:.0} s were simulated; trace {:016x}",
            self.trace
        )
    }
}
