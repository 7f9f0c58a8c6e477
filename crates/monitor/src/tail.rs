//! Following the files of a run directory: what is there, and then what comes.

mod held;
mod lines;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everburn_report::Live;

use self::held::is_held;
use self::lines::Lines;
use crate::error::MonitorError;
use crate::update::Update;

/// The longest document that is read: a configuration, or what stands in `live.json`.
const LONGEST_DOCUMENT: u64 = 4 << 20;

/// How often it is told whether a process has the run.
const SIGN_OF_LIFE: Duration = Duration::from_millis(900);

/// A run directory that is followed. It is only read, and needs nobody who serves it: any number may follow one.
///
/// ```
/// use everburn_monitor::{RunTail, Update};
///
/// let folder = tempfile::tempdir().unwrap();
/// std::fs::write(folder.path().join("config.toml"), "model = 'mnist'").unwrap();
/// let mut tail = RunTail::open(folder.path())?;
/// let updates = tail.poll();
/// assert!(updates.iter().any(|update| matches!(update, Update::Run { config, .. } if config.contains("mnist"))));
/// # Ok::<(), everburn_monitor::MonitorError>(())
/// ```
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
        fs::read_dir(folder).map_err(file)?;
        let of_a_run = ["config.toml", "metrics.jsonl"];
        if !of_a_run.iter().any(|name| folder.join(name).is_file()) {
            let path = folder.to_path_buf();
            return Err(MonitorError::NoRun { path });
        }
        Ok(Self {
            folder: folder.to_path_buf(),
            config: None,
            live: None,
            report: None,
            metrics: Lines::of(folder.join("metrics.jsonl")),
            ranks: Lines::of(folder.join("ranks.jsonl")),
            events: Lines::of(folder.join("events.jsonl")),
            told: None,
        })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What is new. Looks at a few files, and waits for nothing; a long run comes in several pieces.
    pub fn poll(&mut self) -> Vec<Update> {
        let mut updates = Vec::new();
        if let Some(config) = changed(&self.folder.join("config.toml"), &mut self.config) {
            // The folder holds another run than before: `train` has moved that aside.
            updates.push(Update::Reset);
            for lines in [&mut self.metrics, &mut self.ranks, &mut self.events] {
                lines.restart();
            }
            (self.live, self.report) = (None, None);
            updates.push(Update::Run {
                name: self.name(),
                config,
            });
        }
        follow(&mut self.metrics, &mut updates, Update::Metric);
        follow(&mut self.ranks, &mut updates, Update::Ranks);
        follow(&mut self.events, &mut updates, Update::Event);
        if let Some(text) = changed(&self.folder.join("live.json"), &mut self.live)
            && let Ok(live) = serde_json::from_str::<Live>(&text)
        {
            updates.push(Update::Live(live));
        }
        if let Some(text) = changed(&self.folder.join("report.json"), &mut self.report)
            && let Ok(report) = serde_json::from_str(&text)
        {
            updates.push(Update::Report(report));
        }
        let held = is_held(&self.folder.join(".lock"));
        let due = |(at, told): (Instant, bool)| told != held || at.elapsed() >= SIGN_OF_LIFE;
        if self.told.is_none_or(due) {
            self.told = Some((Instant::now(), held));
            updates.push(Update::Running(held));
        }
        updates
    }

    /// Whether there may be more at once.
    pub(crate) fn has_more(&self) -> bool {
        [&self.metrics, &self.ranks, &self.events]
            .iter()
            .any(|lines| lines.has_more())
    }

    fn name(&self) -> String {
        let canonical = self.folder.canonicalize();
        let name = canonical.as_deref().unwrap_or(&self.folder).file_name();
        name.map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned())
    }
}

fn follow<T: serde::de::DeserializeOwned>(
    lines: &mut Lines,
    updates: &mut Vec<Update>,
    update: impl Fn(T) -> Update,
) {
    lines.read(|line| {
        // What is damaged is left out: the report says so.
        if let Ok(record) = serde_json::from_slice(line) {
            updates.push(update(record));
        }
    });
}

/// The text of a file that is not what it was when `stamp` was taken.
fn changed(path: &Path, stamp: &mut Stamp) -> Option<String> {
    // A link may lead anywhere, and a pipe may wait for ever.
    let metadata = fs::symlink_metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > LONGEST_DOCUMENT {
        return None;
    }
    let now = (
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
    );
    if *stamp == Some(now) {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    *stamp = Some(now);
    Some(text)
}
