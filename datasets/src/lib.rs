//! Data sets. Labelled 28x28 grey images: MNIST, Fashion-MNIST and a synthetic digit set that needs neither files nor
//! network. Color images: folders of JPEG and PNG files, one per class ([`ImageFolder`]), tar shards ([`TarImages`]), CIFAR
//! ([`Cifar`]), or any of these at a path ([`load_rgb`]). Tables ([`load_table`]). Samples of any files in tar
//! shards ([`TarShards`]). Text in windows of tokens: tinyshakespeare, a bundled text, and text of any size in files of
//! tokens. [`detect`] finds the kind of data at a path.
//!
//! The types, in the order in which a program meets them:
//!
//! 1. [`DataChoice`] names the data set (`auto`, `mnist`, `tinyshakespeare`, ...);
//! 2. [`DataRequest`] adds where to look, whether the network may be used and how many images to load;
//! 3. [`load`] returns [`LoadedData`]: two [`ImageDataset`]s (training and test) and a
//!    [`DatasetDescription`] that says which set this is, where it came from and why;
//! 4. [`ImageDataset`] gives pixels and labels by index, and is a [`burn_dataset::Dataset`].
//!
//! For text these are [`TextRequest`], [`load_text`], [`LoadedText`] and [`TextDataset`]; a
//! [`Tokenizer`] converts text to tokens and back. Text that is larger than memory is converted to files of tokens once, by
//! [`tokenize`], and read from there: [`TokenFiles`] are the files of a folder, [`TokenShards`] a sequence of tokens in several
//! files.
//!
//! ```
//! # mod everburn { pub use everburn_datasets as datasets; }
//! use everburn::datasets::{DataChoice, DataRequest, load};
//!
//! let request = DataRequest {
//!     choice: DataChoice::Synthetic,
//!     limits: Some((200, 100)),
//!     ..DataRequest::default()
//! };
//! let data = load(&request)?;
//! println!("{}", data.description); // the first line that a program should print
//! assert_eq!((data.train.len(), data.test.len()), (200, 100));
//! assert_eq!(data.train.image(0).len(), 28 * 28);
//! # Ok::<(), everburn_datasets::DatasetError>(())
//! ```
//!
//! # Invariants
//!
//! - A file that is damaged, altered or of another set is an error, never a reason to use other data.
//! - Nothing is written except by a download, which leaves either a whole, verified file or none, and by [`tokenize`],
//!   which leaves a whole folder or none.
//! - Pixels stay `u8`: scaling belongs to the batchers ([`MNIST_MEAN`], [`MNIST_STD`]).
//! - There is no process-wide state: environment variables are passed in through [`Surroundings`].

#[macro_use]
mod sample_set;

mod augment;
#[cfg(feature = "tensors")]
mod batcher;
mod choice;
mod cifar;
mod collection;
#[cfg(test)]
mod damaged;
mod detect;
mod download;
mod draw;
mod error;
mod files;
mod idx;
mod image_dataset;
mod image_folder;
mod locate;
mod proportion;
mod rgb;
mod rgb_item;
mod source;
mod surroundings;
mod synthetic;
mod table;
mod tar;
mod tar_shards;
mod text;
mod token_shards;
mod url;

pub use augment::{ImageAugmentation, UnknownAugmentation};
#[cfg(feature = "tensors")]
pub use batcher::{ImageBatcher, MixBatcher, MixedClasses, RgbBatcher, TableBatcher};
pub use choice::{DataChoice, UnknownChoice};
pub use cifar::Cifar;
pub use detect::{DataKind, detect, detect_for};
pub use error::DatasetError;
pub use image_dataset::{IMAGE_HEIGHT, IMAGE_PIXELS, IMAGE_WIDTH, ImageDataset, ImageItem};
pub use image_folder::{ImageFolder, check_image_files};
pub use rgb::{Channels, LoadedRgb, RgbRequest, load_rgb, load_rgb_in};
pub use rgb_item::RgbItem;
pub use source::{
    DEFAULT_SYNTHETIC_SEED, DataRequest, DatasetDescription, LoadedData, load, load_in,
};
pub use surroundings::Surroundings;
pub use synthetic::{Split, SyntheticDigits};
pub use table::{
    Column, ColumnKind, LoadedTable, Missing, TableDataset, TableRequest, TableRow, TableSchema,
    load_table, load_test_table,
};
pub use tar_shards::{TarImages, TarSample, TarShards};
pub use text::{
    ChatMessage, ChatTemplate, Documents, EndOfDocument, LoadedText, TextDataset, TextItem,
    TextRequest, TokenizeRequest, Tokenized, Tokenizer, TokenizerKind, TokenizerRequest,
    UnknownTokenizer, load_text, load_text_in, tokenize, train_tokenizer,
};
#[cfg(feature = "tensors")]
pub use text::{MaskedTextBatcher, TextBatcher};
pub use token_shards::{ShardsRecord, TokenFiles, TokenFormat, TokenShards};
pub use url::is_url;

/// Mean of MNIST's training pixels after division by 255.
pub const MNIST_MEAN: f32 = 0.1307;

/// Standard deviation of MNIST's training pixels after division by 255.
pub const MNIST_STD: f32 = 0.3081;
