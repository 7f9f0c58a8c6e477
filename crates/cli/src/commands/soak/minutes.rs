//! `soak --minutes`: one long training, whose ranks and launchers are killed, stopped and frozen from outside at random
//! moments, and the throughput that it keeps.

mod training;

use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use everburn_record::{EventKind, Live, file, proc, units};
use everburn_report::Events;
use serde_json::{Map, Value, json};

use self::training::{Progress, Training};
use super::plan::{Fault, Kind, Random};
use super::{Soak, expect_success};
use crate::commands::ToolError;
use crate::commands::verify::compare::compare;
use crate::commands::verify::read_hashes;

/// What part of an undisturbed training's throughput is kept at least.
const LEAST_KEPT: f64 = 0.97;

/// The faults of a training: one at a random moment of each interval.
fn draw(seed: u64, length: Duration, per_minute: u64, machines: u64) -> Vec<Fault<Duration>> {
    let mut random = Random(seed);
    let every = Duration::from_secs(60).as_millis() as u64 / per_minute;
    let count = length.as_millis() as u64 / every.max(1);
    let one = |number: u64| {
        let within = random.below(every);
        let kind = match random.below(if machines > 1 { 10 } else { 9 }) {
            0..5 => Kind::Kill,
            5..7 => Kind::Stall,
            7..9 => Kind::Freeze,
            _ => Kind::Machine,
        };
        let rank = random.below(u64::MAX);
        let at = Duration::from_millis(number * every + within);
        Fault { kind, rank, at }
    };
    (0..count).map(one).collect()
}

/// Trains without faults, with them, and without them again.
pub(super) fn run(soak: &Soak<'_>, minutes: u64) -> Result<ExitCode, ToolError> {
    let options = soak.options;
    if options.machines > 1 && options.store.is_none() {
        let what =
            "--machines needs --store: without an etcd the loss of the first launcher ends the job";
        return Err(ToolError::Usage(what.to_owned()));
    }
    if !options.ranks.is_multiple_of(options.machines) {
        let what = "--ranks must be a multiple of --machines";
        return Err(ToolError::Usage(what.to_owned()));
    }
    let seed = options.seed.unwrap_or_else(everburn_record::unix_time_ms);
    let length = Duration::from_secs(60 * minutes);
    let faults = draw(seed, length, options.faults_per_minute, options.machines);
    say!(
        "{}: {minutes} min on {} ranks, launchers: {}, faults: {}; seed {seed}",
        soak.model,
        options.ranks,
        options.machines,
        faults.len()
    );
    let quiet = (length / 10).max(Duration::from_secs(30));
    let train = |name: &'static str, faults: &[Fault<Duration>], length: Duration| {
        let training = Training::start(soak, name)?;
        let progress = training.run(faults, length)?;
        say!(
            "  {name}: {} steps in {}, {:.2} steps/s",
            units::count(progress.steps),
            units::seconds(progress.seconds),
            progress.rate()
        );
        Ok::<_, ToolError>(progress)
    };
    let found = Comparison {
        before: train("undisturbed", &[], quiet)?,
        disturbed: train("disturbed", &faults, length)?,
        after: train("undisturbed again", &[], quiet)?,
        wrong: what_is_wrong(soak)?,
        events: count_events(soak),
    };
    found.say();
    if let Some(path) = &options.json {
        let json = found.to_json(soak, seed, minutes, &faults);
        file::replace(path, |file| writeln!(file, "{json:#}"))
            .map_err(|error| ToolError::Failed(format!("writing {}: {error}", path.display())))?;
    }
    Ok(match found.kept() >= LEAST_KEPT && found.wrong.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// What three trainings came to.
struct Comparison {
    before: Progress,
    disturbed: Progress,
    after: Progress,
    wrong: Vec<String>,
    events: Vec<(&'static str, u64)>,
}

impl Comparison {
    /// What part of the throughput of the two undisturbed trainings the disturbed one has.
    fn kept(&self) -> f64 {
        2.0 * self.disturbed.rate() / (self.before.rate() + self.after.rate())
    }

    fn say(&self) {
        let events = self
            .events
            .iter()
            .map(|(kind, count)| format!("{kind}: {count}"));
        say!(
            "{:.1} % of the throughput is kept (at least {:.0} %); {}",
            100.0 * self.kept(),
            100.0 * LEAST_KEPT,
            events.collect::<Vec<_>>().join(", ")
        );
        for what in &self.wrong {
            say!("  WRONG: {what}");
        }
    }

    fn to_json(
        &self,
        soak: &Soak<'_>,
        seed: u64,
        minutes: u64,
        faults: &[Fault<Duration>],
    ) -> Value {
        let options = soak.options;
        let flags = options.train.iter().map(|flag| flag.to_string_lossy());
        let faults = faults.iter().map(
            |fault| json!({"seconds": fault.at.as_secs_f64(), "kind": fault.kind.to_string()}),
        );
        let events = self
            .events
            .iter()
            .map(|(kind, count)| ((*kind).to_owned(), json!(count)));
        json!({
            "model": soak.model,
            "ranks": options.ranks,
            "launchers": options.machines,
            "flags": flags.collect::<Vec<_>>(),
            "seed": seed,
            "minutes": minutes,
            "faults": faults.collect::<Vec<_>>(),
            "events": events.collect::<Map<_, _>>(),
            "steps_per_second": {
                "undisturbed": [self.before.rate(), self.after.rate()],
                "disturbed": self.disturbed.rate(),
            },
            "steps": self.disturbed.steps,
            "kept": self.kept(),
            "wrong": self.wrong,
            "processor": proc::cpu_name(),
            "cores": proc::cpus(),
        })
    }
}

/// What a disturbed training has lost: its newest checkpoint, or, where ranks are synchronous, the bits of an undisturbed
/// one.
fn what_is_wrong(soak: &Soak<'_>) -> Result<Vec<String>, ToolError> {
    let mut wrong = Vec::new();
    let (quiet, disturbed) = (soak.machine("undisturbed", 0), soak.machine("disturbed", 0));
    if soak.has_same_bits() {
        let (mut expected, mut found) = (read_hashes(&quiet)?, read_hashes(&disturbed)?);
        let both = expected.len().min(found.len());
        expected.truncate(both);
        found.truncate(both);
        if both == 0 {
            wrong.push("no step was compared".to_owned());
        }
        wrong.extend(
            compare(&expected, &found)
                .map(|it| format!("it differs at step {}: {}", it.step, it.what)),
        );
    }
    let Some(live) = Live::read(&disturbed) else {
        wrong.push("it has no live.json".to_owned());
        return Ok(wrong);
    };
    let mut resume = Command::new(&soak.everburn);
    resume
        .args(["train", "--resume", "--no-dashboard", "--run-dir"])
        .arg(&disturbed)
        .args(["--ranks", "2", "--steps", &(live.step + 5).to_string()]);
    let resumed = soak.end("the resumed run", resume);
    match resumed.and_then(|ended| expect_success(&ended)) {
        Ok(()) if Live::read(&disturbed).is_some_and(|now| now.step == live.step + 5) => {}
        Ok(()) => wrong.push(format!(
            "a resume does not continue after step {}",
            live.step
        )),
        Err(failure) => wrong.push(format!("its checkpoint is of no use: {failure}")),
    }
    Ok(wrong)
}

/// How many events of the kinds that faults lead to the machines of a training have recorded.
fn count_events(soak: &Soak<'_>) -> Vec<(&'static str, u64)> {
    let machines = 0..soak.options.machines;
    let all =
        machines.map(|machine| Events::read(&soak.machine("disturbed", machine), &mut Vec::new()));
    let all = all.collect::<Vec<_>>();
    let kinds = [EventKind::Loss, EventKind::Restart, EventKind::Regroup];
    let count = |kind| all.iter().map(|events| events.count(kind)).sum();
    kinds.map(|kind| (kind.name(), count(kind))).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_falls_into_each_interval_and_a_seed_names_them_all() {
        let length = Duration::from_secs(1800);
        let faults = draw(7, length, 2, 2);
        assert_eq!(faults, draw(7, length, 2, 2));
        assert_ne!(faults, draw(8, length, 2, 2));
        assert_eq!(faults.len(), 60);
        for (number, fault) in faults.iter().enumerate() {
            let interval = 30 * number as u64..30 * (number as u64 + 1);
            assert!(interval.contains(&fault.at.as_secs()), "{fault:?}");
        }
        for kind in [Kind::Kill, Kind::Stall, Kind::Freeze, Kind::Machine] {
            assert!(faults.iter().any(|fault| fault.kind == kind), "{kind}");
        }
        let one = draw(7, length, 2, 1);
        assert!(one.iter().all(|fault| fault.kind != Kind::Machine));
    }
}
