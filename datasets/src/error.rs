//! What can go wrong with data.

use std::io;
use std::path::PathBuf;

use crate::IdxError;
use crate::locate::Place;

/// Why a data set could not be had. Each message names the file or the setting, what was found
/// and what to do.
///
/// ```
/// use everburn_datasets::{DatasetError, ImageDataset};
///
/// let error = ImageDataset::new(vec![0; 7], vec![1], 10).unwrap_err();
/// assert!(matches!(error, DatasetError::Shape(_)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A file is not the IDX file that it should be.
    #[error(transparent)]
    Idx(#[from] IdxError),

    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A file is well formed, but its content is not that of the published file.
    #[error(
        "{} is not the published {title} file: the SHA-256 of its decompressed content is\n  \
         {found}, expected\n  {expected}\nDelete the file so that it is downloaded again, or name \
         another folder with --data-dir",
        path.display()
    )]
    Altered {
        /// The file.
        path: PathBuf,
        /// The data set's name in prose.
        title: &'static str,
        /// SHA-256 of the published file, decompressed, in hexadecimal.
        expected: String,
        /// SHA-256 of this file, decompressed, in hexadecimal.
        found: String,
    },

    /// A file of one data set lies where another's is expected.
    #[error(
        "{} is a file of {found}, not of {expected}; the two use the same file names: name a \
         folder that holds {expected} with --data-dir",
        path.display()
    )]
    OtherSet {
        /// The file.
        path: PathBuf,
        /// The set that was wanted.
        expected: &'static str,
        /// The set that it belongs to.
        found: &'static str,
    },

    /// The files are nowhere, and could not be downloaded.
    #[error(
        "{title} was not found and could not be fetched\n{}  download: {download}\nName a folder \
         that holds its four files with --data-dir or in EVERBURN_DATA_DIR (sub-folder \
         '{folder}'), or take --data synthetic, which needs no file",
        places.iter().map(|place| format!("  looked in {place}\n")).collect::<String>()
    )]
    NotFound {
        /// The data set's name in prose.
        title: &'static str,
        /// The sub-folder's name.
        folder: &'static str,
        /// Where it was looked for.
        places: Vec<Place>,
        /// Why there was no download, or why it failed.
        download: String,
    },

    /// An environment variable has a value that means nothing.
    #[error("{name} is '{found}': expected {expected}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },

    /// A number of images that cannot be had.
    #[error("{count} {split} images were asked for: expected 1 to {most}")]
    Count {
        /// "training" or "test".
        split: &'static str,
        /// What was asked for.
        count: usize,
        /// The most that can be had.
        most: usize,
    },

    /// Images and labels that do not belong together.
    #[error("images and labels do not belong together: {0}")]
    Shape(String),
}
