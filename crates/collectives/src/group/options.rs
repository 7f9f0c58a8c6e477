//! How a group behaves.

use std::time::Duration;

use super::algorithm::Algorithm;

/// The deadline of operations where neither the options nor a rendezvous gives one.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// How a group behaves; the same on all its ranks.
///
/// ```
/// use std::time::Duration;
/// use everburn_collectives::group::GroupOptions;
///
/// let options = GroupOptions { timeout: Some(Duration::from_secs(60)), ..Default::default() };
/// assert_eq!(options.max_message_bytes, 4 << 30);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupOptions {
    /// The deadline of every operation; `None` takes that of the rendezvous, or
    /// [`DEFAULT_TIMEOUT`] where there is none.
    pub timeout: Option<Duration>,
    /// The longest message between two ranks, in bytes. A longer one is refused by its sender; a
    /// peer that sends one all the same is cut off.
    pub max_message_bytes: u64,
    /// Messages of up to this many bytes are exchanged [`Algorithm::Flat`], larger ones
    /// [`Algorithm::Direct`].
    pub small_message_bytes: usize,
    /// One algorithm for all messages, for measurements and tests; `None` chooses by size.
    pub algorithm: Option<Algorithm>,
}

impl Default for GroupOptions {
    /// No timeout of its own, 4 GiB a message, small up to 32 KiB.
    fn default() -> Self {
        Self {
            timeout: None,
            max_message_bytes: 4 << 30,
            small_message_bytes: 32 << 10,
            algorithm: None,
        }
    }
}

impl GroupOptions {
    /// The algorithm for a message of `bytes` bytes.
    #[must_use]
    pub fn algorithm_for(&self, bytes: usize) -> Algorithm {
        match self.algorithm {
            Some(algorithm) => algorithm,
            None if bytes <= self.small_message_bytes => Algorithm::Flat,
            None => Algorithm::Direct,
        }
    }
}
