//! Following the files of a run directory: what is there, and then what comes.

mod folder;
mod lines;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everburn_record::{
    Event, EventKind, Live, MetricLine, Phase, RankLine, Settings, TrainingReport, name_of_run,
};

use self::folder::Folder;
use self::lines::Lines;
use crate::error::MonitorError;
use crate::update::Update;

/// The longest document that is read: a configuration, or what is in `live.json`.
const LONGEST_DOCUMENT: u64 = 4 << 20;

/// How often it is told whether a process has the run.
const SIGN_OF_LIFE: Duration = Duration::from_millis(900);

/// A run directory that is followed. It is only read, and needs nobody who serves it: any number may follow one.
#[derive(Debug)]
pub struct RunTail {
    folder: PathBuf,
    config: Stamp,
    live: Stamp,
    report: Stamp,
    metrics: Lines,
    ranks: Lines,
    events: Lines,
    told: Option<(Instant, bool)>,
    /// `live.json` of a run that continues, until it is told that it was cut off.
    goes_on: Option<Live>,
    /// When it was looked last at its ranks and its folder.
    looked: Option<Instant>,
}

/// What tells one content of a file from another.
type Stamp = Option<(u64, u64, i64, i64)>;

impl RunTail {
    /// Follows the run in `folder`, from its beginning.
    ///
    /// # Errors
    /// [`MonitorError::NoRun`] if there is none, [`MonitorError::File`] if it cannot be read.
    pub fn open(folder: &Path) -> Result<Self, MonitorError> {
        let file = |error: std::io::Error| MonitorError::File {
            action: "reading",
            path: folder.to_path_buf(),
            reason: error.to_string(),
        };
        let opened = Folder::open(folder).map_err(file)?;
        let of_a_run = [Settings::FILE, MetricLine::FILE];
        if !of_a_run.iter().any(|name| opened.file(name).is_some()) {
            let path = folder.to_path_buf();
            return Err(MonitorError::NoRun { path });
        }
        Ok(Self {
            folder: folder.to_path_buf(),
            config: None,
            live: None,
            report: None,
            metrics: Lines::of(MetricLine::FILE),
            ranks: Lines::of(RankLine::FILE),
            events: Lines::of(Event::FILE),
            told: None,
            goes_on: None,
            looked: None,
        })
    }

    /// What is new. Looks at a few files, and waits for nothing; a long run comes in several pieces.
    pub fn poll(&mut self) -> Vec<Update> {
        let mut updates = Vec::new();
        // By its name: it may have been moved aside, for another run.
        let folder = Folder::open(&self.folder).ok();
        let held = (folder.as_ref()).is_some_and(|folder| folder.is_locked(Live::LOCK));
        if let Some(folder) = &folder {
            self.look(folder, held, &mut updates);
        }
        updates.extend(self.seen(held));
        if !held && !self.has_more() {
            updates.extend(self.cut_off());
        }
        let due = |(at, told): (Instant, bool)| told != held || at.elapsed() >= SIGN_OF_LIFE;
        if self.told.is_none_or(due) {
            self.told = Some((Instant::now(), held));
            updates.push(Update::Running(held));
        }
        updates
    }

    /// That nobody is left who could say how the run has ended, where this machine's processes show it.
    fn cut_off(&mut self) -> Option<Update> {
        let text = self.goes_on.as_ref()?.cut_off_here(&self.folder)?;
        let live = self.goes_on.take()?;
        Some(Update::CutOff(Event {
            unix_time_ms: Some(live.unix_time_ms),
            step: Some(live.step),
            ..Event::new(EventKind::Failure, text)
        }))
    }

    /// `live.json` again where it is seen otherwise on this machine than before: other ranks are stopped, or its folder cannot
    /// be written. Looks about every second.
    fn seen(&mut self, held: bool) -> Option<Update> {
        let looked = self.looked;
        if !held || looked.is_some_and(|looked| looked.elapsed() < SIGN_OF_LIFE) {
            return None;
        }
        let live = self.goes_on.as_mut()?;
        self.looked = Some(Instant::now());
        let now = live.clone().seen_in(&self.folder);
        (now != *live).then(|| {
            live.clone_from(&now);
            Update::Live(now)
        })
    }

    fn look(&mut self, folder: &Folder, held: bool, updates: &mut Vec<Update>) {
        if let Some(config) = changed(folder, Settings::FILE, &mut self.config) {
            // The folder holds another run than before: `train` has moved that aside.
            updates.push(Update::Reset);
            for lines in [&mut self.metrics, &mut self.ranks, &mut self.events] {
                lines.restart();
            }
            (self.live, self.report, self.goes_on) = (None, None, None);
            updates.push(Update::Run {
                name: name_of_run(&self.folder),
                config,
            });
        }
        follow(folder, &mut self.metrics, updates, Update::Metric);
        follow(folder, &mut self.ranks, updates, Update::Ranks);
        follow(folder, &mut self.events, updates, Update::Event);
        if let Some(text) = changed(folder, Live::FILE, &mut self.live)
            && let Ok(live) = serde_json::from_str::<Live>(&text)
        {
            let live = live.seen_in(&self.folder);
            self.looked = Some(Instant::now());
            self.goes_on = (live.phase != Phase::Ended).then(|| live.clone());
            // Who resumes a run writes its configuration again: `live.json` is then of the run as it was cut off before.
            let begun_ms = self.config.map_or(0, |(_, _, seconds, _)| seconds * 1_000);
            let is_earlier = i64::try_from(live.unix_time_ms).is_ok_and(|at| at < begun_ms);
            if self.goes_on.is_none() || !held || !is_earlier {
                updates.push(Update::Live(live));
            }
        }
        if let Some(text) = changed(folder, TrainingReport::FILE, &mut self.report)
            && let Ok(report) = serde_json::from_str(&text)
        {
            updates.push(Update::Report(report));
        }
    }

    /// Whether there may be more at once.
    pub(crate) fn has_more(&self) -> bool {
        [&self.metrics, &self.ranks, &self.events]
            .iter()
            .any(|lines| lines.has_more())
    }
}

fn follow<T: serde::de::DeserializeOwned>(
    folder: &Folder,
    lines: &mut Lines,
    updates: &mut Vec<Update>,
    update: impl Fn(T) -> Update,
) {
    lines.read(folder, |line| {
        // What is damaged is left out: the report says so.
        if let Ok(record) = serde_json::from_slice(line) {
            updates.push(update(record));
        }
    });
}

/// The text of a file that is not what it was when `stamp` was taken. A file that is too long, or no text, is no
/// document of a run.
fn changed(folder: &Folder, name: &str, stamp: &mut Stamp) -> Option<String> {
    let (file, stat) = folder.file(name)?;
    let length = u64::try_from(stat.st_size).ok()?;
    let now = (
        stat.st_ino,
        length,
        stat.st_mtime,
        i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
    );
    if *stamp == Some(now) {
        return None;
    }
    let mut text = String::new();
    let read = file
        .take(LONGEST_DOCUMENT + 1)
        .read_to_string(&mut text)
        .ok()?;
    *stamp = Some(now);
    if read as u64 > LONGEST_DOCUMENT {
        tracing::warn!("{name} has more than {LONGEST_DOCUMENT} bytes and is not read");
        return None;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use everburn_record::{LiveRank, proc};
    use everburn_tests::Run;

    use super::*;
    use crate::state::RunState;

    #[test]
    fn a_document_that_is_a_link_or_too_long_is_left_out() {
        let path = tempfile::tempdir().unwrap();
        let at = |name: &str| path.path().join(name);
        Run::begin(path.path());
        let secret = tempfile::NamedTempFile::new().unwrap();
        let live = r#"{"unix_time_ms":1,"phase":"training"}"#;
        std::fs::write(secret.path(), live).unwrap();
        std::os::unix::fs::symlink(secret.path(), at("live.json")).unwrap();
        let mut tail = RunTail::open(path.path()).unwrap();
        let is_live = |update: &Update| matches!(update, Update::Live(_));
        assert!(!tail.poll().iter().any(is_live));
        std::fs::remove_file(at("live.json")).unwrap();
        std::fs::write(at("live.json"), live).unwrap();
        assert!(tail.poll().iter().any(is_live));
        let long = format!("{live}{}", " ".repeat(LONGEST_DOCUMENT as usize));
        std::fs::write(at("live.json"), long).unwrap();
        assert!(!tail.poll().iter().any(is_live));
    }

    #[test]
    fn stopped_ranks_are_named_until_they_continue() {
        use rustix::process::{Pid, Signal, kill_process};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let _owner = Run::begin(folder.path()).hold();
        let sleep = std::process::Command::new("sleep").arg("60").spawn();
        let mut child = sleep.unwrap();
        let rank = LiveRank {
            rank: 3,
            pid: Some(child.id()),
            host: proc::host_name(),
            ..LiveRank::default()
        };
        let live = Live {
            unix_time_ms: everburn_record::unix_time_ms(),
            phase: Phase::Training,
            ranks: vec![rank],
            ..Live::default()
        };
        live.write(&at(Live::FILE)).unwrap();
        let mut tail = RunTail::open(folder.path()).unwrap();
        let mut said = |stopped: &[usize]| {
            let begun = Instant::now();
            let is_said = |update: &Update| match update {
                Update::Live(live) => {
                    let ranks = live.ranks.iter().filter(|rank| rank.stopped);
                    ranks.map(|rank| rank.rank).eq(stopped.iter().copied())
                }
                _ => false,
            };
            while begun.elapsed() < Duration::from_secs(30) {
                if tail.poll().iter().any(is_said) {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            false
        };
        let send = |signal| kill_process(Pid::from_child(&child), signal).unwrap();
        send(Signal::STOP);
        let stopped = said(&[3]);
        send(Signal::CONT);
        let continued = said(&[]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(stopped && continued, "{stopped} {continued}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_not_the_silence_of_rank_0() {
        let folder = tempfile::tempdir().unwrap();
        let _owner = Run::begin(folder.path()).hold();
        // The run has begun before its file was written.
        let config = folder.path().join("config.toml");
        let config = std::fs::File::options().append(true).open(config).unwrap();
        let begun = std::time::SystemTime::now() - Duration::from_secs(60);
        config.set_modified(begun).unwrap();
        let rank = LiveRank {
            pid: Some(std::process::id()),
            host: proc::host_name(),
            ..LiveRank::default()
        };
        let live = Live {
            phase: Phase::Training,
            ranks: vec![rank],
            ..Live::default()
        };
        let mut tail = RunTail::open(folder.path()).unwrap();
        let mut state = RunState::default();
        let mut written = |before_ms| {
            let unix_time_ms = everburn_record::unix_time_ms() - before_ms;
            let live = Live {
                unix_time_ms,
                ..live.clone()
            };
            live.write(&folder.path().join(Live::FILE)).unwrap();
            state.take_all(&tail.poll());
            (state.doing(), state.news(true), state.trouble())
        };
        let (doing, news, trouble) = written(13_000);
        let expected = "the folder of the run cannot be written";
        assert!(doing.starts_with(expected), "{doing}");
        assert!(doing.contains("; live.json is 1"), "{doing}");
        assert_eq!((news, trouble), (Some(doing), None));
        assert_eq!(written(0), ("training".to_owned(), None, None));
    }

    #[test]
    fn a_run_whose_processes_have_ended_without_a_word_is_told_once_to_have_been_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let run = Run::begin(folder.path());
        let write = |phase: Phase, process: u32| {
            let rank = LiveRank {
                alive: true,
                pid: Some(process),
                host: proc::host_name(),
                ..LiveRank::default()
            };
            let live = Live {
                unix_time_ms: everburn_record::unix_time_ms(),
                phase,
                step: 12,
                ranks: vec![rank],
                ..Live::default()
            };
            live.write(&at(Live::FILE)).unwrap();
        };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = child.id();
        child.wait().unwrap();
        let cut_off = |tail: &mut RunTail| -> Vec<String> {
            let updates = tail.poll().into_iter();
            let told = updates.filter_map(|update| match update {
                Update::CutOff(event) => Some(event.text),
                _ => None,
            });
            told.collect()
        };
        write(Phase::Training, std::process::id());
        let mut tail = RunTail::open(folder.path()).unwrap();
        assert!(cut_off(&mut tail).is_empty());
        write(Phase::Training, ended);
        let owner = run.hold();
        assert!(cut_off(&mut tail).is_empty(), "its launcher concludes it");
        drop(owner);
        let told = cut_off(&mut tail);
        assert_eq!(told.len(), 1, "{told:?}");
        let none = "it has no checkpoint to continue from: the same command starts again";
        assert!(told[0].contains(none), "{told:?}");
        assert!(cut_off(&mut tail).is_empty());
        std::fs::create_dir_all(at("checkpoints/epoch-0001-batch-000012")).unwrap();
        write(Phase::Training, ended);
        let told = cut_off(&mut RunTail::open(folder.path()).unwrap());
        assert!(told[0].contains("--resume continues"), "{told:?}");
        write(Phase::Ended, ended);
        assert!(cut_off(&mut tail).is_empty());
        // Without a terminal it is the line before the last.
        write(Phase::Training, ended);
        let source = crate::Target::Folder(folder.path().into());
        let mut lines = Vec::new();
        crate::print_json(source.open(None).unwrap(), &mut lines);
        let lines = String::from_utf8(lines).unwrap();
        assert!(
            lines.contains(r#"{"cut_off":{"kind":"failure","#),
            "{lines}"
        );
    }
}
