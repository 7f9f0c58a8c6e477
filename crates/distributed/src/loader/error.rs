//! What can go wrong while batches are assembled.

use std::time::Duration;

/// Why a rank's share of a batch could not be had.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{BatchNumber, InputError};
///
/// let error = InputError::Sample {
///     batch: BatchNumber { epoch: 2, batch: 3 },
///     sample: 17,
///     reason: "images/17.png: unexpected end of file".into(),
/// };
/// assert_eq!(
///     error.to_string(),
///     "sample 17 (batch 3 of epoch 2): images/17.png: unexpected end of file"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// A sample cannot be read.
    #[error("sample {sample} ({batch}): {reason}")]
    Sample {
        /// The batch that it belongs to.
        batch: BatchNumber,
        /// Its number in the data set that the loader reads.
        sample: usize,
        /// What the data set says, the file included where there is one.
        reason: String,
    },
    /// The data set panicked over a sample.
    #[error("sample {sample} ({batch}) made the data set panic: {message}")]
    SamplePanicked {
        /// The batch that it belongs to.
        batch: BatchNumber,
        /// Its number in the data set that the loader reads.
        sample: usize,
        /// What the panic said.
        message: String,
    },
    /// Each of the samples can be read, and yet the batch cannot be assembled.
    #[error("samples {} ({batch}): {reason}", listed(.samples))]
    Batch {
        /// Which it is.
        batch: BatchNumber,
        /// Its samples on this rank.
        samples: Vec<usize>,
        /// What the data set said, or the panic of it or of the batcher.
        reason: String,
    },
    /// The threads that assemble batches have not brought this one in time.
    #[error(
        "rank {rank} waited {:.1} s for {batch}, which threads read ahead ({workers} of them); check the disk or network with the data, or allow more time with `ranks.timeout`",
        .waited.as_secs_f64()
    )]
    TooLate {
        /// The rank that waited.
        rank: usize,
        /// For which batch.
        batch: BatchNumber,
        /// How long.
        waited: Duration,
        /// How many threads there are.
        workers: usize,
    },
    /// A thread could not be started.
    #[error(
        "no thread could be started to read ahead: {reason}; `training.input.workers = 0` needs none"
    )]
    NoThread {
        /// What the system says.
        reason: String,
    },
}

impl InputError {
    /// The same, of a part of a data set that begins with its sample of this number.
    #[must_use]
    pub fn numbered_from(mut self, first: usize) -> Self {
        match &mut self {
            Self::Sample { sample, .. } | Self::SamplePanicked { sample, .. } => *sample += first,
            Self::Batch { samples, .. } => {
                for sample in samples {
                    *sample += first;
                }
            }
            Self::TooLate { .. } | Self::NoThread { .. } => {}
        }
        self
    }
}

/// A batch, both numbers counted from 1; epoch 0 is that of an evaluation.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::BatchNumber;
///
/// assert_eq!(BatchNumber { epoch: 2, batch: 3 }.to_string(), "batch 3 of epoch 2");
/// assert_eq!(BatchNumber { epoch: 0, batch: 1 }.to_string(), "batch 1 of an evaluation");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchNumber {
    /// The epoch.
    pub epoch: usize,
    /// The batch in it.
    pub batch: usize,
}

impl std::fmt::Display for BatchNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.epoch {
            0 => write!(f, "batch {} of an evaluation", self.batch),
            epoch => write!(f, "batch {} of epoch {epoch}", self.batch),
        }
    }
}

/// The first few of them, and how many there are.
fn listed(samples: &[usize]) -> String {
    /// As many as a line has room for.
    const SHOWN: usize = 8;
    let shown: Vec<_> = samples.iter().take(SHOWN).map(usize::to_string).collect();
    let shown = shown.join(", ");
    match samples.len() {
        0..=SHOWN => shown,
        all => format!("{shown} and {} more", all - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_many_samples_is_named_by_the_first() {
        let error = InputError::Batch {
            batch: BatchNumber { epoch: 0, batch: 1 },
            samples: (10..30).collect(),
            reason: "no".to_string(),
        };
        let text =
            "samples 10, 11, 12, 13, 14, 15, 16, 17 and 12 more (batch 1 of an evaluation): no";
        assert_eq!(error.to_string(), text);
        let held_out = error.numbered_from(100).to_string();
        assert!(
            held_out.starts_with("samples 110, 111, 112, "),
            "{held_out}"
        );
        assert_eq!(listed(&[4]), "4");
    }
}
