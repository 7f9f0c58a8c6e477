//! The places of checkpoints in a training, and which of them a run has, by the names in its folder.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

/// The position of a checkpoint in a training; later ones are greater. Its text is the name of the checkpoint's folder.
///
/// ```
/// use everburn_record::Place;
///
/// let place = Place { epoch: 3, batches: 120 };
/// assert_eq!(place.to_string(), "epoch-0003-batch-000120");
/// assert_eq!("epoch-0003-batch-000120".parse(), Ok(place));
/// assert!(Place::from(3) < place && place < Place::from(4));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// How many epochs were finished.
    pub epoch: usize,
    /// How many global batches of the next one had been learnt from.
    pub batches: usize,
}

impl Place {
    /// How the name of a checkpoint begins that is being replaced; its own follows.
    pub const REPLACED: &str = ".replaced-";

    /// The places of the checkpoints in a run's folder `checkpoints`, in ascending order. One that is being written is none;
    /// one that is being replaced is still there. A folder that is not there has none.
    ///
    /// # Errors
    /// The system's, if the folder cannot be read.
    ///
    /// ```
    /// use everburn_record::Place;
    ///
    /// let folder = tempfile::tempdir()?;
    /// for name in ["epoch-0002", ".replaced-epoch-0001", ".partial-x"] {
    ///     std::fs::create_dir(folder.path().join(name))?;
    /// }
    /// assert_eq!(Place::all_in(folder.path())?, [1, 2].map(Place::from));
    /// assert!(Place::all_in(&folder.path().join("none"))?.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn all_in(checkpoints: &Path) -> io::Result<Vec<Self>> {
        let entries = match std::fs::read_dir(checkpoints) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let place_of = |name: &str| {
            let replaced = name.strip_prefix(Self::REPLACED);
            replaced.unwrap_or(name).parse().ok()
        };
        let places = entries.filter_map(|entry| place_of(entry.ok()?.file_name().to_str()?));
        let mut places: Vec<Self> = places.collect();
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }

    /// The place of the newest checkpoint of the run in this folder, by its name. A folder that cannot be read has none.
    ///
    /// ```
    /// use everburn_record::Place;
    ///
    /// let run = tempfile::tempdir()?;
    /// assert_eq!(Place::newest_of(run.path()), None);
    /// std::fs::create_dir_all(run.path().join("checkpoints/epoch-0001"))?;
    /// assert_eq!(Place::newest_of(run.path()), Some(Place::from(1)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn newest_of(run: &Path) -> Option<Self> {
        Self::all_in(&run.join("checkpoints")).ok()?.pop()
    }

    /// Where the checkpoint of this place is in a run's folder `checkpoints`: aside, if a process was killed while it replaced
    /// it.
    pub fn found_in(self, checkpoints: &Path) -> PathBuf {
        let (path, aside) = (checkpoints.join(self.to_string()), self.aside(checkpoints));
        match !path.is_dir() && aside.is_dir() {
            true => aside,
            false => path,
        }
    }

    /// Where the checkpoint of this place is while it is replaced.
    pub fn aside(self, checkpoints: &Path) -> PathBuf {
        checkpoints.join(format!("{}{self}", Self::REPLACED))
    }
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
///
/// ```
/// use everburn_record::{NotAPlace, Place};
///
/// let error: NotAPlace = "latest".parse::<Place>().unwrap_err();
/// assert!(error.to_string().contains("latest"));
/// ```
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
