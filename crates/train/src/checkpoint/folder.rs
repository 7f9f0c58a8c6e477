//! The folder in which a run keeps its checkpoints.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use everburn_record::checkpoints_elsewhere;
use everburn_record::file::sync_folder;

use super::manifest::{MANIFEST, Manifest, SEAL};
use super::training_state::MODEL;
use super::{Checkpoint, Loaded, Place, Progress};
use crate::config::checkpoint_failure::explain;
use crate::error::TrainError;

/// How the name of a checkpoint that is being written begins.
const PARTIAL: &str = ".partial-";

/// The folder in which a run keeps its checkpoints.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::TrainError;
/// use everburn::train::checkpoint::CheckpointFolder;
///
/// fn show(folder: &CheckpointFolder) -> Result<(), TrainError> {
///     for place in folder.places()? {
///         println!("{place}");
///     }
///     Ok(())
/// }
/// ```
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

    /// Whether `folder` is that of one checkpoint, by the names of its files.
    pub fn is_checkpoint(folder: &Path) -> bool {
        [MANIFEST, SEAL]
            .iter()
            .all(|name| folder.join(name).is_file())
    }

    fn path_of(&self, place: Place) -> PathBuf {
        self.path.join(place.to_string())
    }

    /// The places of which there is a checkpoint, in ascending order.
    ///
    /// # Errors
    /// [`TrainError::File`] if the folder cannot be read; one that is not there has none.
    pub fn places(&self) -> Result<Vec<Place>, TrainError> {
        let places = Place::all_in(&self.path);
        places.map_err(|error| TrainError::file("reading", &self.path, &error))
    }

    /// Writes a checkpoint, and only when it is complete and synced removes those that are no longer to be
    /// kept.
    ///
    /// # Errors
    /// [`TrainError::WriteCheckpoint`] if it cannot be written: it says how much space there is, and which checkpoint is
    /// the newest; all earlier ones are then still there. [`TrainError::Checkpoint`] if what calls itself
    /// safetensors is none.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf, TrainError> {
        let place = checkpoint.progress.place();
        let target = self.path_of(place);
        let manifest = Manifest::of(checkpoint);
        let texts = manifest.and_then(|manifest| Ok((manifest.texts()?, manifest)));
        let (texts, manifest) = texts.map_err(|reason| TrainError::Checkpoint {
            path: target.clone(),
            reason,
        })?;
        let files = checkpoint.files.iter();
        let mut files = files
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
            .collect::<Vec<_>>();
        files.extend(texts.iter().map(|(name, text)| (*name, text.as_slice())));
        let written = std::fs::create_dir_all(&self.path)
            .and_then(|()| self.write(place, &files))
            .and_then(|()| manifest.check_lengths(&target).map_err(io::Error::other));
        if let Err(error) = written {
            let needed = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
            return Err(explain(&error, &target, needed, self.newest_before(place)));
        }
        self.remove_superseded(&checkpoint.progress)?;
        self.remove_abandoned();
        Ok(target)
    }

    fn write(&self, place: Place, files: &[(&str, &[u8])]) -> io::Result<()> {
        let partial = tempfile::Builder::new()
            .prefix(PARTIAL)
            // As every folder of a run: the process's umask applies.
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(&self.path)?;
        // Held as long as this process lives; where the file system knows no locks, nobody can take it.
        let _held = try_lock(partial.path());
        for (name, bytes) in files {
            let mut file = File::create_new(partial.path().join(name))?;
            file.write_all(bytes)?;
            file.sync_all()?;
        }
        sync_folder(partial.path())?;
        let target = self.path_of(place);
        // The same place may have been reached before, from an earlier checkpoint.
        match target.exists() {
            true => self.replace(partial.path(), place)?,
            false => {
                std::fs::rename(partial.path(), &target)?;
                drop(partial.keep());
            }
        }
        sync_folder(&self.path)
    }

    /// Puts `partial` in the place of a checkpoint, which is then removed. At each moment one of them is
    /// there.
    fn replace(&self, partial: &Path, place: Place) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let (target, aside) = (self.path_of(place), place.aside(&self.path));
        // Both at once, where the file system can do so.
        if renameat_with(CWD, partial, CWD, &target, RenameFlags::EXCHANGE).is_ok() {
            // `partial` has the old one now, and is removed by its owner.
            return sync_folder(&self.path);
        }
        std::fs::rename(&target, &aside)?;
        std::fs::rename(partial, &target)?;
        sync_folder(&self.path)?;
        std::fs::remove_dir_all(&aside)
    }

    /// Removes what a process that was killed while writing left behind, and puts back a checkpoint
    /// that was about to be replaced. Only for the run's owner: nobody else may be writing.
    ///
    /// # Errors
    /// [`TrainError::File`] if the folder cannot be changed.
    pub fn clean(&self) -> Result<(), TrainError> {
        let failed = |error: &io::Error| TrainError::file("cleaning", &self.path, error);
        let entries = match std::fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| failed(&error))?,
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let replaced = name.strip_prefix(Place::REPLACED);
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
        let mut places = self.places()?;
        // A later one is damaged: the training went back past it.
        places.retain(|place| *place <= progress.place());
        let best = self.best_of(&places, progress);
        let superseded = places.len().saturating_sub(self.keep);
        for place in places.into_iter().take(superseded) {
            if Some(place) != best && place != progress.place() {
                let path = self.path_of(place);
                // Under another name first, so that none is ever seen with some of its files only.
                let doomed = self.path.join(format!("{PARTIAL}{place}"));
                let removed =
                    std::fs::rename(&path, &doomed).and_then(|()| std::fs::remove_dir_all(&doomed));
                if let Err(error) = removed {
                    // The new one is written; an old one more does no harm until the disk is full.
                    tracing::warn!("{}", TrainError::file("removing", &path, &error));
                }
            }
        }
        Ok(())
    }

    /// The best of `places`. The process that was to write the best epoch's may have been lost before: then
    /// that which was the best until then.
    fn best_of(&self, places: &[Place], progress: &Progress) -> Option<Place> {
        let best = |progress: &Progress| progress.best.map(|best| Place::from(best.epoch));
        let named =
            |place: &Place| best(&Manifest::read(&place.found_in(&self.path)).ok()?.progress);
        let is_there = |place: &Place| places.contains(place);
        let now = best(progress)?;
        match is_there(&now) {
            true => Some(now),
            false => places.iter().rev().filter_map(named).find(is_there),
        }
    }

    /// Removes what processes that were killed while writing left behind. A process that still writes holds
    /// a lock on its folder.
    fn remove_abandoned(&self) {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten();
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(PARTIAL) && try_lock(&path).is_some() {
                // It does no harm until the disk is full, and the next checkpoint tries again.
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }

    /// The newest checkpoint of another place that has all its files; their contents are not read. Where there are others, and
    /// none of them is whole, or it cannot be seen which there are: why.
    fn newest_before(&self, place: Place) -> Result<Option<Place>, String> {
        let mut places = match Place::all_in(&self.path) {
            // A file is in the way.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
            places => places.map_err(|error| error.to_string())?,
        };
        places.retain(|other| *other != place);
        let mut first = None;
        for place in places.into_iter().rev() {
            let path = place.found_in(&self.path);
            let manifest = Manifest::read(&path);
            match manifest.and_then(|manifest| manifest.check_lengths(&path)) {
                Ok(()) => return Ok(Some(place)),
                Err(why) => first = first.or(Some(format!("{place}: {why}"))),
            }
        }
        first.map_or(Ok(None), Err)
    }

    /// Reads and verifies the checkpoint of a place: the number of an epoch, for the end of one.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] saying what is damaged, the tensor where it is one, and which other checkpoint to name.
    pub fn load(&self, place: impl Into<Place>) -> Result<Checkpoint, TrainError> {
        let place = place.into();
        let (path, reason) = match self.read(place) {
            Err(TrainError::Checkpoint { path, reason }) if path.is_dir() => (path, reason),
            read => return read,
        };
        let advice = match self.newest_good(Some(place)) {
            Some(other) => {
                format!("{other} is the newest other good one: `checkpoint = {other}` takes it")
            }
            None => "no other one of this run is good".to_owned(),
        };
        Err(TrainError::Checkpoint {
            path,
            reason: format!("{reason}; {advice}"),
        })
    }

    /// The newest checkpoint that can be read and is whole, but for one.
    pub(super) fn newest_good(&self, but: Option<Place>) -> Option<Place> {
        let places = self.places().ok()?.into_iter().rev();
        let mut others = places.filter(|other| Some(*other) != but);
        others.find(|other| self.read(*other).is_ok())
    }

    /// The same as [`load`](Self::load); the error names no other checkpoint.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] saying what is damaged, the tensor where it is one.
    pub fn read(&self, place: Place) -> Result<Checkpoint, TrainError> {
        let path = place.found_in(&self.path);
        let refuse = |reason: String| TrainError::Checkpoint {
            path: self.path_of(place),
            reason,
        };
        if !path.is_dir() {
            let there = self.places()?.into_iter().map(|place| place.to_string());
            let there = there.collect::<Vec<_>>().join(", ");
            return Err(refuse(format!("it is not there; there are: {there}")));
        }
        let manifest = Manifest::read(&path).map_err(refuse)?;
        let files = manifest.read_files(&path).map_err(refuse)?;
        Ok(Checkpoint {
            progress: manifest.progress,
            files,
        })
    }

    /// How far the newest checkpoint has come whose manifest can be read; its files are not read.
    pub fn newest_progress(&self) -> Option<Progress> {
        let mut places = self.places().ok()?.into_iter().rev();
        places.find_map(|place| self.progress(place))
    }

    /// How far the checkpoint of a place has come, if its manifest can be read; its files are not read.
    pub fn progress(&self, place: Place) -> Option<Progress> {
        let manifest = Manifest::read(&place.found_in(&self.path));
        Some(manifest.ok()?.progress)
    }

    /// What is said of a run without a checkpoint. It may have its model, where the disk took that and no checkpoint.
    fn without_checkpoint(&self) -> String {
        let run = self.path.parent();
        if let Some(elsewhere) = run.and_then(checkpoints_elsewhere) {
            return format!("it contains no checkpoint, but {elsewhere}");
        }
        match run.filter(|run| run.join(MODEL).is_file()) {
            Some(run) => format!(
                "it contains no checkpoint, and the run has its model: start without `Trainer::resume`; `init_from = {}` begins \
                 with that model",
                run.display()
            ),
            None => "it contains no checkpoint: the run ended before its first one; start without `Trainer::resume`"
                .to_owned(),
        }
    }

    /// Reads the newest checkpoint that is good.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if there is none; it names every damaged one.
    pub fn load_newest(&self) -> Result<Loaded, TrainError> {
        let mut refused = Vec::new();
        for place in self.places()?.into_iter().rev() {
            match self.read(place) {
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
            self.without_checkpoint()
        } else {
            let list = refused
                .iter()
                .map(|error| format!("\n  {error}"))
                .collect::<String>();
            format!(
                "none of those in it is whole; start without `Trainer::resume`, or restore one:{list}"
            )
        };
        Err(TrainError::Checkpoint {
            path: self.path.clone(),
            reason,
        })
    }
}

/// A lock on a folder, until it is dropped or the process ends; `None` where another has it.
fn try_lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    let locked = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    locked.is_ok().then_some(file)
}
