//! What can go wrong with data.

use std::io;
use std::path::PathBuf;

use crate::locate::SearchedFolder;
use crate::{DataChoice, IdxError};

/// Why a data set could not be had. Each message names the file or the setting, what was found
/// and what to do.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{DatasetError, ImageDataset};
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
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A file is well formed, but its content is not that of the published file.
    #[error(
        "{} is not the published {title} file: the SHA-256 of {of} is\n  \
         {found}, expected\n  {expected}\nDelete the file so that it is downloaded again, or name \
         another folder with --data-dir",
        path.display()
    )]
    Altered {
        /// The file.
        path: PathBuf,
        /// The data set's name in prose.
        title: &'static str,
        /// What the hashes are of: the file, or its decompressed content.
        of: &'static str,
        /// SHA-256 of what was published, in hexadecimal.
        expected: String,
        /// SHA-256 of what is there, in hexadecimal.
        found: String,
    },

    /// A file was decompressed, and only the hash of the compressed one is published.
    #[error(
        "{} cannot be verified: {title} publishes hashes of the compressed files only; \
         put {compressed} in its place, or delete the file so that it is downloaded again",
        path.display()
    )]
    NotVerifiable {
        /// The file.
        path: PathBuf,
        /// The data set's name in prose.
        title: &'static str,
        /// The name of the compressed file.
        compressed: String,
    },

    /// A folder that was named is not there.
    #[error(
        "{}, the data folder named by {named_by}, {problem}: make it, name another one, or name none",
        folder.display()
    )]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The setting that names it.
        named_by: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },

    /// A file of one data set is where another's is expected.
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
        places: Vec<SearchedFolder>,
        /// Why there was no download, or why it failed.
        download: String,
    },

    /// An archive is nowhere, and could not be downloaded.
    #[error(
        "{title} was not found and could not be fetched\n{}  download: {download}\nName a folder that holds \
         {archive} with --data-dir or in EVERBURN_DATA_DIR (sub-folder '{folder}'), or the file with --data",
        places.iter().map(|place| format!("  looked in {place}\n")).collect::<String>()
    )]
    ArchiveNotFound {
        /// The data set's name in prose.
        title: &'static str,
        /// The archive's name.
        archive: &'static str,
        /// The sub-folder's name.
        folder: &'static str,
        /// Where it was looked for.
        places: Vec<SearchedFolder>,
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

    /// A folder that should hold images in a folder for each class.
    #[error("{}: {problem}", folder.display())]
    ImageFolder {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        problem: String,
    },

    /// An image file that cannot be decoded.
    #[error("{} {problem}", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, after its name.
        problem: String,
    },

    /// A tar file, or a file in an archive, that is damaged or something else.
    #[error("{}: {field}: {problem}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// What of it is wrong: a field of a header, or a file in it.
        field: String,
        /// What is wrong with that.
        problem: String,
    },

    /// A table with a cell, a row or a column that cannot be used.
    #[error("{}, {place}: {problem}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// The line and the column.
        place: String,
        /// What is wrong there.
        problem: String,
    },

    /// Data of another kind than the task learns from.
    #[error("{} is {found}, and this model learns from {wanted}; {instead}", path.display())]
    WrongKind {
        /// The file or folder.
        path: PathBuf,
        /// What it was taken for.
        found: String,
        /// What would do.
        wanted: &'static str,
        /// Which task would do.
        instead: String,
    },

    /// A file without a byte.
    #[error("{} is an empty file: expected {wanted}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What would do.
        wanted: &'static str,
    },

    /// A number of samples that cannot be had.
    #[error("{count} {split} samples were asked for: expected 1 to {most}")]
    Count {
        /// "training" or "test".
        split: &'static str,
        /// What was asked for.
        count: usize,
        /// The most that is available.
        most: usize,
    },

    /// The text is nowhere.
    #[error(
        "tinyshakespeare was not found\n{}Name a folder that holds tinyshakespeare/input.txt with \
         --data-dir or in EVERBURN_DATA_DIR, or take --data embedded, which needs no file",
        places.iter().map(|place| format!("  looked in {place}\n")).collect::<String>()
    )]
    TextNotFound {
        /// Where it was looked for.
        places: Vec<SearchedFolder>,
    },

    /// A file that should be text is something else, or damaged.
    #[error("{} is damaged, or no text: byte {offset} is not UTF-8{}", path.display(), encoding_hint(start))]
    NotText {
        /// The file.
        path: PathBuf,
        /// The place of the first byte that does not belong.
        offset: usize,
        /// The first bytes.
        start: [u8; 4],
    },

    /// A file is larger than what is read.
    #[error("{} has more than {most} bytes, which is the most that is read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most, in bytes.
        most: u64,
    },

    /// A text is too short to be cut.
    #[error(
        "the text ({origin}) has {tokens} tokens: {part} must have more than the {context} of a window; take a longer \
         text, or a shorter window (`--set text.window=N`)"
    )]
    TooShort {
        /// Where the text came from.
        origin: String,
        /// Its length.
        tokens: usize,
        /// The part that the window must fit into, in words.
        part: &'static str,
        /// How many tokens are predicted in a window.
        context: usize,
    },

    /// A text has a character that the tokenizer does not know.
    #[error(
        "byte {offset} of the text begins {character:?}, which is none of the tokenizer's {known} characters: a model reads only the characters of its training text, unless its tokenizer is byte"
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Where it stands.
        offset: usize,
        /// How many characters the tokenizer knows.
        known: usize,
    },

    /// A tokenizer's file that cannot be used.
    #[error("{}: no tokenizer can be made of it: {problem}", path.display())]
    Tokenizer {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },

    /// A file or folder of tokens that is damaged, or none.
    #[error("{}: {field}: {problem}", path.display())]
    TokenFile {
        /// The file or folder.
        path: PathBuf,
        /// What of it is wrong: a field of its header, or a token.
        field: String,
        /// What is wrong with that.
        problem: String,
    },

    /// Two files of tokens that cannot be one text.
    #[error(
        "{} has {found}, and {} has {expected}: the files of one text are made by one tokenizer",
        other.display(), first.display()
    )]
    OtherShards {
        /// The first file.
        first: PathBuf,
        /// The file that differs from it.
        other: PathBuf,
        /// What the first one has.
        expected: String,
        /// What the other one has.
        found: String,
    },

    /// Tokens of another tokenizer than the one that was named.
    #[error("{} was made by {expected}, and {found}", file.display())]
    ShardTokenizer {
        /// A file of tokens.
        file: PathBuf,
        /// What made it.
        expected: String,
        /// What was named.
        found: String,
    },

    /// A document that is none: not JSON, without its field, or with no place to cut it.
    #[error("{}, {place}: {problem}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// A line or a byte of it.
        place: String,
        /// What is wrong there.
        problem: String,
    },

    /// What was asked for cannot be tokenized like that.
    #[error("{0}")]
    Tokenize(String),

    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A tokenizer's alphabet that is none.
    #[error("the alphabet of the tokenizer cannot be used: {0}")]
    Alphabet(&'static str),

    /// Images where text is wanted, or the reverse.
    #[error("--data {choice} is {found}, and this model takes {expected}")]
    OtherKind {
        /// What was asked for.
        choice: DataChoice,
        /// What that is.
        found: &'static str,
        /// What is wanted.
        expected: &'static str,
    },

    /// Images and labels that do not belong together.
    #[error("images and labels do not belong together: {0}")]
    Shape(String),
}

/// What a file that is no UTF-8 may be, by its first bytes, and what to do.
fn encoding_hint(start: &[u8; 4]) -> &'static str {
    match start {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            "; it is UTF-16: `iconv -f UTF-16 -t UTF-8` converts it"
        }
        [0x1f, 0x8b, ..] => {
            "; it is compressed by gzip: unpack it with gunzip, or use `everburn tokenize`, which reads it"
        }
        [0x28, 0xb5, 0x2f, 0xfd] => {
            "; it is compressed by zstd: unpack it, or use `everburn tokenize`, which reads it"
        }
        _ => {
            "; if it is in another encoding, such as Latin-1, `iconv -f LATIN1 -t UTF-8` converts it"
        }
    }
}

#[cfg(test)]
mod tests;
