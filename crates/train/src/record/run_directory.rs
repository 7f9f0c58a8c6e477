//! `runs/<name>/`: everything that a run leaves behind.

use std::path::{Path, PathBuf};

use everburn_record::{
    Event, Live, MetricKind, MetricLine, Settings, TrainingReport, file, invocation, is_run,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::checkpoint_failure::with_room;
use crate::config::fault::configuration_fault;
use crate::error::TrainError;
use crate::metrics::line::{EpochsOver, MetricsFile};
use crate::record::kept_lines::keep_lines;

/// The folder of one run.
///
/// | file | what it is |
/// |---|---|
/// | `config.toml` | the resolved configuration: `train --config` repeats the run |
/// | `metrics.jsonl` | one [`MetricLine`] a line |
/// | `ranks.jsonl`, `events.jsonl`, `live.json` | what the ranks did, what happened, and what is so just now |
/// | `confusion.json`, `environment.json`, `report.html` | see `docs/reports.md` |
/// | `logs/rank-N.log` | what each rank printed |
/// | `checkpoints/epoch-NNNN/` | see [`crate::checkpoint`] |
/// | `model.safetensors` | the trained parameters by path |
/// | `ema.safetensors` | the same, averaged over the training: [`EmaConfig`](crate::EmaConfig) |
/// | `adapter.safetensors` | what `--lora` has learned, beside the weights that have it merged: [`Adapter`](crate::Adapter) |
/// | `report.json` | a [`TrainingReport`] |
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// let folder = tempfile::tempdir().unwrap();
/// let run = everburn::train::RunDirectory::create(folder.path().join("a")).unwrap();
/// run.write_config(&everburn::train::TrainingConfig::default()).unwrap();
/// let config: everburn::train::TrainingConfig = run.read_config().unwrap();
/// assert_eq!(config, Default::default());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// Makes the folder if it is not there and checks that files can be written in it.
    ///
    /// # Errors
    /// [`TrainError::File`] if it cannot be made or written to.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, TrainError> {
        let run = Self { path: path.into() };
        if run.holds_something_else() {
            return Err(TrainError::File {
                action: "making the run directory",
                path: run.path,
                reason: "it is not empty and holds no run; choose another `run_dir`".to_string(),
            });
        }
        for folder in [run.logs(), run.checkpoints()] {
            if folder.is_symlink() {
                return Err(TrainError::File {
                    action: "making the run directory",
                    path: folder,
                    reason: "it is a link, and the files of a run are not written through links"
                        .to_string(),
                });
            }
        }
        for folder in [run.path.clone(), run.checkpoints()] {
            std::fs::create_dir_all(&folder)
                .map_err(|error| TrainError::file("making the run directory", &folder, &error))?;
        }
        tempfile::tempfile_in(&run.path)
            .map_err(|error| TrainError::file("preparing the run directory", &run.path, &error))?;
        Ok(run)
    }

    /// Whether there are files of somebody else's in the folder.
    fn holds_something_else(&self) -> bool {
        let ours = ["checkpoints", Settings::FILE, "logs", Live::LOCK];
        let is_ours = |name: &std::ffi::OsStr| ours.iter().any(|our| name == *our);
        !is_run(&self.path)
            && std::fs::read_dir(&self.path)
                .is_ok_and(|entries| entries.flatten().any(|e| !is_ours(&e.file_name())))
    }

    /// Renames a folder that holds a run to the first free of `<path>~1`, `<path>~2`, ..., and
    /// returns the new name; `None` if there is no run at `path`, or one that made no step.
    ///
    /// # Errors
    /// [`TrainError::File`] if it cannot be renamed.
    pub fn move_aside(path: &Path) -> Result<Option<PathBuf>, TrainError> {
        if !is_run(path) {
            return Ok(None);
        }
        let run = Self::open(path)?;
        let _held = run.lock()?;
        if !run.has_begun() {
            // A start that failed: the next run takes the folder.
            for name in [Event::FILE, Live::FILE, "report.html"] {
                let _ = std::fs::remove_file(path.join(name));
            }
            return Ok(None);
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_os_string();
        for number in 1_u32.. {
            let mut aside = name.clone();
            aside.push(format!("~{number}"));
            let aside = path.with_file_name(aside);
            if !aside.exists() {
                std::fs::rename(path, &aside)
                    .map_err(|error| TrainError::file("moving aside", path, &error))?;
                return Ok(Some(aside));
            }
        }
        Ok(None)
    }

    /// Renames this folder to `<path>~failed`, in place of an earlier one, and gives its name back to the run in `aside`,
    /// where [`move_aside`](Self::move_aside) has put it. Returns the folder's new name; `None` if this run has made a step,
    /// and so stays.
    ///
    /// # Errors
    /// [`TrainError::File`] if a folder cannot be renamed.
    pub fn move_back(&self, aside: &Path) -> Result<Option<PathBuf>, TrainError> {
        if self.has_begun() {
            return Ok(None);
        }
        let mut failed = self
            .path
            .file_name()
            .unwrap_or(self.path.as_os_str())
            .to_os_string();
        failed.push("~failed");
        let failed = self.path.with_file_name(failed);
        let rename = |from: &Path, to: &Path| {
            std::fs::rename(from, to).map_err(|error| TrainError::file("renaming", from, &error))
        };
        // Only what an earlier call has left is replaced.
        if Self::open(&failed).is_ok_and(|run| !run.has_begun()) {
            std::fs::remove_dir_all(&failed)
                .map_err(|error| TrainError::file("removing", &failed, &error))?;
        }
        rename(&self.path, &failed)?;
        rename(aside, &self.path)?;
        Ok(Some(failed))
    }

    /// Removes the folder of a start that was refused. Returns `false`, and leaves it as it is, if this run has made a step
    /// or has a model.
    ///
    /// # Errors
    /// [`TrainError::File`] if it cannot be removed.
    pub fn discard(&self) -> Result<bool, TrainError> {
        if self.has_begun() {
            return Ok(false);
        }
        std::fs::remove_dir_all(&self.path)
            .map_err(|error| TrainError::file("removing", &self.path, &error))?;
        Ok(true)
    }

    /// Whether anything of a training is in it, or of a model. A start may have failed before.
    fn has_begun(&self) -> bool {
        let has_bytes = |file: PathBuf| file.metadata().is_ok_and(|file| file.len() > 0);
        has_files(&self.checkpoints())
            || has_bytes(self.path.join(MetricLine::FILE))
            || has_bytes(self.model_path())
            || has_bytes(self.report_path())
    }

    /// The folder of a run that was made before.
    ///
    /// # Errors
    /// [`TrainError::File`] if there is no run in it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, TrainError> {
        let run = Self { path: path.into() };
        if is_run(&run.path) {
            return Ok(run);
        }
        let config = run.config_path();
        let config = config.file_name().unwrap_or_default().display();
        Err(TrainError::File {
            action: "opening the run",
            reason: match (run.path.is_file(), run.path.exists()) {
                (true, _) => format!(
                    "it is a file, and a run is a folder; `{} import FILE MODEL` makes a run of a file of weights",
                    invocation::name()
                ),
                (_, false) => "there is no such folder".to_owned(),
                _ if has_files(&run.checkpoints()) => format!(
                    "it has checkpoints, and no {config}, which may not have had room on the disk; begin a run with the same \
                     command and another `run_dir`, stop it, and copy its {config} here"
                ),
                _ => format!(
                    "there is no {config} in it; give the folder that was the `run_dir` of a training"
                ),
            },
            path: run.path,
        })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the ranks' logs. Who writes the first makes it, and nobody removes it while the run may be used.
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// The folder of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// The resolved configuration.
    pub fn config_path(&self) -> PathBuf {
        self.path.join(Settings::FILE)
    }

    /// The trained parameters.
    pub fn model_path(&self) -> PathBuf {
        self.path.join("model.safetensors")
    }

    /// The averaged parameters, of a run with `--ema`.
    pub fn ema_path(&self) -> PathBuf {
        self.path.join("ema.safetensors")
    }

    /// What low-rank adaptation has learned, of a run with `--lora`.
    pub fn adapter_path(&self) -> PathBuf {
        self.path.join("adapter.safetensors")
    }

    /// The report.
    pub fn report_path(&self) -> PathBuf {
        self.path.join(TrainingReport::FILE)
    }

    /// Writes `config.toml`.
    ///
    /// # Errors
    /// [`TrainError::Write`] if it cannot be written.
    pub fn write_config<C: Serialize>(&self, config: &C) -> Result<(), TrainError> {
        let text = toml::to_string(config);
        let text = text.map_err(|error| TrainError::write(&self.config_path(), error))?;
        write_file(&self.config_path(), text.as_bytes())
    }

    /// Reads `config.toml`.
    ///
    /// # Errors
    /// [`TrainError::File`] if it cannot be read or does not fit.
    pub fn read_config<C: DeserializeOwned>(&self) -> Result<C, TrainError> {
        let path = self.config_path();
        let text = std::fs::read_to_string(&path)
            .map_err(|error| TrainError::file("reading", &path, &error))?;
        toml::from_str(&text).map_err(|error| unread(&path, &configuration_fault(&error, &text)))
    }

    /// Writes `report.json`.
    ///
    /// # Errors
    /// [`TrainError::Write`] if it cannot be written.
    pub fn write_report(&self, report: &TrainingReport) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(report);
        let mut text = text.map_err(|error| TrainError::write(&self.report_path(), error))?;
        text.push('\n');
        write_file(&self.report_path(), text.as_bytes())
    }

    /// Reads `report.json`.
    ///
    /// # Errors
    /// [`TrainError::File`] if it cannot be read or does not fit.
    pub fn read_report(&self) -> Result<TrainingReport, TrainError> {
        let path = self.report_path();
        let text = std::fs::read_to_string(&path)
            .map_err(|error| TrainError::file("reading", &path, &error))?;
        serde_json::from_str(&text).map_err(|error| unread(&path, &error))
    }

    /// Opens `metrics.jsonl` for a run that has come to `step`: later lines, those of a test, and those of the end of an
    /// epoch that is not `over` are taken out, because they will come again.
    pub(crate) fn metrics_from(
        &self,
        step: usize,
        over: EpochsOver,
    ) -> Result<MetricsFile, TrainError> {
        let path = self.path.join(MetricLine::FILE);
        let is_earlier = |line: &MetricLine| line.step < step;
        keep_lines(&path, is_earlier, |line: &MetricLine| {
            line.step <= step && line.kind != MetricKind::Test && over.includes(line)
        })?;
        self.metrics()
    }

    /// Kind and step of the newest lines that are recorded, from those of `step` on.
    pub(crate) fn recorded_lines(&self, step: usize) -> Vec<(MetricKind, usize)> {
        let text = std::fs::read_to_string(self.path.join(MetricLine::FILE)).unwrap_or_default();
        let lines = text.lines().rev();
        let lines = lines.filter_map(|line| serde_json::from_str::<MetricLine>(line).ok());
        let lines = lines.take_while(|line| line.step >= step);
        lines.map(|line| (line.kind, line.step)).collect()
    }

    /// Opens `metrics.jsonl` at its end.
    ///
    /// # Errors
    /// [`TrainError::File`] if it cannot be opened.
    pub(crate) fn metrics(&self) -> Result<MetricsFile, TrainError> {
        MetricsFile::open(self.path.join(MetricLine::FILE))
    }
}

/// Writes a whole file or none; the error names the file.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    file::write(path, bytes)
        .map_err(|error| TrainError::write(path, with_room(&error, path, bytes.len())))
}

/// As [`write_file`], of a file that is none of a run.
pub(crate) fn write_output(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    file::write(path, bytes).map_err(|error| not_output(path, &error))
}

/// The error of a file or folder that cannot be read, or is not what it should be.
pub(crate) fn unread(path: &Path, reason: &dyn std::fmt::Display) -> TrainError {
    TrainError::File {
        action: "reading",
        path: path.into(),
        reason: reason.to_string(),
    }
}

/// The error of a file or folder that is none of a run.
pub(crate) fn not_output(path: &Path, error: &std::io::Error) -> TrainError {
    TrainError::write(path, file::with_hint(error, "`output`"))
}

/// Whether a folder is there and has something in it.
fn has_files(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder);
    entries.is_ok_and(|mut entries| entries.next().is_some())
}
