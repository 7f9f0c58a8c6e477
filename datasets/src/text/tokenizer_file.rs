//! Tokenizers of Hugging Face, by their own library.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::DatasetError;
use crate::error::damaged;
use crate::files::read_at_most;

/// The largest file that is read: the largest published ones have 20 MB.
const LARGEST_FILE: u64 = 128 << 20;

/// The name of a tokenizer's file in a folder of transformers.
const FILE: &str = "tokenizer.json";

/// The name of the file beside it that has its settings.
pub(super) const SETTINGS: &str = "tokenizer_config.json";

/// The names of GPT-2's two files, which are there in place of one.
const VOCABULARY_AND_MERGES: [&str; 2] = ["vocab.json", "merges.txt"];

/// What may be beside a tokenizer's file, and belongs to it.
const BESIDE: [&str; 4] = [
    SETTINGS,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
];

/// What [`TokenizerFile::open`] reads of a folder; `None` where it has no tokenizer.
pub(super) fn in_folder(folder: &Path) -> Option<PathBuf> {
    let [_, merges] = VOCABULARY_AND_MERGES;
    match folder.join(FILE) {
        file if file.is_file() => Some(file),
        _ => folder.join(merges).is_file().then(|| folder.to_owned()),
    }
}

/// A tokenizer from a file. Two are equal if their files are.
pub(super) struct TokenizerFile {
    path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
    vocabulary: usize,
    hash: String,
}

impl TokenizerFile {
    /// Reads a `tokenizer.json`, or a folder with one, or with `vocab.json` and `merges.txt`.
    pub(super) fn open(path: &Path) -> Result<Self, DatasetError> {
        let json = match path.is_dir() {
            true => path.join(FILE),
            false => path.to_owned(),
        };
        let mut hash = Sha256::new();
        let tokenizer = if path.is_dir() && !json.is_file() {
            let files = VOCABULARY_AND_MERGES.map(|name| path.join(name));
            if let Some(missing) = files.iter().find(|file| !file.is_file()) {
                let name = missing.file_name().unwrap_or_default().to_string_lossy();
                let problem = format!("it has neither tokenizer.json nor {name}");
                return Err(refused(path, problem));
            }
            for file in &files {
                hash.update(read(file)?);
            }
            let [vocabulary, merges] = files.map(|file| file.display().to_string());
            let model = BPE::from_file(&vocabulary, &merges).build();
            let model = model.map_err(|error| refused(path, error.to_string()))?;
            like_gpt2(model)
        } else {
            let bytes = read(&json)?;
            hash.update(&bytes);
            parse(&bytes).map_err(|problem| refused(&json, problem))?
        };
        let largest = tokenizer.get_vocab(true).into_values().max();
        let largest = largest.ok_or_else(|| refused(path, "it has no tokens"))?;
        Ok(Self {
            path: path.to_owned(),
            tokenizer,
            vocabulary: largest as usize + 1,
            hash: format!("{:x}", hash.finalize()),
        })
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// Without the special tokens that a tokenizer may put before and after a text.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, DatasetError> {
        let encoded = self.tokenizer.encode_fast(text, false);
        let encoded = encoded.map_err(|error| refused(&self.path, error.to_string()))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The same for several texts at once, each by itself, on as many threads as there are cores.
    pub(super) fn encode_all(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, DatasetError> {
        let encoded = self.tokenizer.encode_batch_fast(texts.to_vec(), false);
        let encoded = encoded.map_err(|error| refused(&self.path, error.to_string()))?;
        let ids = encoded.iter().map(|encoding| encoding.get_ids().to_vec());
        Ok(ids.collect())
    }

    /// The number of a token.
    pub(super) fn token(&self, name: &str) -> Option<u32> {
        self.tokenizer.token_to_id(name)
    }

    /// The folder of files that may be beside it.
    fn folder(&self) -> Option<&Path> {
        match self.path.is_dir() {
            true => Some(&self.path),
            // Of a file with another name, a neighbour may be another tokenizer's.
            false if self.path.file_name()? == FILE => self.path.parent(),
            false => None,
        }
    }

    /// The number of the token that its settings have by this key.
    pub(super) fn special_token(&self, key: &str) -> Option<u32> {
        let settings = self.folder()?.join(SETTINGS);
        let settings: Value = serde_json::from_slice(&read(&settings).ok()?).ok()?;
        let token = &settings[key];
        self.token(token.as_str().or_else(|| token["content"].as_str())?)
    }

    /// The files by which transformers load it.
    pub(super) fn pretrained_files(&self) -> Result<Vec<(String, Vec<u8>)>, DatasetError> {
        let own = match &*self.files() {
            [json] => read(json)?,
            _ => {
                let json = self.tokenizer.to_string(true);
                let json = json.map_err(|error| refused(&self.path, error.to_string()))?;
                json.into_bytes()
            }
        };
        let mut files = vec![(FILE.to_owned(), own)];
        for name in BESIDE {
            let path = self.folder().map(|folder| folder.join(name));
            if let Some(path) = path.filter(|path| path.is_file()) {
                files.push((name.to_owned(), read(&path)?));
            }
        }
        Ok(files)
    }

    /// The files that it was read from.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let json = self.path.join(FILE);
        match (self.path.is_dir(), json.is_file()) {
            (false, _) => vec![self.path.clone()],
            (true, true) => vec![json],
            (true, false) => VOCABULARY_AND_MERGES
                .map(|name| self.path.join(name))
                .to_vec(),
        }
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> String {
        let decoded = self.tokenizer.decode(tokens, false);
        decoded.unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.to_string())
    }
}

impl PartialEq for TokenizerFile {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for TokenizerFile {}

debug_by!(TokenizerFile, it => path: it.path, vocabulary: it.vocabulary);

/// A tokenizer like GPT-2's: words by its regular expression, and no space before the first.
pub(super) fn like_gpt2(model: BPE) -> tokenizers::Tokenizer {
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer
}

/// The tokenizer of a `tokenizer.json`. The library panics on some files that are JSON and no tokenizer.
fn parse(json: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    serde_json::from_slice::<IgnoredAny>(json).map_err(|error| no_json(json, &error))?;
    let parsed = catch_unwind(|| tokenizers::Tokenizer::from_bytes(json));
    let parsed = parsed.map_err(|_| "the tokenizers library has panicked on it".to_owned())?;
    parsed.map_err(|error| error.to_string())
}

/// What a file is that is no JSON, and what was expected.
fn no_json(bytes: &[u8], error: &serde_json::Error) -> String {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    let found = match (first, std::str::from_utf8(bytes)) {
        (None, _) => "the file is empty".to_owned(),
        (Some(b'{'), _) => format!("its JSON is damaged: {error}"),
        (_, Ok(_)) => "it is text, and no JSON".to_owned(),
        (_, Err(_)) => "it is neither text nor JSON".to_owned(),
    };
    format!(
        "{found}; expected a tokenizer.json of Hugging Face's tokenizers, or the folder that has it"
    )
}

fn refused(path: &Path, problem: impl AsRef<str>) -> DatasetError {
    damaged(path, "no tokenizer can be made of it", problem)
}

fn read(path: &Path) -> Result<Vec<u8>, DatasetError> {
    read_at_most(path, LARGEST_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_tokenizer_is_called_what_it_is() {
        let problem = |bytes: &[u8]| parse(bytes).unwrap_err();
        for (bytes, found) in [
            (&b""[..], "the file is empty; expected a tokenizer.json"),
            (b" \n", "the file is empty"),
            (b"a text", "it is text, and no JSON"),
            (&[0xff, 0, 1], "it is neither text nor JSON"),
            (b"{\"model\": ", "its JSON is damaged: EOF"),
        ] {
            let problem = problem(bytes);
            assert!(problem.starts_with(found), "{problem}");
        }
    }
}
