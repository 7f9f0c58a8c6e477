//! Color images of any kind, split into a training and a test set.

mod view;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn_dataset::Dataset;
use serde::{Deserialize, Serialize};

use self::view::{Grey, Renumbered, Selection, limited, numbers_in_order};
use crate::cifar::{CIFAR_10, CIFAR_100, CifarSet};
use crate::download::{self, FetchError};
use crate::image_folder::names;
use crate::locate::{self, Place};
use crate::rgb_item::refused;
use crate::tar_shards::TarFiles;
use crate::url::{check_url, is_url};
use crate::{
    Cifar, DataChoice, DataKind, DatasetDescription, DatasetError, ImageFolder, RgbItem,
    Surroundings, TarImages, TarShards, detect_for,
};

/// The share of test images, one of this many, where there is no test set.
const TEST_SHARE: usize = 10;

/// Height and width of images in files, unless others are asked for: those of ImageNet's models.
const SIZE: [usize; 2] = [224, 224];

/// Which images are wanted, and in which form.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{Channels, RgbRequest};
///
/// let request = RgbRequest { file: Some("flowers".into()), size: Some([48, 64]), ..RgbRequest::default() };
/// assert_eq!(request.channels, Channels::Rgb);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbRequest {
    /// `cifar10` or `cifar100`, or whatever `file` names.
    pub choice: DataChoice,
    /// A folder of images, tar shards (a path, or an address), or an archive of CIFAR, in place of the choice.
    pub file: Option<PathBuf>,
    /// Where the choice's archive is, or the sub-folder `cifar10` or `cifar100` with it. No other one is looked in, and a
    /// download goes there.
    pub data_dir: Option<PathBuf>,
    /// Height and width that images are scaled to: 224 of images in files, 32 of CIFAR, if absent.
    pub size: Option<[usize; 2]>,
    /// Color or grey.
    pub channels: Channels,
    /// Whether an archive that is not found may be downloaded. `EVERBURN_OFFLINE=1` forbids it too.
    pub download: bool,
    /// Whether only a test set is wanted: images without one are all test images, and the training images are the same.
    pub only_test: bool,
    /// The most training images, taken evenly from all.
    pub train_limit: Option<usize>,
    /// The most test images, taken evenly from all.
    pub test_limit: Option<usize>,
    /// The order of the classes, as a pretrained model has it. It counts where the data have these classes and no others;
    /// else, and if it is empty, the order is the data's.
    pub classes: Vec<String>,
}

impl Default for RgbRequest {
    fn default() -> Self {
        Self {
            choice: DataChoice::Auto,
            file: None,
            data_dir: None,
            size: None,
            channels: Channels::Rgb,
            download: true,
            only_test: false,
            train_limit: None,
            test_limit: None,
            classes: Vec::new(),
        }
    }
}

/// Whether images have three channels or one.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::Channels;
///
/// assert_eq!([Channels::Rgb, Channels::Grey].map(Channels::count), [3, 1]);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channels {
    /// Red, green and blue.
    #[default]
    Rgb,
    /// One, by the weights of ITU-R BT.601.
    Grey,
}

impl Channels {
    /// How many there are.
    pub fn count(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Grey => 1,
        }
    }
}

/// A training and a test set of images: the answer of [`load_rgb`].
///
/// ```no_run
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{RgbRequest, load_rgb};
///
/// let loaded = load_rgb(&RgbRequest { file: Some("flowers".into()), ..RgbRequest::default() })?;
/// println!("{}: {}", loaded.description, loaded.classes.join(", "));
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
#[derive(Clone)]
pub struct LoadedRgb {
    /// Images to train on.
    pub train: Arc<dyn Dataset<RgbItem>>,
    /// Images to evaluate on.
    pub test: Arc<dyn Dataset<RgbItem>>,
    /// The names of the classes, in the order of their numbers.
    pub classes: Vec<String>,
    /// Height and width.
    pub size: [usize; 2],
    /// What they are.
    pub kind: DataKind,
    /// Their fingerprint.
    pub fingerprint: String,
    /// Where they came from.
    pub description: DatasetDescription,
}

impl std::fmt::Debug for LoadedRgb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedRgb")
            .field("description", &self.description)
            .finish_non_exhaustive()
    }
}

/// Gets the images that `request` describes, in the surroundings of this process: a folder as [`ImageFolder`] reads it, with
/// `train` and `test` or `val` in it or the classes alone; [`TarImages`]; or [`Cifar`]. Where there is no test set, every
/// tenth image (of each class of a folder) becomes a test image.
///
/// Archives of CIFAR are looked for in `request.data_dir` or, where none was named, in `$EVERBURN_DATA_DIR` and then in the
/// user's cache folder, and then fetched, if that is allowed. They are verified by SHA-256.
///
/// # Errors
/// - those of the kinds of images;
/// - [`DatasetError::WrongKind`] if `request.file` is something else;
/// - [`DatasetError::ArchiveNotFound`] and [`DatasetError::Altered`] of CIFAR;
/// - [`DatasetError::Count`] if a limit is zero;
/// - [`DatasetError::OtherKind`] if the choice is no set of color images.
pub fn load_rgb(request: &RgbRequest) -> Result<LoadedRgb, DatasetError> {
    load_rgb_in(request, &Surroundings::of_process())
}

/// As [`load_rgb`], in surroundings of the caller's making.
///
/// # Errors
/// As [`load_rgb`].
pub fn load_rgb_in(
    request: &RgbRequest,
    surroundings: &Surroundings,
) -> Result<LoadedRgb, DatasetError> {
    let parts = match (&request.file, request.choice) {
        (Some(path), _) => {
            if is_url(path) && surroundings.offline()? {
                check_url(path)?;
                return Err(DatasetError::Archive {
                    path: path.clone(),
                    field: "address".to_owned(),
                    problem: "EVERBURN_OFFLINE keeps away from the network: name files on a disk"
                        .to_owned(),
                });
            }
            from_path(path, request)?
        }
        (None, DataChoice::Cifar10) => from_archive(&CIFAR_10, request, surroundings)?,
        (None, DataChoice::Cifar100) => from_archive(&CIFAR_100, request, surroundings)?,
        (None, choice) => {
            return Err(DatasetError::OtherKind {
                choice,
                found: match choice {
                    DataChoice::TinyShakespeare | DataChoice::Embedded => "text",
                    _ => "not a set of color images",
                },
                expected: "cifar10, cifar100, a folder of images, or tar shards",
            });
        }
    };
    parts.finish(request)
}

/// Two sets before they are limited.
struct Parts {
    sets: [Arc<dyn Dataset<RgbItem>>; 2],
    classes: Vec<String>,
    size: [usize; 2],
    kind: DataKind,
    name: String,
    origin: String,
    reason: String,
    fingerprint: String,
    /// The training images are those of the test.
    test_alone: bool,
}

impl Parts {
    fn finish(mut self, request: &RgbRequest) -> Result<LoadedRgb, DatasetError> {
        let [train, test] = self.sets;
        let train = limited(train, request.train_limit, "training")?;
        let test = limited(test, request.test_limit, "test")?;
        let [train, test] = [train, test].map(|set| match request.channels {
            Channels::Rgb => set,
            Channels::Grey => Arc::new(Grey(set)),
        });
        let [train, test] = match numbers_in_order(&self.classes, &request.classes) {
            None => [train, test],
            Some(numbers) => {
                self.classes.clone_from(&request.classes);
                let numbers: Arc<[usize]> = numbers.into();
                [train, test].map(|set| -> Arc<dyn Dataset<RgbItem>> {
                    Arc::new(Renumbered {
                        set,
                        numbers: Arc::clone(&numbers),
                    })
                })
            }
        };
        let [height, width] = self.size;
        let grey = match request.channels {
            Channels::Rgb => "",
            Channels::Grey => ", in grey",
        };
        Ok(LoadedRgb {
            description: DatasetDescription {
                name: self.name,
                origin: self.origin,
                reason: self.reason,
                train: match self.test_alone {
                    true => 0,
                    false => train.len(),
                },
                test: test.len(),
                unit: format!(
                    "images of {} classes, scaled to {height}x{width}{grey}",
                    self.classes.len()
                ),
            },
            train,
            test,
            classes: self.classes,
            size: self.size,
            kind: self.kind,
            fingerprint: self.fingerprint,
        })
    }
}

fn from_path(path: &Path, request: &RgbRequest) -> Result<Parts, DatasetError> {
    let kinds = [DataKind::ImageFolder, DataKind::TarShards, DataKind::Cifar];
    let wanted = "images: a folder for each class, tar shards, or CIFAR";
    let kind = detect_for(path, &kinds, wanted)?;
    let parts = match kind {
        Some(DataKind::Cifar) => of_cifar(path, request, format!("taken for {}", DataKind::Cifar)),
        Some(DataKind::TarShards) => of_shards(path, request),
        _ => of_folder(path, request),
    }?;
    Ok(Parts {
        name: path.display().to_string(),
        ..parts
    })
}

fn of_folder(folder: &Path, request: &RgbRequest) -> Result<Parts, DatasetError> {
    let size = request.size.unwrap_or(SIZE);
    let train = Some(folder.join("train")).filter(|folder| folder.is_dir());
    let mut test = ["test", "val"].iter().map(|name| folder.join(name));
    let test = match &train {
        Some(_) => test.find(|folder| folder.is_dir()),
        // Without train, a folder with images is a class of this name.
        None => test.find(|folder| folder.is_dir() && has_folders(folder)),
    };
    let mut left_out = String::new();
    let mut note = |set: &ImageFolder| {
        if let Some((count, file)) = set.left_out() {
            let of = file.strip_prefix(folder).unwrap_or(file).display();
            left_out +=
                &format!("; files that are neither JPEG nor PNG, left out: {count}, such as {of}");
        }
    };
    let (train, test) = match (train, test) {
        (None, None) if request.only_test => only_test(ImageFolder::open(folder, size)?),
        (None, None) => {
            let all = ImageFolder::open(folder, size)?;
            note(&all);
            let (train, test) = all.split(TEST_SHARE)?;
            (Arc::new(train), Arc::new(test))
        }
        (None, Some(test)) if request.only_test => only_test(ImageFolder::open(test, size)?),
        (Some(train), Some(test)) => {
            let train = ImageFolder::open(train, size)?;
            let test = ImageFolder::with_classes(test, size, train.classes())?;
            (Arc::new(train), Arc::new(test))
        }
        (None, Some(test)) => {
            let problem = format!(
                "it has {} and no folder named train, for the training images",
                test.file_name().unwrap_or_default().display()
            );
            return Err(refused(folder, problem));
        }
        (Some(_), None) => {
            let problem = "it has train, and neither test nor val: add a test set, or name the folder with the classes alone";
            return Err(refused(folder, problem));
        }
    };
    note(&train);
    if !Arc::ptr_eq(&train, &test) {
        note(&test);
    }
    Ok(Parts {
        test_alone: Arc::ptr_eq(&train, &test),
        classes: train.classes().to_vec(),
        fingerprint: format!("{} {}", train.fingerprint(), test.fingerprint()),
        sets: [train, test],
        size,
        kind: DataKind::ImageFolder,
        name: String::new(),
        origin: folder.display().to_string(),
        reason: format!("taken for {}{left_out}", DataKind::ImageFolder),
    })
}

fn has_folders(folder: &Path) -> bool {
    names(folder, Path::is_dir).is_ok_and(|folders| !folders.is_empty())
}

/// All images of a set, to test on and in place of training images.
fn only_test(all: ImageFolder) -> (Arc<ImageFolder>, Arc<ImageFolder>) {
    let all = Arc::new(all);
    (Arc::clone(&all), all)
}

fn of_shards(path: &Path, request: &RgbRequest) -> Result<Parts, DatasetError> {
    let size = request.size.unwrap_or(SIZE);
    let files = TarFiles::find(path)?;
    let train = TarImages::open(TarShards::open(&files.train)?, size, None)?;
    let classes = train.classes().to_vec();
    let mut fingerprint = train.shards().fingerprint().to_owned();
    let count = files.train.len() + files.held_out.len();
    let sets: [Arc<dyn Dataset<RgbItem>>; 2] = match files.held_out.is_empty() {
        false => {
            let test = TarShards::open(&files.held_out)?;
            let test = TarImages::open(test, size, Some(&classes))?;
            fingerprint = format!("{fingerprint} {}", test.shards().fingerprint());
            [Arc::new(train), Arc::new(test)]
        }
        true if request.only_test => {
            let set: Arc<dyn Dataset<RgbItem>> = Arc::new(train);
            [Arc::clone(&set), set]
        }
        true => {
            if train.len() < TEST_SHARE {
                let problem = format!(
                    "{} samples are fewer than {TEST_SHARE}, of which one becomes a test image",
                    train.len()
                );
                return Err(DatasetError::Archive {
                    path: path.to_owned(),
                    field: "samples".to_owned(),
                    problem,
                });
            }
            let set: Arc<dyn Dataset<RgbItem>> = Arc::new(train);
            let is_test = |index: &usize| index % TEST_SHARE == TEST_SHARE - 1;
            let (test, train) = (0..set.len()).partition(is_test);
            [train, test].map(|indices| -> Arc<dyn Dataset<RgbItem>> {
                Arc::new(Selection::of(&set, indices))
            })
        }
    };
    Ok(Parts {
        test_alone: Arc::ptr_eq(&sets[0], &sets[1]),
        sets,
        classes,
        size,
        kind: DataKind::TarShards,
        name: String::new(),
        origin: path.display().to_string(),
        reason: format!("taken for {}, {count} of them", DataKind::TarShards),
        fingerprint,
    })
}

fn of_cifar(path: &Path, request: &RgbRequest, reason: String) -> Result<Parts, DatasetError> {
    let archive = [CIFAR_10.archive, CIFAR_100.archive];
    let mut archive = archive.iter().map(|name| path.join(name));
    let file = archive.find(|file| file.is_file());
    let size = request.size.unwrap_or([32, 32]);
    let [train, test] = Cifar::open(file.as_deref().unwrap_or(path), size)?;
    Ok(Parts {
        test_alone: false,
        classes: train.classes().to_vec(),
        name: train.name().to_owned(),
        fingerprint: format!("{} {}", train.fingerprint(), test.fingerprint()),
        sets: [Arc::new(train), Arc::new(test)],
        size,
        kind: DataKind::Cifar,
        origin: path.display().to_string(),
        reason,
    })
}

/// The archive from a data folder, or from a mirror.
fn from_archive(
    set: &'static CifarSet,
    request: &RgbRequest,
    surroundings: &Surroundings,
) -> Result<Parts, DatasetError> {
    let mut places = Vec::new();
    for (folder, named_by) in locate::folders(set.name, request.data_dir.as_deref(), surroundings)?
    {
        let file = folder.join(set.archive);
        if file.is_file() {
            if let Some(found) = set.altered(&file)? {
                return Err(DatasetError::Altered {
                    path: file,
                    title: set.title,
                    of: "the archive",
                    expected: set.sha256.to_owned(),
                    found,
                });
            }
            return of_cifar(&file, request, format!("found by {named_by}"));
        }
        places.push(Place {
            folder,
            named_by,
            missing: vec![set.archive],
        });
    }
    match fetch(set, request, surroundings) {
        Ok((file, mirror)) => of_cifar(&file, request, format!("downloaded from {mirror}")),
        Err(FetchError::Found(error)) => Err(error),
        Err(error) => Err(DatasetError::ArchiveNotFound {
            title: set.title,
            archive: set.archive,
            folder: set.name,
            places,
            download: error.to_string(),
        }),
    }
}

fn fetch(
    set: &CifarSet,
    request: &RgbRequest,
    surroundings: &Surroundings,
) -> Result<(PathBuf, String), FetchError> {
    if !request.download {
        return Err(FetchError::NotTried("not allowed by this request"));
    }
    if surroundings.offline()? {
        return Err(FetchError::NotTried("not allowed by EVERBURN_OFFLINE"));
    }
    let data_dir = request.data_dir.as_deref();
    let folder = locate::download_folder(set.name, data_dir, surroundings).ok_or(
        FetchError::NotTried("this user has no cache folder to store it in: give --data-dir"),
    )?;
    let public = set.mirrors.iter().map(|url| (*url).to_owned());
    let public: Vec<String> = public.collect();
    let mirrors = surroundings.mirrors().unwrap_or(&public);
    let mirror = download::fetch_archive(set.archive, set.sha256, mirrors, &folder)?;
    Ok((folder.join(set.archive), mirror))
}

#[cfg(test)]
mod tests;
