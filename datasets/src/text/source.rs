//! From a choice to text.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::{
    ChatTemplate, TextDataset, TextRequest, Tokenizer, TokenizerKind, instructions, shards,
};
use crate::error::{not_text, other_kind};
use crate::files::{read_at_most, read_if_there};
use crate::locate::{self, SearchedFolder};
use crate::{DataChoice, DatasetDescription, DatasetError, ShardsRecord, Surroundings, TokenFiles};

/// A story and verses of our own, for where there is nothing else to read.
const EMBEDDED: &str = include_str!("embedded.txt");

const FOLDER: &str = "tinyshakespeare";
const FILE: &str = "input.txt";

/// SHA-256 of the published file: 40,000 lines of Shakespeare, collected by Karpathy (2015).
const PUBLISHED: &str = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";

/// The largest file that is read: a text is held in memory, four bytes a token.
pub(super) const LARGEST_FILE: u64 = 1 << 30;

/// Training windows, test windows, and what they are: the answer of [`load_text`].
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{DataChoice, TextRequest, load_text};
///
/// let request = TextRequest { choice: DataChoice::Embedded, ..TextRequest::default() };
/// let text = load_text(&request)?;
/// let start = text.tokenizer.unwrap().decode(&text.train.window(0)?[..23]);
/// assert_eq!(start, "THE KEEPER OF THE FIRES");
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoadedText {
    /// The first nine tenths of the text, or the files to train on.
    pub train: TextDataset,
    /// The last tenth, or the files to validate by.
    pub test: TextDataset,
    /// Between text and tokens. Only of files of tokens it may be unknown.
    pub tokenizer: Option<Tokenizer>,
    /// Which tokenizer that is: what a request names to get the same.
    pub kind: TokenizerKind,
    /// How many different tokens there are; each is below it.
    pub vocabulary: usize,
    /// How messages of instructions become text.
    pub template: Option<ChatTemplate>,
    /// The fingerprint of files of tokens.
    pub shards: Option<ShardsRecord>,
    /// What these are.
    pub description: DatasetDescription,
}

impl LoadedText {
    /// Equal exactly for equal windows of equal text by equal tokenizers.
    pub fn fingerprint(&self) -> String {
        self.fingerprints().join(" ")
    }

    /// The same of the tokenizer, of the text to train on, and of the text to validate by.
    pub fn fingerprints(&self) -> [String; 3] {
        let tokenizer = self.tokenizer.as_ref();
        let alphabet = tokenizer.and_then(Tokenizer::alphabet).unwrap_or_default();
        let alphabet = format!("{:x}", Sha256::digest(alphabet));
        let file_hash = tokenizer.and_then(Tokenizer::file_hash);
        let tokenizer = file_hash.map_or(alphabet, str::to_owned);
        [tokenizer, self.train.fingerprint(), self.test.fingerprint()]
    }
}

/// Gets the text that `request` describes, in the surroundings of this process.
///
/// `tinyshakespeare/input.txt` is looked for in `request.data_dir` or, where none was named, in
/// `$EVERBURN_DATA_DIR` and in the user's cache folder; it is never downloaded. A file that is not the published
/// one is taken, and the description says so.
///
/// `request.file` is looked at: a folder, or a file that begins as one of tokens, is read window by window, and the
/// description says what it was taken for; a file whose name ends in `.jsonl` has instructions; any other file is a
/// text, which is read whole. Files of tokens are those of [`TokenFiles::open`]; a tokenizer that is in their folder is
/// theirs.
///
/// # Errors
///
/// - [`DatasetError::NotFound`] if the file is nowhere, and was asked for by name or a folder was
///   named; otherwise `auto` takes the embedded text then;
/// - [`DatasetError::Data`] if a folder that was named is not there, and if a file was found that cannot be
///   used, whatever the choice; with the line of a file of instructions, and where another tokenizer has made
///   files of tokens than the one that was named;
/// - [`DatasetError::Request`] if the text is too short, or has a character that `request.alphabet` lacks, or the
///   choice is a set of images.
pub fn load_text(request: &TextRequest) -> Result<LoadedText, DatasetError> {
    load_text_in(request, &Surroundings::of_process())
}

/// As [`load_text`], in surroundings of the caller's making.
///
/// # Errors
///
/// As [`load_text`].
pub fn load_text_in(
    request: &TextRequest,
    surroundings: &Surroundings,
) -> Result<LoadedText, DatasetError> {
    let embedded = |reason: String| Source {
        name: "embedded",
        origin: "part of this program".to_owned(),
        reason,
        text: EMBEDDED.to_owned(),
    };
    let source = match request.choice {
        _ if request.file.is_some() => {
            let path = request.file.as_deref().unwrap_or(Path::new(""));
            if instructions::are_at(path) {
                return instructions::load(path, request);
            }
            if TokenFiles::are_at(path, request.format)? {
                return shards::load(path, request);
            }
            named_file(path)?
        }
        DataChoice::Embedded => embedded("asked for".to_owned()),
        DataChoice::TinyShakespeare => from_file(request, surroundings)?,
        DataChoice::Auto => match from_file(request, surroundings) {
            // A folder that was named is meant: no other text is taken in place of its own.
            Err(DatasetError::NotFound { reason, .. }) if request.data_dir.is_none() => {
                embedded(reason)
            }
            found_or_broken => found_or_broken?,
        },
        choice => return Err(other_kind(choice, "images", "text")),
    };
    source.cut(request)
}

fn not_found(places: &[SearchedFolder]) -> DatasetError {
    let problem = format!(
        "{FOLDER} was not found\n{}Name a folder that holds {FOLDER}/{FILE} with --data-dir or in EVERBURN_DATA_DIR, or take \
         --data embedded, which needs no file",
        locate::listed(places)
    );
    let reason = match places {
        [] => format!("there is no folder to look for {FOLDER}/{FILE} in"),
        places => format!("there is no {FILE} in {}", locate::named(places)),
    };
    DatasetError::NotFound { problem, reason }
}

/// A text and where it came from.
struct Source {
    name: &'static str,
    origin: String,
    reason: String,
    text: String,
}

fn from_file(request: &TextRequest, surroundings: &Surroundings) -> Result<Source, DatasetError> {
    let mut places = Vec::new();
    for (folder, named_by) in locate::folders(FOLDER, request.data_dir.as_deref(), surroundings)? {
        let path = folder.join(FILE);
        if let Some(bytes) = read_if_there(&path, LARGEST_FILE)? {
            let other = format!("{:x}", Sha256::digest(&bytes)) != PUBLISHED;
            let note = if other {
                "; it is not the published text"
            } else {
                ""
            };
            return Ok(Source {
                name: "tinyshakespeare",
                origin: path.display().to_string(),
                reason: format!("found by {named_by}{note}"),
                text: into_text(bytes, &path)?,
            });
        }
        places.push(SearchedFolder {
            folder,
            named_by,
            missing: vec![FILE],
        });
    }
    Err(not_found(&places))
}

fn named_file(path: &Path) -> Result<Source, DatasetError> {
    Ok(Source {
        name: "text",
        origin: path.display().to_string(),
        reason: "named".to_owned(),
        text: into_text(read_at_most(path, LARGEST_FILE)?, path)?,
    })
}

fn into_text(bytes: Vec<u8>, path: &Path) -> Result<String, DatasetError> {
    let text = String::from_utf8(bytes)
        .map_err(|error| not_text(path, error.utf8_error().valid_up_to(), error.as_bytes()))?;
    // A byte order mark is no character of the text.
    Ok(match text.strip_prefix('\u{feff}') {
        Some(text) => text.to_owned(),
        None => text,
    })
}

impl Source {
    fn cut(self, request: &TextRequest) -> Result<LoadedText, DatasetError> {
        let context = request.context;
        let tokenizer = match request.known_tokenizer()? {
            Some(known) => known,
            // An empty text is too short, which is the better thing to say.
            None if self.text.is_empty() => Tokenizer::of_bytes(),
            None => Tokenizer::of_characters_in(&self.text)?,
        };
        let tokens = tokenizer.encode(&self.text)?;
        let (count, cut) = (tokens.len(), tokens.len() / 10 * 9);
        let (part, tested) = match request.only_test {
            true => ("all of it", count),
            false => ("a tenth of it, the test samples,", count - cut),
        };
        if context == 0 || tested <= context {
            let origin = self.origin;
            return Err(DatasetError::Request(format!(
                "the text ({origin}) has {count} tokens: {part} must have more than the {context} of a window; take a longer \
                 text, or a shorter window (`--set text.window=N`)"
            )));
        }
        let [train, test] = request.split(TextDataset::new(tokens, context), cut);
        let [train, test] = request.limited([train, test])?;
        let unit = tokenizer.unit();
        let description = DatasetDescription {
            name: self.name.to_owned(),
            origin: self.origin,
            reason: self.reason,
            train: request.described(&train),
            test: test.len(),
            unit: format!("windows of {context} {unit}"),
        };
        Ok(LoadedText {
            train,
            test,
            vocabulary: tokenizer.vocabulary(),
            tokenizer: Some(tokenizer),
            kind: request.tokenizer.clone(),
            template: None,
            shards: None,
            description,
        })
    }
}
