//! What is before the tokens of a file.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::{MadeBy, TokenFormat, TokenWidth};

/// The bytes before the tokens of a file of this format.
pub(super) const OURS_BYTES: usize = 256;

/// The bytes before the tokens of a file of llm.c: 256 numbers of 32 bits.
const LLM_C_BYTES: usize = 1024;

/// The most bytes that have to be read to know a header.
pub(super) const LONGEST: usize = LLM_C_BYTES;

/// The first bytes of a file of this format.
const MAGIC: [u8; 8] = *b"EVTOKENS";

const VERSION: u32 = 1;

/// llm.c's and modded-nanogpt's tokens of GPT-2: 16 bits each.
const LLM_C_GPT2: (u32, u32) = (20_240_520, 1);

/// llm.c's tokens of Llama 3: 32 bits each.
const LLM_C_LLAMA3: (u32, u32) = (20_240_801, 7);

/// llm.c's questions for evaluations, such as HellaSwag.
const LLM_C_EVALUATION: u32 = 20_240_522;

/// Where the checksum of the header begins, which is the rest of it.
const CHECKSUM: usize = OURS_BYTES - 32;

/// The only flag: the file says which token ends a document.
const HAS_END: u32 = 1;

/// A tokenizer that is bytes, and one that is a file.
const BYTES: u32 = 1;
const FILE: u32 = 2;

/// What a file says of its tokens.
///
/// Ours, 256 bytes, little-endian:
///
/// | at | what |
/// |---|---|
/// | 0 | `EVTOKENS` |
/// | 8 | version, `u32`: 1 |
/// | 12 | bytes of a token, `u32`: 2 or 4 |
/// | 16 | how many tokens, `u64` |
/// | 24 | vocabulary, `u64`: each token is below it |
/// | 32 | documents that begin in the file, `u64` |
/// | 40 | flags, `u32`: 1 if the next field means something |
/// | 44 | the token after each document, `u32` |
/// | 48 | the tokenizer, `u32`: 1 bytes, 2 a file |
/// | 64 | SHA-256 of the tokenizer's file |
/// | 96 | SHA-256 of the tokens, as they are in the file |
/// | 224 | SHA-256 of the 224 bytes before |
///
/// What is not listed is zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) format: TokenFormat,
    pub(super) width: TokenWidth,
    pub(super) tokens: u64,
    /// Each token is below it, if the file says so.
    pub(super) vocabulary: Option<u64>,
    /// How many documents begin in the file, if it says so.
    pub(super) documents: Option<u64>,
    pub(super) end_of_document: Option<u32>,
    pub(super) made_by: MadeBy,
    /// SHA-256 of the tokens, if the file says it.
    pub(super) checksum: Option<[u8; 32]>,
}

/// A field of a file and what is wrong with it.
pub(super) type Fault = (&'static str, String);

/// Whether these are the first bytes of a file with a header.
pub(super) fn has_magic(beginning: &[u8]) -> bool {
    let numbers = [LLM_C_GPT2.0, LLM_C_LLAMA3.0, LLM_C_EVALUATION];
    beginning.starts_with(&MAGIC)
        || (beginning.len() >= 4 && numbers.contains(&number(beginning, 0)))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(part(bytes, at))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(part(bytes, at))
}

/// The bytes from `at`, which are there.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

impl Header {
    /// The header of a file of `length` bytes that begins with `beginning`, which are all its bytes or [`LONGEST`].
    /// Nothing else of the file is looked at.
    pub(super) fn of(beginning: &[u8], length: u64, asked: TokenFormat) -> Result<Self, Fault> {
        let is_ours = beginning.starts_with(&MAGIC);
        let header = match asked {
            TokenFormat::NanoGpt if has_magic(beginning) => {
                let problem =
                    "it has a header, and nanoGPT's files have none: name it without `nanogpt:`";
                return Err(("magic", problem.to_owned()));
            }
            TokenFormat::NanoGpt => Self::nanogpt(length)?,
            TokenFormat::Detect | TokenFormat::Ours if is_ours => Self::ours(beginning)?,
            TokenFormat::Detect | TokenFormat::LlmC if has_magic(beginning) && !is_ours => {
                Self::llm_c(beginning)?
            }
            _ => {
                return Err((
                    "magic",
                    "it is none of a file of tokens (everburn tokenize, llm.c); nanoGPT's files have no header: name \
                     one as `nanogpt:FILE`"
                        .to_owned(),
                ));
            }
        };
        header.fits(length)?;
        Ok(header)
    }

    /// Where the tokens begin.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = match self.format {
            TokenFormat::Ours => OURS_BYTES,
            TokenFormat::LlmC => LLM_C_BYTES,
            TokenFormat::NanoGpt | TokenFormat::Detect => 0,
        };
        bytes as u64
    }

    /// Whether the file has the bytes of its tokens and no others.
    fn fits(&self, length: u64) -> Result<(), Fault> {
        if self.tokens == 0 {
            return Err(("count", "it has no tokens".to_owned()));
        }
        let Self { tokens, width, .. } = self;
        let bytes = tokens.checked_mul(width.bytes() as u64);
        let bytes = bytes.and_then(|bytes| bytes.checked_add(self.bytes()));
        match bytes {
            Some(bytes) if bytes == length => Ok(()),
            Some(bytes) => Err((
                "count",
                format!(
                    "{tokens} tokens of {width} and the header are {bytes} bytes, and the file has {length}"
                ),
            )),
            None => Err(("count", format!("{tokens} tokens fit in no file"))),
        }
    }

    fn nanogpt(length: u64) -> Result<Self, Fault> {
        if !length.is_multiple_of(2) {
            let problem = format!("{length} bytes are no tokens of 16 bits");
            return Err(("length", problem));
        }
        Ok(Self::foreign(
            TokenFormat::NanoGpt,
            TokenWidth::U16,
            length / 2,
        ))
    }

    fn foreign(format: TokenFormat, width: TokenWidth, tokens: u64) -> Self {
        Self {
            format,
            width,
            tokens,
            vocabulary: None,
            documents: None,
            end_of_document: None,
            made_by: MadeBy::Unknown,
            checksum: None,
        }
    }

    fn llm_c(beginning: &[u8]) -> Result<Self, Fault> {
        let magic = number(beginning, 0);
        if magic == LLM_C_EVALUATION {
            let problem =
                "it is llm.c's of questions for an evaluation, which are no text to train on";
            return Err(("magic", problem.to_owned()));
        }
        if beginning.len() < LLM_C_BYTES {
            return Err(("header", cut_short(beginning.len(), LLM_C_BYTES)));
        }
        let (expected, width) = match magic == LLM_C_GPT2.0 {
            true => (LLM_C_GPT2.1, TokenWidth::U16),
            false => (LLM_C_LLAMA3.1, TokenWidth::U32),
        };
        let version = number(beginning, 4);
        if version != expected {
            let problem =
                format!("it is {version}, and with the magic {magic} it must be {expected}");
            return Err(("version", problem));
        }
        let tokens = number(beginning, 8).cast_signed();
        let Ok(tokens) = u64::try_from(tokens) else {
            return Err(("count", format!("{tokens} tokens are below none")));
        };
        Ok(Self::foreign(TokenFormat::LlmC, width, tokens))
    }

    fn ours(beginning: &[u8]) -> Result<Self, Fault> {
        if beginning.len() < OURS_BYTES {
            return Err(("header", cut_short(beginning.len(), OURS_BYTES)));
        }
        let header = &beginning[..OURS_BYTES];
        if Sha256::digest(&header[..CHECKSUM])[..] != header[CHECKSUM..] {
            let problem = "the header is damaged: it has another SHA-256 than it says";
            return Err(("header checksum", problem.to_owned()));
        }
        let version = number(header, 8);
        if version != VERSION {
            let problem = format!("it is {version}, and this program reads {VERSION}");
            return Err(("version", problem));
        }
        let width = match number(header, 12) {
            2 => TokenWidth::U16,
            4 => TokenWidth::U32,
            other => {
                return Err(("token width", format!("it is {other} bytes, not 2 or 4")));
            }
        };
        let (tokens, vocabulary) = (long(header, 16), long(header, 24));
        if vocabulary == 0 || vocabulary > width.most() {
            let problem = format!("{vocabulary} tokens do not fit in {width}");
            return Err(("vocabulary", problem));
        }
        let documents = long(header, 32);
        if documents > tokens {
            let problem = format!("{documents} of them cannot begin in {tokens} tokens");
            return Err(("documents", problem));
        }
        let end_of_document = match (number(header, 40), number(header, 44)) {
            (0, 0) => None,
            (HAS_END, end) if u64::from(end) < vocabulary => Some(end),
            (HAS_END, end) => {
                let problem = format!("token {end} is beyond the vocabulary of {vocabulary}");
                return Err(("end of document", problem));
            }
            (flags, _) => return Err(("flags", format!("they are {flags}, not 0 or {HAS_END}"))),
        };
        let hash = &header[64..96];
        let made_by = match number(header, 48) {
            BYTES if hash.iter().all(|byte| *byte == 0) => MadeBy::Bytes,
            FILE => MadeBy::File(HEXLOWER.encode(hash)),
            kind => return Err(("tokenizer", format!("{kind} is none that is known"))),
        };
        let rest = header[52..64].iter().chain(&header[128..CHECKSUM]);
        if rest.copied().any(|byte| byte != 0) {
            return Err(("header", "its unused bytes are not zero".to_owned()));
        }
        Ok(Self {
            format: TokenFormat::Ours,
            width,
            tokens,
            vocabulary: Some(vocabulary),
            documents: Some(documents),
            end_of_document,
            made_by,
            checksum: Some(part(header, 96)),
        })
    }

    /// The bytes of a header of this format.
    pub(super) fn encode(&self) -> [u8; OURS_BYTES] {
        let mut bytes = [0; OURS_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &(self.width.bytes() as u32).to_le_bytes());
        put(16, &self.tokens.to_le_bytes());
        put(24, &self.vocabulary.unwrap_or_default().to_le_bytes());
        put(32, &self.documents.unwrap_or_default().to_le_bytes());
        if let Some(end) = self.end_of_document {
            put(40, &HAS_END.to_le_bytes());
            put(44, &end.to_le_bytes());
        }
        match &self.made_by {
            MadeBy::Unknown => {}
            MadeBy::Bytes => put(48, &BYTES.to_le_bytes()),
            MadeBy::File(hash) => {
                put(48, &FILE.to_le_bytes());
                // Our hash is one of 32 bytes; of another the beginning is kept.
                let hash = HEXLOWER.decode(hash.as_bytes()).unwrap_or_default();
                put(64, &hash[..hash.len().min(32)]);
            }
        }
        put(96, &self.checksum.unwrap_or_default());
        let checksum = Sha256::digest(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&checksum);
        bytes
    }
}

fn cut_short(found: usize, expected: usize) -> String {
    format!("the file ends after {found} of its {expected} bytes")
}
