//! How much a pickle may build.

use crate::error::WeightsError;

/// What any pickle may build, in words of 16 bytes: checkpoints are small lists and dicts beside the tensors.
const BASE: usize = 1 << 18;

/// How many words a byte of the pickle may build. PyTorch's own build less than half of one (a tensor is described
/// in a hundred bytes or more, and is 45 words), and two thirds with protocol 5, which is shorter.
const PER_BYTE: usize = 1;

/// Words of 16 bytes that may still be built: at most 4 MiB and 16 bytes for each byte of the pickle, and at
/// most twice as much while vectors grow.
#[derive(Debug)]
pub(crate) struct Budget {
    words: usize,
}

impl Budget {
    pub(super) fn of(pickle: &[u8]) -> Self {
        Self {
            words: BASE + PER_BYTE * pickle.len(),
        }
    }

    pub(crate) fn pay(&mut self, words: usize) -> Result<(), WeightsError> {
        self.words = self
            .words
            .checked_sub(words)
            .ok_or(WeightsError::TooLarge)?;
        Ok(())
    }

    /// Pays for a text or other bytes.
    pub(crate) fn pay_bytes(&mut self, bytes: usize) -> Result<(), WeightsError> {
        self.pay(bytes.div_ceil(16))
    }
}
