//! `live.json`: how a run is at this moment.

mod hang;
mod progress;
mod waits;

use std::fs;
use std::io::{self, Read as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::waits::Waits;
use crate::{file, plain, proc, units, unix_time_ms};

/// What a training is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The ranks meet, and are given the same parameters.
    #[default]
    Starting,
    /// The first steps of a process on a GPU: kernels are compiled, and the fastest of several are chosen.
    Compiling,
    /// It makes steps.
    Training,
    /// It measures the model on samples that are held out.
    Validating,
    /// It waits until a checkpoint's tensors are read.
    Saving,
    /// Ranks were lost or come, and the others meet.
    Regrouping,
    /// It measures the model on the test samples.
    Testing,
    /// It is over, one way or another.
    Ended,
}

impl Phase {
    /// The words for it.
    ///
    /// ```
    /// assert_eq!(everburn_record::Phase::Compiling.text(), "compiling and tuning kernels");
    /// ```
    pub fn text(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Compiling => "compiling and tuning kernels",
            Self::Training => "training",
            Self::Validating => "validating",
            Self::Saving => "saving a checkpoint",
            Self::Regrouping => "regrouping",
            Self::Testing => "testing",
            Self::Ended => "ended",
        }
    }
}

/// The longest file that is read: a few hundred bytes for each of ten thousand ranks.
const LONGEST: u64 = 1 << 24;

/// How many characters are kept of why a run has failed.
const LONGEST_FAILURE: usize = 600;

/// How long a launcher may take to conclude a run whose ranks have ended.
const CONCLUDED_WITHIN_MS: u64 = 10_000;

/// What `live.json` holds, which rank 0 writes anew about every second while the run continues.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Live {
    /// When it was written, in milliseconds since 1970.
    pub unix_time_ms: u64,
    /// What the training is doing.
    pub phase: Phase,
    /// The epoch that is under way, counted from 1; 0 before the first.
    pub epoch: u64,
    /// How many epochs there are to be.
    pub epochs: u64,
    /// How many steps have been made over all epochs.
    pub step: u64,
    /// How many steps there are to be, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// How many samples all ranks together learn from in an epoch, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch_samples: Option<u64>,
    /// When the newest step was finished, or the phase entered, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_unix_ms: Option<u64>,
    /// How many seconds a step has taken lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_a_step: Option<f64>,
    /// The ranks that make steps now.
    pub members: Vec<usize>,
    /// For how long the store of the job has not answered, in seconds, where it does not: what is known of the other ranks
    /// is as old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_silent_seconds: Option<f64>,
    /// What is known of each rank, those that were lost included. May be empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<LiveRank>,
    /// Why the run has failed, where it has: on a full disk `events.jsonl` may have no room for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// That the folder of the run cannot be written, and why, where that is seen. Not of the file: [`Live::seen_in`] adds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unwritable: Option<String>,
}

impl Live {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "live.json";

    /// The name of the file there that the run's process locks while the run continues.
    pub const LOCK: &str = ".lock";

    /// Writes the file. Others see the old one or the new one; where there is no room for a second one, or no file may be
    /// made in the folder, they may see half of one. It is not carried to the disk: after a loss of power it means nothing.
    ///
    /// # Errors
    /// The system's, if it cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        let replaced = file::replace(path, |file| file.write_all(text.as_bytes()));
        replaced.or_else(|error| file::overwrite(path, text.as_bytes()).map_err(|_| error))
    }

    /// Says in the file at `path` that the run is over, and its ranks with it: a rank that was killed could not. `failure` is
    /// why it has failed, where it has.
    ///
    /// # Errors
    /// The system's, if the file cannot be read or written.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank, Phase};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join(Live::FILE);
    /// let rank = LiveRank { alive: true, ..LiveRank::default() };
    /// Live { phase: Phase::Training, ranks: vec![rank], ..Live::default() }.write(&path)?;
    /// Live::end(&path, Some("no space left"))?;
    /// let live: Live = serde_json::from_slice(&std::fs::read(&path)?)?;
    /// assert!(live.phase == Phase::Ended && !live.ranks[0].alive);
    /// assert_eq!(live.failure.as_deref(), Some("no space left"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn end(path: &Path, failure: Option<&str>) -> io::Result<()> {
        let mut live: Self = serde_json::from_slice(&fs::read(path)?)?;
        live.phase = Phase::Ended;
        live.failure = failure.map(|text| plain::line(text, LONGEST_FAILURE));
        for rank in &mut live.ranks {
            rank.alive = false;
        }
        live.write(path)
    }

    /// The file in a run's folder, if there is one.
    pub fn read(run: &Path) -> Option<Self> {
        let file = file::open(&run.join(Self::FILE)).ok()?;
        serde_json::from_reader(file.take(LONGEST)).ok()
    }

    /// The name of a rank's machine, where it is known.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank};
    ///
    /// let rank = LiveRank { rank: 3, host: Some("node7".into()), ..LiveRank::default() };
    /// let live = Live { ranks: vec![rank], ..Live::default() };
    /// assert_eq!(live.host_of(3).as_deref(), Some("node7"));
    /// assert_eq!(live.host_of(2), None);
    /// ```
    pub fn host_of(&self, rank: usize) -> Option<String> {
        let found = self.ranks.iter().find(|it| it.rank == rank)?;
        found.host.clone()
    }

    /// Whether a process of this machine has the folder of a run, as far as that can be known.
    pub fn has_owner(run: &Path) -> bool {
        let is_locked = |lock: fs::Metadata| proc::is_locked(lock.ino());
        fs::metadata(run.join(Self::LOCK)).map_or(true, is_locked)
    }

    /// The process of this machine that has the folder of a run, where there is one and this process sees it: the launcher of a
    /// job, or a training without one.
    pub fn owner(run: &Path) -> Option<u32> {
        let lock = fs::metadata(run.join(Self::LOCK)).ok()?;
        proc::lock_holder(lock.ino())
    }

    /// The file in a run's folder and [what is to be said of it](Self::cut_off), if the run was cut off on this machine.
    /// `None` too while a launcher that has the folder may still be about to conclude the run.
    pub fn cut_off_in(run: &Path) -> Option<(Self, String)> {
        let live = Self::unconcluded_in(run)?;
        let text = live.cut_off_here(run)?;
        Some((live, text))
    }

    /// The same text without how the run is continued, for callers that have more to say of that.
    pub fn why_cut_off_in(run: &Path) -> Option<String> {
        Self::unconcluded_in(run)?.cut_off_with(None)
    }

    /// The file in a run's folder, unless a launcher may still be about to conclude the run.
    fn unconcluded_in(run: &Path) -> Option<Self> {
        let live = Self::read(run)?;
        let is_fresh = unix_time_ms().saturating_sub(live.unix_time_ms) < CONCLUDED_WITHIN_MS;
        (!is_fresh || !Self::has_owner(run)).then_some(live)
    }

    /// [What is to be said](Self::cut_off) of the run in a folder that no process has, if it was cut off on this machine.
    pub fn cut_off_here(&self, run: &Path) -> Option<String> {
        self.cut_off_with(Some(&crate::runs::continued(run)))
    }

    fn cut_off_with(&self, continued: Option<&str>) -> Option<String> {
        let runs = |process| !proc::has_ended(process);
        self.cut_off(&proc::host_name()?, unix_time_ms(), continued, runs)
    }

    /// What is to be said of a run whose file says that it continues, and none of whose processes on `host` `runs` any more:
    /// a launcher that is killed takes its ranks with it, and nobody is left to say so. How it is `continued` is a part of it,
    /// where that is given. `None` where it is not known.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank, Phase};
    ///
    /// let rank = LiveRank { alive: true, pid: Some(4711), host: Some("node7".into()), ..LiveRank::default() };
    /// let live = Live { phase: Phase::Training, step: 12, ranks: vec![rank], ..Live::default() };
    /// let text = live.cut_off("node7", 600_000, Some("--resume continues it"), |_| false).unwrap();
    /// assert!(text.starts_with("the run was cut off on node7, last seen 10 min"), "{text}");
    /// assert!(text.contains("rank 0 (process 4711) ended without a word"), "{text}");
    /// assert!(text.contains(" at step 12; --resume continues it; rank 0"), "{text}");
    /// assert!(live.cut_off("node7", 600_000, None, |_| false).unwrap().contains(" at step 12; rank 0"));
    /// assert_eq!(live.cut_off("node7", 600_000, None, |process| process == 4711), None);
    /// assert_eq!(live.cut_off("node8", 600_000, None, |_| false), None);
    /// ```
    pub fn cut_off(
        &self,
        host: &str,
        now_ms: u64,
        continued: Option<&str>,
        runs: impl Fn(u32) -> bool,
    ) -> Option<String> {
        let is_here = |rank: &&LiveRank| rank.alive && rank.host.as_deref() == Some(host);
        let here = self.ranks.iter().filter(is_here);
        let here: Vec<(usize, u32)> = here.filter_map(|it| Some((it.rank, it.pid?))).collect();
        let ago = now_ms.saturating_sub(self.unix_time_ms);
        if self.phase == Phase::Ended
            || here.is_empty()
            || here.iter().any(|(_, process)| runs(*process))
        {
            return None;
        }
        let (ranks, processes): (Vec<usize>, Vec<u32>) = here.into_iter().unzip();
        let of = if processes.len() == 1 {
            "process"
        } else {
            "processes"
        };
        let processes: Vec<String> = processes.iter().map(u32::to_string).collect();
        let continued = continued.map_or(String::new(), |how| format!("; {how}"));
        Some(format!(
            "the run was cut off on {}, last seen {} before this was read, {} at step {}{continued}; {} ({of} {}) ended without a word: a launcher that is killed takes its ranks with it, so check whether \
             somebody has sent SIGKILL to it or to the job, and whether the machine was out of memory or restarted; a run \
             whose folder cannot be written (a full disk, no permission) looks the same, and its output has the error",
            plain::line(host, 80),
            units::seconds(ago as f64 / 1000.0),
            self.phase.text(),
            self.step,
            crate::ranks(&ranks),
            processes.join(", ")
        ))
    }
}

/// What is known of a rank at this moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveRank {
    /// Its number at the start of the job.
    pub rank: usize,
    /// Whether its heartbeats arrive.
    pub alive: bool,
    /// The id of its process, on its machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The name of its machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// For how long it has given none, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<f64>,
    /// The step that it is at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The collective that is under way, or the last one, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doing: Option<String>,
    /// Whether that collective is under way.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub under_way: bool,
    /// The ranks for which it waits in that collective, the first of them where they are many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<usize>,
    /// Whether its process is stopped (SIGSTOP). The file does not say it: [`Live::seen_in`] does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// What it tells of its process and its device.
    #[serde(flatten)]
    pub process_metrics: ProcessMetrics,
}

/// What a rank knows of its process and its device; what it does not know is absent.
///
/// ```
/// use everburn_record::ProcessMetrics;
///
/// let process_metrics = ProcessMetrics::from_text(r#"{"gpu_percent":98,"later":true}"#);
/// assert_eq!(process_metrics.gpu_percent, Some(98));
/// assert_eq!(ProcessMetrics::from_text("no json"), ProcessMetrics::default());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessMetrics {
    /// The memory of its process, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// For which share of the time a kernel ran on its GPU lately, in per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_percent: Option<u32>,
    /// How warm its GPU is, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_celsius: Option<u32>,
    /// How much of its GPU's memory is in use, by anybody, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// How much memory its GPU has, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_total: Option<u64>,
}

impl ProcessMetrics {
    /// As one line of JSON.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What a line of JSON says; nothing of what is none.
    pub fn from_text(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_second_file_can_be_made_the_state_is_written_over_the_one_before() {
        let outer = tempfile::tempdir().unwrap();
        // A path so long that the file has a name there, and a longer name has no room: even root finds none.
        let mut folder = outer.path().to_path_buf();
        let longest = 4095 - 1 - Live::FILE.len();
        while folder.as_os_str().len() < longest {
            let left = longest - folder.as_os_str().len() - 1;
            folder.push("x".repeat(if left > 250 { 200 } else { left }));
        }
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(Live::FILE);
        let at = |step| Live {
            step,
            failure: Some("x".repeat(step as usize)),
            ..Live::default()
        };
        assert!(at(40).write(&path).is_err(), "there is none before");
        fs::write(&path, serde_json::to_string(&at(40)).unwrap()).unwrap();
        for step in [3, 80] {
            at(step).write(&path).unwrap();
            assert_eq!(Live::read(&folder), Some(at(step)));
        }
    }
}
