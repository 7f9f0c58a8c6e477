//! The step that a rank is in, for the report of a panic, whose hook is given no step.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::RankEnvironment;

type Look = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// What knows the step that this rank is in, once there is something; shared by all copies of a [`RankEnvironment`].
#[derive(Clone, Default)]
pub(crate) struct PresentStep(Arc<OnceLock<Look>>);

impl PresentStep {
    pub(super) fn get(&self) -> Option<u64> {
        self.0.get()?().filter(|step| *step > 0)
    }
}

impl fmt::Debug for PresentStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PresentStep")
            .field(&self.0.get().is_some())
            .finish()
    }
}

/// Where the step is looked up does not say who a rank is.
impl PartialEq for PresentStep {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for PresentStep {}

impl RankEnvironment {
    /// Lets the reports of failures that name no step, such as panics, name the one that `step` returns then. `step` may be
    /// called in a panic: it must neither wait for a lock nor keep a group alive. The first call counts, and step 0 is none.
    ///
    /// ```
    /// # mod everburn { pub use everburn_launch as launch; }
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use everburn::launch::RankEnvironment;
    ///
    /// fn count(rank: &RankEnvironment) -> Arc<AtomicU64> {
    ///     let step = Arc::new(AtomicU64::new(0));
    ///     let counted = step.clone();
    ///     rank.look_up_step(move || Some(counted.load(Ordering::Relaxed)));
    ///     step
    /// }
    /// ```
    pub fn look_up_step(&self, step: impl Fn() -> Option<u64> + Send + Sync + 'static) {
        // Another group of the same process counts the same steps.
        let _ = self.present_step.0.set(Box::new(step));
    }
}
