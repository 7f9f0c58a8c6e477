//! From a choice to data.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::collection::{Collection, FASHION_MNIST, MNIST};
use crate::download::FetchError;
use crate::error::other_kind;
use crate::locate::{self, SearchedFolder};
use crate::{
    DataChoice, DatasetError, ImageDataset, Split, Surroundings, SyntheticDigits, download,
};

/// Seed of the synthetic digits unless another is asked for. It is not a run's seed: runs with
/// different seeds should see the same data.
pub const DEFAULT_SYNTHETIC_SEED: u64 = 0;

/// What is wanted, and what may be done to get it.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{DataChoice, DataRequest};
///
/// let request = DataRequest { choice: DataChoice::Mnist, ..DataRequest::default() };
/// assert!(request.download && request.data_dir.is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRequest {
    /// Which data set.
    pub choice: DataChoice,
    /// A folder that holds the four files, or the sub-folders `mnist` and `fashion-mnist`. No other
    /// one is looked in, and a download goes there.
    pub data_dir: Option<PathBuf>,
    /// Seed of the synthetic digits; nothing else depends on it.
    pub seed: u64,
    /// Whether files that are not found may be downloaded. `EVERBURN_OFFLINE=1` forbids it too.
    pub download: bool,
    /// How many training and test images are wanted: of files the first ones, of synthetic digits
    /// exactly this many.
    pub limits: Option<(usize, usize)>,
}

impl Default for DataRequest {
    fn default() -> Self {
        Self {
            choice: DataChoice::Auto,
            data_dir: None,
            seed: DEFAULT_SYNTHETIC_SEED,
            download: true,
            limits: None,
        }
    }
}

/// A training set, a test set, and what they are: the answer of [`load`].
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{DataChoice, DataRequest, LoadedData, load};
///
/// let request = DataRequest {
///     choice: DataChoice::Synthetic,
///     limits: Some((20, 10)),
///     ..DataRequest::default()
/// };
/// let LoadedData { train, test, description } = load(&request)?;
/// assert_eq!((train.len(), test.len()), (20, 10));
/// assert_eq!((description.train, description.test), (20, 10));
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoadedData {
    /// Images to train on.
    pub train: ImageDataset,
    /// Images to evaluate on.
    pub test: ImageDataset,
    /// What these are.
    pub description: DatasetDescription,
}

/// What was loaded, from where and why: for the first line of the output, the run's record and
/// the report. Displayed on one line.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::DatasetDescription;
///
/// let description = DatasetDescription {
///     name: "synthetic-digits".into(),
///     origin: "generated, seed 0".into(),
///     reason: "asked for".into(),
///     train: 60_000,
///     test: 10_000,
///     unit: "images".into(),
/// };
/// assert_eq!(
///     description.to_string(),
///     "synthetic-digits, 60000 training and 10000 test images \
///      (generated, seed 0): asked for"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetDescription {
    /// `mnist`, `fashion-mnist`, `synthetic-digits`, `tinyshakespeare` or `embedded`.
    pub name: String,
    /// The folder or the path of the files, or `generated, seed 0`.
    pub origin: String,
    /// Why this set: which setting named the folder, which mirrors it was downloaded from, or
    /// what was not found.
    pub reason: String,
    /// The number of training samples.
    pub train: usize,
    /// The number of test samples.
    pub test: usize,
    /// What a sample is: `images`, or `windows of 64 characters`.
    pub unit: String,
}

impl fmt::Display for DatasetDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            origin,
            reason,
            train,
            test,
            unit,
        } = self;
        let train = match train {
            0 => String::new(),
            train => format!("{train} training and "),
        };
        // A path that was named is both.
        let origin = match origin == name {
            true => String::new(),
            false => format!(" ({origin})"),
        };
        write!(f, "{name}, {train}{test} test {unit}{origin}: {reason}")
    }
}

/// Gets the data that `request` describes, in the surroundings of this process.
///
/// Files are looked for in `request.data_dir` or, where none was named, in `$EVERBURN_DATA_DIR` and
/// then in the user's cache folder, and then fetched, if that is allowed. MNIST's files are verified
/// by SHA-256 of their decompressed content, Fashion-MNIST's by SHA-256 of the compressed files.
///
/// # Errors
///
/// - [`DatasetError::NotFound`] if files are nowhere, and were asked for by name or a folder was
///   named; otherwise `auto` takes the synthetic digits then;
/// - [`DatasetError::Data`] if a folder that was named is not there;
/// - [`DatasetError::Idx`] and [`DatasetError::Altered`] if files were found, but are not what they
///   should be, whatever the choice;
/// - [`DatasetError::Request`] if a limit cannot be met, or the choice is a text.
pub fn load(request: &DataRequest) -> Result<LoadedData, DatasetError> {
    load_in(request, &Surroundings::of_process())
}

/// As [`load`], in surroundings of the caller's making.
///
/// # Errors
///
/// As [`load`].
pub fn load_in(
    request: &DataRequest,
    surroundings: &Surroundings,
) -> Result<LoadedData, DatasetError> {
    if let Some((train, test)) = request.limits {
        SyntheticDigits::check(Split::Train, train)?;
        SyntheticDigits::check(Split::Test, test)?;
    }
    match request.choice {
        DataChoice::Synthetic => synthetic(request, "asked for".to_owned()),
        DataChoice::Mnist => from_files(&MNIST, request, surroundings),
        DataChoice::FashionMnist => from_files(&FASHION_MNIST, request, surroundings),
        DataChoice::Auto => match from_files(&MNIST, request, surroundings) {
            // A folder that was named is meant: nothing is taken in place of its files.
            Err(DatasetError::NotFound { reason, .. }) if request.data_dir.is_none() => {
                synthetic(request, reason)
            }
            loaded_or_broken => loaded_or_broken,
        },
        choice @ (DataChoice::TinyShakespeare | DataChoice::Embedded) => {
            Err(other_kind(choice, "text", "images"))
        }
        choice @ (DataChoice::Cifar10 | DataChoice::Cifar100) => Err(other_kind(
            choice,
            "color images of 32 x 32 pixels, as resnet18, resnet50 and vit take",
            "grey images of 28 x 28",
        )),
    }
}

fn synthetic(request: &DataRequest, reason: String) -> Result<LoadedData, DatasetError> {
    let digits = SyntheticDigits::new(request.seed);
    let all = (SyntheticDigits::TRAIN_COUNT, SyntheticDigits::TEST_COUNT);
    let (train, test) = request.limits.unwrap_or(all);
    let train = digits.generate(Split::Train, train)?;
    let test = digits.generate(Split::Test, test)?;
    let origin = format!("generated, seed {}", request.seed);
    Ok(described("synthetic-digits", origin, reason, [train, test]))
}

/// The error of a collection that is in none of these places, nor could be downloaded.
fn not_found(collection: &Collection, places: &[SearchedFolder], download: &str) -> DatasetError {
    let Collection { title, folder, .. } = collection;
    let problem = format!(
        "{title} was not found and could not be fetched\n{}  download: {download}\nName a folder that holds its four files \
         with --data-dir or in EVERBURN_DATA_DIR (sub-folder '{folder}'), or take --data synthetic, which needs no file",
        locate::listed(places)
    );
    let looked = match places {
        [] => "anywhere (no folder to look in)".to_owned(),
        places => format!("in {}", locate::named(places)),
    };
    // One line, whatever a server said.
    let download = download.split_whitespace().collect::<Vec<_>>().join(" ");
    let reason = format!("{title} was not found {looked} and could not be fetched: {download}");
    DatasetError::NotFound { problem, reason }
}

fn from_files(
    collection: &Collection,
    request: &DataRequest,
    surroundings: &Surroundings,
) -> Result<LoadedData, DatasetError> {
    let data_dir = request.data_dir.as_deref();
    let places = locate::look(collection, data_dir, surroundings)?;
    let (folder, reason) = match places.last().filter(|place| place.is_complete()) {
        Some(place) => (place.folder.clone(), format!("found by {}", place.named_by)),
        None => {
            let fetched = fetch(
                collection.folder,
                (request.download, data_dir),
                surroundings,
                collection.mirrors,
                |mirrors, folder| download::fetch(collection, mirrors, folder),
            );
            match fetched {
                Ok((folder, used)) => (folder, format!("downloaded from {}", used.join(", "))),
                Err(FetchError::Found(error)) => return Err(error),
                Err(error) => return Err(not_found(collection, &places, &error.to_string())),
            }
        }
    };
    let mut sets = collection.read(&folder)?;
    if let Some((train, test)) = request.limits {
        sets = [sets[0].first(train), sets[1].first(test)];
    }
    let origin = folder.display().to_string();
    Ok(described(collection.name, origin, reason, sets))
}

/// Has `download` fetch a set into its sub-folder `name`, from mirrors, if that is `allowed`: below the data folder that was
/// named, if one was. Returns the sub-folder, and what `download` says.
pub(crate) fn fetch<T>(
    name: &str,
    (allowed, data_dir): (bool, Option<&Path>),
    surroundings: &Surroundings,
    public: &[&str],
    download: impl FnOnce(&[String], &Path) -> Result<T, FetchError>,
) -> Result<(PathBuf, T), FetchError> {
    use FetchError::NotTried;

    if !allowed {
        return Err(NotTried("not allowed by this request"));
    }
    if surroundings.is_offline()? {
        return Err(NotTried("not allowed by EVERBURN_OFFLINE"));
    }
    let folder = locate::download_folder(name, data_dir, surroundings).ok_or(NotTried(
        "this user has no cache folder to store it in: give --data-dir",
    ))?;
    let public: Vec<String> = public.iter().map(|&url| url.to_owned()).collect();
    let mirrors = surroundings.mirrors.as_ref().unwrap_or(&public);
    let done = download(mirrors, &folder)?;
    Ok((folder, done))
}

fn described(
    name: &str,
    origin: String,
    reason: String,
    [train, test]: [ImageDataset; 2],
) -> LoadedData {
    let description = DatasetDescription {
        name: name.to_owned(),
        origin,
        reason,
        train: train.len(),
        test: test.len(),
        unit: "images".to_owned(),
    };
    LoadedData {
        train,
        test,
        description,
    }
}
