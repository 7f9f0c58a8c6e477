//! `soak --minutes`: one long training, whose ranks, launchers, links and disks fail at random moments, and the throughput
//! that it keeps.

mod cluster;
mod disks;
mod mount_namespace;
mod training;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use everburn_record::{EventKind, Live, file, proc, units};
use everburn_report::Events;
use serde_json::{Map, Value, json};

use self::cluster::{Cluster, namespaces_left};
use self::disks::Disks;
use self::training::{InjectedFault, Progress, Training};
use super::plan::{Fault, Kind, Random};
use super::{Soak, expect_success};
use crate::commands::ToolError;
use crate::commands::verify::compare::compare;

/// What part of an undisturbed training's throughput is kept at least.
const LEAST_KEPT: f64 = 0.97;

/// How many faults of each kind there are among as many as these are together.
const OF_EACH: [(Kind, usize); 8] = [
    (Kind::Kill, 8),
    (Kind::Stall, 3),
    (Kind::Freeze, 3),
    (Kind::Machine, 1),
    (Kind::Cut, 1),
    (Kind::LostLink, 2),
    (Kind::Slow, 1),
    (Kind::Disk, 1),
];

/// What can fail besides ranks.
#[derive(Debug, Clone, Copy)]
struct CanFail {
    /// Launchers and links: there are several machines.
    machines: bool,
    disks: bool,
}

impl CanFail {
    fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Disk => self.disks,
            kind => self.machines || !kind.takes_a_machine(),
        }
    }
}

/// The faults of a training: one at a random moment of each interval.
fn draw(seed: u64, length: Duration, per_minute: u64, can_fail: CanFail) -> Vec<Fault<Duration>> {
    let mut random = Random(seed);
    let every = Duration::from_secs(60).as_millis() as u64 / per_minute;
    let count = length.as_millis() as u64 / every.max(1);
    let all = OF_EACH.iter().filter(|(kind, _)| can_fail.has(*kind));
    let all = all.flat_map(|(kind, number)| std::iter::repeat_n(*kind, *number));
    let all = all.collect::<Vec<_>>();
    let mut left = Vec::new();
    let one = |number: u64| {
        let within = random.below(every);
        if left.is_empty() {
            left.clone_from(&all);
        }
        let kind = left.swap_remove(random.below(left.len() as u64) as usize);
        let rank = random.below(u64::MAX);
        let at = Duration::from_millis(number * every + within);
        Fault { kind, rank, at }
    };
    (0..count).map(one).collect()
}

/// What trainings run on.
struct Setup<'a> {
    soak: &'a Soak<'a>,
    /// Where there are several machines.
    cluster: Option<Cluster>,
    disks: Disks,
}

impl<'a> Setup<'a> {
    /// Namespaces of networks are made first, where all of this machine's processes see their names.
    fn new(soak: &'a Soak<'a>) -> Result<Self, ToolError> {
        let has_several = soak.options.machines > 1;
        let cluster = has_several.then(|| Cluster::start(soak)).transpose()?;
        let disks = Disks::prepare(soak)?;
        Ok(Self {
            soak,
            cluster,
            disks,
        })
    }

    /// Trains for `length`.
    fn train(
        &self,
        name: &'static str,
        faults: &[Fault<Duration>],
        length: Duration,
    ) -> Result<Progress, ToolError> {
        let progress = Training::start(self, name)?.run(faults, length)?;
        say!(
            "  {name}: {} steps in {}, {:.1} batches/s",
            units::count(progress.steps),
            units::seconds(progress.seconds),
            progress.rate()
        );
        Ok(progress)
    }
}

/// Trains without faults, with them, and without them again.
pub(super) fn run(soak: &Soak<'_>, minutes: u64) -> Result<ExitCode, ToolError> {
    let options = soak.options;
    if !options.ranks.is_multiple_of(options.machines) {
        let what = "--ranks must be a multiple of --machines";
        return Err(ToolError::Usage(what.to_owned()));
    }
    let setup = Setup::new(soak)?;
    let seed = options.seed.unwrap_or_else(everburn_record::unix_time_ms);
    let length = Duration::from_secs(60 * minutes);
    let can_fail = CanFail {
        machines: setup.cluster.is_some(),
        disks: setup.disks.are_mounted(),
    };
    let faults = draw(seed, length, options.faults_per_minute, can_fail);
    say!(
        "{}: {minutes} min on {} ranks, launchers: {}, faults: {}; seed {seed}",
        soak.model,
        options.ranks,
        options.machines,
        faults.len()
    );
    let quiet = (length / 10).max(Duration::from_secs(30));
    let before = setup.train("undisturbed", &[], quiet)?;
    let disturbed = setup.train("disturbed", &faults, length)?;
    let after = setup.train("undisturbed again", &[], quiet)?;
    let quiet = soak.machine("undisturbed", before.recorder);
    let mut found = Comparison {
        wrong: what_is_wrong(soak, &quiet, &soak.machine("disturbed", disturbed.recorder))?,
        events: count_events(soak),
        before,
        disturbed,
        after,
    };
    drop(setup);
    found.wrong.extend(namespaces_left());
    found.say();
    if let Some(path) = &options.json {
        let json = found.to_json(soak, seed, minutes);
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
            "{} of the throughput is kept (at least {}); {}",
            units::percent(self.kept(), 1),
            units::percent(LEAST_KEPT, 0),
            events.collect::<Vec<_>>().join(", ")
        );
        for what in &self.wrong {
            say!("  WRONG: {what}");
        }
    }

    fn to_json(&self, soak: &Soak<'_>, seed: u64, minutes: u64) -> Value {
        let options = soak.options;
        let flags = options.train.iter().map(|flag| flag.to_string_lossy());
        let faults = self.disturbed.faults.iter().map(InjectedFault::to_json);
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
            "batches_per_second": {
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

/// What a disturbed training, whose records are in `disturbed`, has lost: its newest checkpoint, or, where ranks are
/// synchronous, the bits of the undisturbed one in `quiet`.
fn what_is_wrong(
    soak: &Soak<'_>,
    quiet: &Path,
    disturbed: &Path,
) -> Result<Vec<String>, ToolError> {
    let mut wrong = Vec::new();
    if soak.has_same_bits() {
        let (mut expected, mut found) = (hashes(quiet), hashes(disturbed));
        let both = &steps(&expected) & &steps(&found);
        for lines in [&mut expected, &mut found] {
            lines.retain(|line| both.contains(&line["step"].as_u64()));
        }
        if both.is_empty() {
            wrong.push("no step was compared".to_owned());
        }
        let difference = compare(&expected, &found);
        wrong.extend(difference.map(|found| format!("it differs at {found}")));
    }
    let Some(live) = Live::read(disturbed) else {
        wrong.push("it has no live.json".to_owned());
        return Ok(wrong);
    };
    let mut resume = Command::new(&soak.everburn);
    resume
        .args(["train", "--resume", "--no-dashboard", "--run-dir"])
        .arg(disturbed)
        .args(["--ranks", "2", "--steps", &(live.step + 5).to_string()]);
    let resumed = soak.end("the resumed run", resume);
    match resumed.and_then(|ended| expect_success(&ended)) {
        Ok(()) if Live::read(disturbed).is_some_and(|now| now.step == live.step + 5) => {}
        Ok(()) => wrong.push(format!(
            "a resume does not continue after step {}",
            live.step
        )),
        Err(failure) => wrong.push(format!("its checkpoint is of no use: {failure}")),
    }
    Ok(wrong)
}

/// The lines of a run's `hashes.jsonl`, but one that a full disk has cut short.
fn hashes(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("hashes.jsonl")).unwrap_or_default();
    let lines = text.lines().map(serde_json::from_str);
    lines.filter_map(Result::ok).collect()
}

/// The steps that have a line: a full disk or a new launcher may have cost some.
fn steps(hashes: &[Value]) -> BTreeSet<Option<u64>> {
    hashes.iter().map(|line| line["step"].as_u64()).collect()
}

/// How many events of the kinds that faults lead to the machines of a training have recorded.
fn count_events(soak: &Soak<'_>) -> Vec<(&'static str, u64)> {
    let machines = 0..soak.options.machines as usize;
    let all =
        machines.map(|machine| Events::read(&soak.machine("disturbed", machine), &mut Vec::new()));
    let all = all.collect::<Vec<_>>();
    let kinds = [
        EventKind::Loss,
        EventKind::Restart,
        EventKind::Regroup,
        EventKind::CheckpointFailed,
    ];
    let count = |kind| all.iter().map(|events| events.count(kind)).sum();
    kinds.map(|kind| (kind.name(), count(kind))).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: CanFail = CanFail {
        machines: true,
        disks: true,
    };

    fn count(faults: &[Fault<Duration>], kind: Kind) -> usize {
        faults.iter().filter(|fault| fault.kind == kind).count()
    }

    #[test]
    fn one_fault_falls_into_each_interval_and_a_seed_names_them_all() {
        let length = Duration::from_secs(1800);
        let faults = draw(7, length, 2, ALL);
        assert_eq!(faults, draw(7, length, 2, ALL));
        assert_ne!(faults, draw(8, length, 2, ALL));
        assert_eq!(faults.len(), 60);
        for (number, fault) in faults.iter().enumerate() {
            let interval = 30 * number as u64..30 * (number as u64 + 1);
            assert!(interval.contains(&fault.at.as_secs()), "{fault:?}");
        }
        // 20 are a whole set.
        for (kind, number) in OF_EACH {
            assert_eq!(count(&faults, kind), 3 * number, "{kind}");
        }
    }

    #[test]
    fn nothing_fails_that_is_not_there() {
        let length = Duration::from_secs(1800);
        for (machines, disks) in [(false, false), (false, true), (true, false)] {
            let faults = draw(7, length, 2, CanFail { machines, disks });
            assert_eq!(faults.len(), 60);
            assert!(count(&faults, Kind::Kill) > 20);
            assert_eq!(count(&faults, Kind::Disk) > 0, disks);
            for kind in [Kind::Machine, Kind::Cut, Kind::LostLink, Kind::Slow] {
                assert_eq!(count(&faults, kind) > 0, machines, "{kind}");
            }
        }
    }

    #[test]
    fn bits_are_compared_in_the_steps_that_both_have() {
        let folder = tempfile::tempdir().unwrap();
        let text = "{\"step\":50,\"loss\":\"a\"}\n{\"step\":100,\"lo";
        std::fs::write(folder.path().join("hashes.jsonl"), text).unwrap();
        let found = hashes(folder.path());
        assert_eq!(found, [json!({"step": 50, "loss": "a"})]);
        assert_eq!(steps(&found), BTreeSet::from([Some(50)]));
        assert!(hashes(&folder.path().join("nowhere")).is_empty());
    }
}
