//! Color images of any kind, split into a training and a test set.

mod parts;
mod view;

use std::path::PathBuf;
use std::sync::Arc;

use burn_dataset::Dataset;
use serde::{Deserialize, Serialize};

use self::parts::{from_archive, from_path};
use crate::cifar::{CIFAR_10, CIFAR_100};
use crate::error::{damaged, other_kind};
use crate::url::{check_url, is_url};
use crate::{DataChoice, DataKind, DatasetDescription, DatasetError, RgbItem, Surroundings};

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
    /// The most training images, taken from all classes.
    pub train_limit: Option<usize>,
    /// The most test images, taken from all classes.
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
    #[serde(alias = "gray")]
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
    /// Images to validate on, where a folder has `train`, `val` and `test`.
    pub validation: Option<Arc<dyn Dataset<RgbItem>>>,
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
    /// That of the images to train on alone.
    pub train_fingerprint: String,
    /// That of the test images alone; empty where they are not in files of their own.
    pub test_fingerprint: String,
    /// Where they came from.
    pub description: DatasetDescription,
}

debug_by!(LoadedRgb, it => description: it.description);

/// Gets the images that `request` describes, in the surroundings of this process: a folder as
/// [`ImageFolder`](crate::ImageFolder) reads it, with `train` and `test` or `val` in it, all three, or the classes alone;
/// [`TarImages`](crate::TarImages); or [`Cifar`](crate::Cifar). Where there is no test set, every tenth image (of each
/// class of a folder) becomes a test image. Images of files are in an order in which their classes alternate: the last
/// ones, which a training holds out for validation, are of all classes.
///
/// Archives of CIFAR are looked for in `request.data_dir` or, where none was named, in `$EVERBURN_DATA_DIR` and then in the
/// user's cache folder, and then fetched, if that is allowed. They are verified by SHA-256.
///
/// # Errors
/// - those of the kinds of images;
/// - [`DatasetError::Data`] if `request.file` is something else;
/// - [`DatasetError::NotFound`] and [`DatasetError::Altered`] of CIFAR;
/// - [`DatasetError::Request`] if a limit is zero, or the choice is no set of color images.
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
            if is_url(path) && surroundings.is_offline()? {
                check_url(path)?;
                let problem = "EVERBURN_OFFLINE keeps away from the network: name files on a disk";
                return Err(damaged(path, "address", problem));
            }
            from_path(path, request)?
        }
        (None, DataChoice::Cifar10) => from_archive(&CIFAR_10, request, surroundings)?,
        (None, DataChoice::Cifar100) => from_archive(&CIFAR_100, request, surroundings)?,
        (None, choice) => {
            let found = match choice {
                DataChoice::TinyShakespeare | DataChoice::Embedded => "text",
                _ => "not a set of color images",
            };
            let expected = "cifar10, cifar100, a folder of images, or tar shards";
            return Err(other_kind(choice, found, expected));
        }
    };
    parts.finish(request)
}

#[cfg(test)]
mod tests;
