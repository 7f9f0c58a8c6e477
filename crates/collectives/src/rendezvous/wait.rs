//! Who learns of ranks that have not joined yet.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use everburn_record::{located, plain};

use crate::store::{REFUSED_KEY, Store};

/// How much is shown of whom a store has refused.
const LONGEST_REFUSED: usize = 500;

/// Ranks, or a store, that are waited for, while a job starts.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::rendezvous::RanksAwaited;
///
/// let awaited = RanksAwaited::new(vec![0, 1], &[2, 3], Some(2), [10, 290].map(Duration::from_secs));
/// let text = "waiting for ranks 2, 3 of machine 1, 290 s more; 2 of 4 ranks have joined after 10 s";
/// assert_eq!(awaited.text, text);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RanksAwaited {
    /// The ranks that have joined; none where the store is waited for.
    pub joined: Vec<usize>,
    /// How long the others, or the store, are waited for, from now.
    pub left: Duration,
    /// For whom, how long, and what comes then.
    pub text: String,
}

impl RanksAwaited {
    /// Those that have `joined` and waited, and still wait, for the `missing` ones; `ranks_per_machine` where it is known.
    #[must_use]
    pub fn new(
        joined: Vec<usize>,
        missing: &[usize],
        ranks_per_machine: Option<usize>,
        [waited, left]: [Duration; 2],
    ) -> Self {
        let text = format!(
            "waiting for {}, {:.0} s more; {} of {} ranks have joined after {:.0} s",
            located(missing, ranks_per_machine),
            left.as_secs_f64(),
            joined.len(),
            joined.len() + missing.len(),
            waited.as_secs_f64()
        );
        Self { joined, left, text }
    }

    /// The same with whom the server of `store` has refused, if it has: they may be who is waited for.
    pub(crate) fn with_refused(mut self, store: &dyn Store) -> Self {
        // Other stores have no such entry, and the wait does without it.
        if let Ok(Some(refused)) = store.try_get(REFUSED_KEY) {
            let refused = plain::line(&String::from_utf8_lossy(&refused), LONGEST_REFUSED);
            self.text += &format!("; the store has refused {refused}");
        }
        self
    }
}

/// Who learns that ranks are waited for: by default the log, as a warning. Of the ranks that wait, the first reports it, after
/// ten seconds and then once per minute.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::{RendezvousRequest, WaitListener};
///
/// let request = RendezvousRequest {
///     on_wait: WaitListener::new(|awaited| eprintln!("{}", awaited.text)),
///     ..RendezvousRequest::default()
/// };
/// assert_eq!(request.rank, None);
/// ```
#[derive(Clone)]
pub struct WaitListener(Arc<dyn Fn(&RanksAwaited) + Send + Sync>);

impl WaitListener {
    /// `told` is called where the rank waits, and must not wait itself.
    pub fn new(told: impl Fn(&RanksAwaited) + Send + Sync + 'static) -> Self {
        Self(Arc::new(told))
    }

    pub(crate) fn tell(&self, awaited: &RanksAwaited) {
        (self.0)(awaited);
    }
}

impl Default for WaitListener {
    fn default() -> Self {
        Self::new(|awaited| tracing::warn!("{}", awaited.text))
    }
}

impl fmt::Debug for WaitListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitListener").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HashStore;

    #[test]
    fn whom_the_store_has_refused_is_said_last() {
        let awaited = || RanksAwaited::new(vec![0], &[1], None, [10, 290].map(Duration::from_secs));
        let store = HashStore::new();
        assert_eq!(awaited().with_refused(&store), awaited());
        let refused = b"10.0.0.2 (3 times): its job token does not match\n";
        store.set(REFUSED_KEY, refused).unwrap();
        let text = awaited().with_refused(&store).text;
        let end = " joined after 10 s; the store has refused 10.0.0.2 (3 times): its job token does not match ";
        assert!(text.ends_with(end), "{text}");
    }
}
