//! Why a file is not read.

use std::fmt;
use std::io;

/// How much of a text of the file is shown.
const SHOWN: usize = 80;

/// Why a file, or a tensor of it, is not read or written. Texts of the file are in it escaped and cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),

    /// It is no archive of `torch.save`, or a damaged one.
    #[error("{0}")]
    Archive(String),

    /// A part of it has other bytes than were written.
    #[error(
        "{name} in it is damaged: its checksum is {found:08x}, not {expected:08x}; copy or download the file again, or \
         save it anew by torch.save if another program has changed it"
    )]
    Checksum {
        /// The tensor, or the file in the archive, escaped.
        name: String,
        /// The CRC-32 of what is there.
        found: u32,
        /// The CRC-32 of what was written.
        expected: u32,
    },

    /// The pickle in it is damaged, or is not as PyTorch writes state dicts.
    #[error("{0}")]
    Pickle(String),

    /// The pickle names a class or function that weights do not need. Nothing in a file is called.
    #[error(
        "its pickle names {name}, which weights do not need, and nothing in a file is called; save the weights \
         alone, with torch.save(model.state_dict(), ...), or, of a file that you trust, \
         torch.save(torch.load(FILE, weights_only=False){weights}, ...)"
    )]
    Global {
        /// `module.name`, escaped.
        name: String,
        /// What of the loaded file has the weights in Python, as far as the pickle shows it: `.state_dict()` of a whole
        /// module, or an entry of a checkpoint.
        weights: String,
    },

    /// The pickle names what builds values that are not plain tensors. Nothing in a file is called.
    #[error(
        "its pickle names {name}: there are {what} in it, which are not read; convert them in Python, of a file that \
         you trust, by torch.save({{k: {convert} for k, v in torch.load(FILE, weights_only=False){weights}.items()}}, ...)"
    )]
    NotPlain {
        /// `module.name`, escaped.
        name: String,
        /// What it builds: numpy arrays, say.
        what: &'static str,
        /// What makes a plain tensor of a value `v` in Python.
        convert: &'static str,
        /// The entry of the loaded file that has the weights; empty where the file is the state dict.
        weights: String,
    },

    /// The pickle builds more than a file of its size needs.
    #[error(
        "its pickle builds far more than weights of its size need; it is damaged or made to do harm"
    )]
    TooLarge,

    /// Several dicts of the file hold weights, and they differ.
    #[error(
        "several dicts in it hold weights, and they differ: {}; save the one that is meant, with \
         torch.save(checkpoint[...], ...)",
        .candidates.join(", ")
    )]
    Ambiguous {
        /// Their keys, from the outermost dict inwards, joined by dots and escaped.
        candidates: Vec<String>,
    },

    /// A tensor cannot be read or written.
    #[error("{name}: {reason}")]
    Tensor {
        /// The tensor's name, escaped.
        name: String,
        /// What is wrong, and what helps.
        reason: String,
    },

    /// There is no tensor of this name.
    #[error("there is no tensor {0} in it")]
    NoTensor(String),
}

pub(crate) fn archive(reason: impl Into<String>) -> WeightsError {
    WeightsError::Archive(reason.into())
}

pub(crate) fn pickle(reason: impl Into<String>) -> WeightsError {
    WeightsError::Pickle(reason.into())
}

pub(crate) fn tensor(name: &str, reason: impl Into<String>) -> WeightsError {
    WeightsError::Tensor {
        name: Shown(name.as_bytes()).to_string(),
        reason: reason.into(),
    }
}

/// A text of the file as an error shows it: no control character reaches a terminal.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = &self.0[..self.0.len().min(SHOWN)];
        write!(formatter, "{}", String::from_utf8_lossy(cut).escape_debug())?;
        match self.0.len() > SHOWN {
            true => write!(formatter, "..."),
            false => Ok(()),
        }
    }
}
