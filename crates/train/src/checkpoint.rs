//! Checkpoints at the end of an epoch, `checkpoints/epoch-0003/`, or within the next one:
//! `checkpoints/epoch-0003-batch-000120/`.
//!
//! A checkpoint is a folder with three files in Burn's own record format (`model.bpk` by parameter
//! path, `optimizer.bpk`, `scheduler.bpk`) and a `manifest.json` that holds the size and SHA-256 of
//! each. It is written under a temporary name, synced and renamed, so that a folder with
//! such a name is whole; it is verified when read. Nothing in it depends on the world size.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::atomic_file::sync_folder;
use crate::config::{OptimizerKind, Schedule, TrainingConfig};
use crate::error::TrainError;
use crate::report::{BestEpoch, Versions};
use crate::tally::Tally;

/// The version of the format that this program writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;

const MANIFEST: &str = "manifest.json";

/// How the name of a checkpoint that is being written begins.
const PARTIAL: &str = ".partial-";

/// How the name of a checkpoint that is being replaced begins; its own follows.
const REPLACED: &str = ".replaced-";

/// A file of a checkpoint, as its manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The file's name in the checkpoint's folder.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

/// Where a training stood when the checkpoint was made.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// The model's name, so that a checkpoint is not loaded into another model.
    pub model: String,
    /// How many epochs were finished.
    pub epoch: usize,
    /// How many steps had been made.
    pub step: usize,
    /// The seed with which samples are shuffled.
    pub seed: u64,
    /// The size of the global batch.
    pub batch_size: usize,
    /// How many samples an epoch has.
    pub samples_per_epoch: usize,
    /// The optimizer, whose state a checkpoint holds.
    pub optimizer: OptimizerKind,
    /// The schedule of the learning rate.
    pub schedule: Schedule,
    /// How many steps the run was planned to make: the length of its schedule.
    pub total_steps: usize,
    /// The best epoch so far.
    pub best: Option<BestEpoch>,
    /// How many global batches of the next epoch had been learnt from.
    #[serde(default)]
    pub batches: usize,
    /// What those had shown.
    #[serde(default)]
    pub so_far: Tally,
}

/// Where in a training a checkpoint stands; later ones are greater.
///
/// ```
/// use everburn_train::checkpoint::Place;
///
/// let place = Place { epoch: 3, batches: 120 };
/// assert_eq!(place.to_string(), "epoch-0003-batch-000120");
/// assert_eq!("epoch-0003-batch-000120".parse(), Ok(place));
/// assert!(Place::from(3) < place && place < Place::from(4));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// How many epochs were finished.
    pub epoch: usize,
    /// How many global batches of the next one had been learnt from.
    pub batches: usize,
}

impl From<usize> for Place {
    /// The end of an epoch.
    fn from(epoch: usize) -> Self {
        Self { epoch, batches: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, batches } = self;
        match batches {
            0 => write!(f, "epoch-{epoch:04}"),
            _ => write!(f, "epoch-{epoch:04}-batch-{batches:06}"),
        }
    }
}

/// A name that is no checkpoint's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no name of a checkpoint: it is one like epoch-0003 or epoch-0003-batch-000120")]
pub struct NotAPlace(String);

impl FromStr for Place {
    type Err = NotAPlace;

    fn from_str(name: &str) -> Result<Self, NotAPlace> {
        let read = || {
            let rest = name.strip_prefix("epoch-")?;
            let (epoch, batches) = rest.split_once("-batch-").unwrap_or((rest, "0"));
            Some(Self {
                epoch: epoch.parse().ok()?,
                batches: batches.parse().ok()?,
            })
        };
        read().ok_or_else(|| NotAPlace(name.to_string()))
    }
}

impl Progress {
    /// Where that is.
    pub fn place(&self) -> Place {
        Place {
            epoch: self.epoch,
            batches: self.batches,
        }
    }

    /// The start of a run.
    pub fn start(model: &str, config: &TrainingConfig, samples_per_epoch: usize) -> Self {
        Self {
            model: model.to_string(),
            seed: config.seed,
            batch_size: config.batch_size,
            samples_per_epoch,
            optimizer: config.optimizer.kind,
            schedule: config.schedule,
            total_steps: config.total_steps(samples_per_epoch),
            ..Self::default()
        }
    }

    /// Checks that a run of `self` can go on from where `checkpoint` stood.
    ///
    /// # Errors
    /// What differs, in words.
    pub fn fits(&self, checkpoint: &Self) -> Result<(), String> {
        let facts = |progress: &Self| {
            // The length of a constant schedule is of no consequence.
            let steps = match progress.schedule {
                Schedule::Constant => "any".to_string(),
                Schedule::Cosine => progress.total_steps.to_string(),
            };
            [
                ("model", progress.model.clone()),
                ("seed", progress.seed.to_string()),
                ("batch size", progress.batch_size.to_string()),
                ("training samples", progress.samples_per_epoch.to_string()),
                ("optimizer", format!("{:?}", progress.optimizer)),
                ("schedule", format!("{:?}", progress.schedule)),
                ("steps of the schedule", steps),
            ]
        };
        let different = facts(checkpoint)
            .into_iter()
            .zip(facts(self))
            .filter(|(theirs, ours)| theirs != ours)
            .map(|((what, theirs), (_, ours))| format!("{what} {theirs} there, {ours} here"))
            .collect::<Vec<_>>();
        if different.is_empty() {
            return Ok(());
        }
        Err(format!(
            "it belongs to another run ({}); resume with the same configuration",
            different.join("; ")
        ))
    }
}

/// `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format.
    pub format_version: u32,
    /// Where the training stood.
    pub progress: Progress,
    /// The versions with which it was made.
    pub versions: Versions,
    /// The other files.
    pub files: Vec<FileEntry>,
}

/// Everything that a continuation needs.
///
/// ```
/// use everburn_train::checkpoint::{Checkpoint, CheckpointFolder, Progress};
///
/// let folder = tempfile::tempdir().unwrap();
/// let checkpoints = CheckpointFolder::new(folder.path(), 2);
/// let progress = Progress { epoch: 1, ..Progress::default() };
/// let files = [("model.bpk".to_string(), vec![1, 2, 3])].into();
/// let checkpoint = Checkpoint { progress, files };
/// checkpoints.save(&checkpoint).unwrap();
/// assert_eq!(checkpoints.load_newest().unwrap().checkpoint, checkpoint);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checkpoint {
    /// Where the training stood.
    pub progress: Progress,
    /// The contents of the files, by name.
    pub files: std::collections::BTreeMap<String, Vec<u8>>,
}

/// A checkpoint that was read, and those that were passed over for being damaged.
#[derive(Debug)]
pub struct Loaded {
    /// The newest good checkpoint.
    pub checkpoint: Checkpoint,
    /// Its folder.
    pub path: PathBuf,
    /// Why newer ones were not taken.
    pub refused: Vec<TrainError>,
}

/// The folder in which a run keeps its checkpoints.
#[derive(Debug, Clone)]
pub struct CheckpointFolder {
    path: PathBuf,
    keep: usize,
}

impl CheckpointFolder {
    /// A folder in which the `keep` newest checkpoints and the best one are kept.
    pub fn new(path: impl Into<PathBuf>, keep: usize) -> Self {
        Self {
            path: path.into(),
            keep: keep.max(1),
        }
    }

    fn path_of(&self, place: Place) -> PathBuf {
        self.path.join(place.to_string())
    }

    /// The places of which there is a checkpoint, in ascending order.
    ///
    /// # Errors
    /// [`TrainError::File`] if the folder cannot be read; one that is not there has none.
    pub fn places(&self) -> Result<Vec<Place>, TrainError> {
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(TrainError::file("reading", &self.path, &error)),
        };
        let mut places = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect::<Vec<Place>>();
        places.sort_unstable();
        Ok(places)
    }

    /// Writes a checkpoint, and only then removes those that are no longer to be kept.
    ///
    /// # Errors
    /// [`TrainError::File`] if it cannot be written; all earlier checkpoints are then still there.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf, TrainError> {
        let target = self.path_of(checkpoint.progress.place());
        let failed =
            |error: &std::io::Error| TrainError::file("writing the checkpoint", &target, error);
        std::fs::create_dir_all(&self.path).map_err(|error| failed(&error))?;
        self.write(checkpoint, &target)
            .map_err(|error| failed(&error))?;
        self.remove_superseded(&checkpoint.progress)?;
        Ok(target)
    }

    fn write(&self, checkpoint: &Checkpoint, target: &Path) -> std::io::Result<()> {
        let partial = tempfile::Builder::new()
            .prefix(PARTIAL)
            .tempdir_in(&self.path)?;
        let write = |name: &str, bytes: &[u8]| -> std::io::Result<()> {
            let mut file = std::fs::File::create_new(partial.path().join(name))?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        let mut manifest = Manifest {
            format_version: FORMAT_VERSION,
            progress: checkpoint.progress.clone(),
            versions: Versions::default(),
            files: Vec::new(),
        };
        for (name, bytes) in &checkpoint.files {
            write(name, bytes)?;
            manifest.files.push(FileEntry {
                name: name.clone(),
                bytes: bytes.len() as u64,
                sha256: hexadecimal_sha256(bytes),
            });
        }
        write(MANIFEST, &serde_json::to_vec_pretty(&manifest)?)?;
        sync_folder(partial.path())?;
        // The same place may have been reached before, from an earlier checkpoint: the old one goes
        // only once the new one is in its place.
        let old = self
            .path
            .join(format!("{REPLACED}{}", checkpoint.progress.place()));
        let replaces = target.exists();
        if replaces {
            std::fs::rename(target, &old)?;
        }
        std::fs::rename(partial.path(), target)?;
        drop(partial.keep());
        sync_folder(&self.path)?;
        if replaces {
            std::fs::remove_dir_all(&old)?;
        }
        Ok(())
    }

    /// Removes what a process that was killed while writing left behind, and puts back a checkpoint
    /// that was about to be replaced. Only for the run's owner: nobody else may be writing.
    ///
    /// # Errors
    /// [`TrainError::File`] if the folder cannot be changed.
    pub fn clean(&self) -> Result<(), TrainError> {
        let failed = |error: &std::io::Error| TrainError::file("cleaning", &self.path, error);
        let entries = match std::fs::read_dir(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| failed(&error))?,
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let replaced = name.strip_prefix(REPLACED);
            let replaced = replaced.and_then(|name| name.parse().ok());
            let result = match replaced.map(|place| self.path_of(place)) {
                Some(target) if !target.exists() => std::fs::rename(entry.path(), target),
                Some(_) => std::fs::remove_dir_all(entry.path()),
                None if name.starts_with(PARTIAL) => std::fs::remove_dir_all(entry.path()),
                None => Ok(()),
            };
            result.map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn remove_superseded(&self, progress: &Progress) -> Result<(), TrainError> {
        let places = self.places()?;
        let best = progress.best.map(|best| Place::from(best.epoch));
        let superseded = places.len().saturating_sub(self.keep);
        for place in places.into_iter().take(superseded) {
            if Some(place) != best && place != progress.place() {
                let path = self.path_of(place);
                std::fs::remove_dir_all(&path)
                    .map_err(|error| TrainError::file("removing", &path, &error))?;
            }
        }
        Ok(())
    }

    /// Reads and verifies the checkpoint of a place: the number of an epoch, for the end of one.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] saying what is damaged.
    pub fn load(&self, place: impl Into<Place>) -> Result<Checkpoint, TrainError> {
        let path = self.path_of(place.into());
        let refuse = |reason: String| TrainError::Checkpoint {
            path: path.clone(),
            reason,
        };
        if !path.is_dir() {
            let there = self.places()?.into_iter().map(|place| place.to_string());
            let there = there.collect::<Vec<_>>().join(", ");
            return Err(refuse(format!("it is not there; there are: {there}")));
        }
        let read = |name: &str| {
            std::fs::read(path.join(name)).map_err(|error| refuse(format!("{name}: {error}")))
        };
        let manifest = read(MANIFEST)?;
        let version = serde_json::from_slice::<VersionOnly>(&manifest)
            .map_err(|error| refuse(format!("{MANIFEST} is damaged: {error}")))?
            .format_version;
        if version != FORMAT_VERSION {
            return Err(refuse(format!(
                "its format has version {version}, this program reads version {FORMAT_VERSION}"
            )));
        }
        let manifest = serde_json::from_slice::<Manifest>(&manifest)
            .map_err(|error| refuse(format!("{MANIFEST} is damaged: {error}")))?;
        let mut files = std::collections::BTreeMap::new();
        for entry in manifest.files {
            if Path::new(&entry.name).components().count() != 1 {
                return Err(refuse(format!(
                    "{MANIFEST} names a file outside: {}",
                    entry.name
                )));
            }
            let bytes = read(&entry.name)?;
            if bytes.len() as u64 != entry.bytes {
                return Err(refuse(format!(
                    "{} is damaged: it has {} bytes and should have {}",
                    entry.name,
                    bytes.len(),
                    entry.bytes
                )));
            }
            let sha256 = hexadecimal_sha256(&bytes);
            if sha256 != entry.sha256 {
                return Err(refuse(format!(
                    "{} is damaged: its SHA-256 is {sha256} and should be {}",
                    entry.name, entry.sha256
                )));
            }
            files.insert(entry.name, bytes);
        }
        Ok(Checkpoint {
            progress: manifest.progress,
            files,
        })
    }

    /// Reads the newest checkpoint that is good.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if there is none; it names every damaged one.
    pub fn load_newest(&self) -> Result<Loaded, TrainError> {
        let mut refused = Vec::new();
        for place in self.places()?.into_iter().rev() {
            match self.load(place) {
                Ok(checkpoint) => {
                    return Ok(Loaded {
                        checkpoint,
                        path: self.path_of(place),
                        refused,
                    });
                }
                Err(error) => refused.push(error),
            }
        }
        let reason = if refused.is_empty() {
            "there is none in it; start without --resume".to_string()
        } else {
            let list = refused
                .iter()
                .map(|error| format!("\n  {error}"))
                .collect::<String>();
            format!("none of those in it is whole; start without --resume, or restore one:{list}")
        };
        Err(TrainError::Checkpoint {
            path: self.path.clone(),
            reason,
        })
    }
}

#[derive(Deserialize)]
struct VersionOnly {
    format_version: u32,
}

fn hexadecimal_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests;
