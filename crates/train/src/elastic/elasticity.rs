//! What a training does differently where its ranks may change.

use std::sync::Arc;

use everburn_collectives::group::ProcessGroup;

use crate::elastic::regroup::Regroup;
use crate::error::TrainError;

/// Whether the ranks of a training may change, and what follows from it.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Elasticity;
///
/// // A lost rank ends the training.
/// assert!(!Elasticity::default().is_elastic());
/// ```
#[derive(Clone, Default)]
pub struct Elasticity {
    regroup: Option<Arc<dyn Regroup>>,
}

impl Elasticity {
    /// Of ranks that find each next group by `regroup`.
    pub fn by(regroup: Arc<dyn Regroup>) -> Self {
        let regroup = Some(regroup);
        Self { regroup }
    }

    /// Whether ranks may be lost, and others join.
    pub fn is_elastic(&self) -> bool {
        self.regroup.is_some()
    }

    /// What is not needed any more once the training is over and written: ranks of an elastic job may be lost then, so
    /// their error is returned, and fails only a fixed group.
    ///
    /// # Errors
    /// That of `ended`, in a fixed group.
    pub fn after_the_end<E>(&self, ended: Result<(), E>) -> Result<Option<E>, E> {
        match ended {
            Ok(()) => Ok(None),
            Err(error) if self.is_elastic() => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    /// The present group, of which `first` was the first.
    pub(crate) fn group(&self, first: &ProcessGroup) -> ProcessGroup {
        let regroup = self.regroup.as_ref();
        regroup.map_or_else(|| first.clone(), |regroup| regroup.group())
    }

    /// The number by which the user knows each rank of the present group, which is `group`.
    pub(crate) fn members(&self, group: &ProcessGroup) -> Vec<usize> {
        match &self.regroup {
            Some(regroup) => regroup.members(),
            None => (0..group.world_size()).collect(),
        }
    }

    /// Whether somebody waits to join.
    pub(crate) fn somebody_waits(&self) -> bool {
        let regroup = self.regroup.as_ref();
        regroup.is_some_and(|regroup| regroup.somebody_waits())
    }

    /// The way to the group in which the training continues after `error`, if it does.
    pub(crate) fn next_after(&self, error: &TrainError) -> Option<Arc<dyn Regroup>> {
        let regroup = self.regroup.as_ref();
        regroup.filter(|_| error.may_be_outlived()).cloned()
    }

    /// Does what ranks of a fixed group do once, before or after their loop.
    pub(crate) fn outside_loop<T>(
        &self,
        act: impl FnOnce() -> Result<T, TrainError>,
    ) -> Result<Option<T>, TrainError> {
        (!self.is_elastic()).then(act).transpose()
    }

    /// Does what ranks of an elastic job need for the loop, in which they do instead what
    /// [`outside_loop`](Self::outside_loop) is for: there, others can take the place of a rank that is lost.
    pub(crate) fn in_loop<T>(
        &self,
        act: impl FnOnce() -> Result<T, TrainError>,
    ) -> Result<Option<T>, TrainError> {
        self.is_elastic().then(act).transpose()
    }

    /// Whether the step of a lost rank is made again, from a snapshot of the state after the newest whole step. Each
    /// step must then be known before the next, and all ranks hold what any of them may have to continue from.
    pub(crate) fn rolls_back(&self) -> bool {
        self.is_elastic()
    }

    /// Whether any rank may become rank 0, and keeps ready what rank 0 shows and records.
    pub(crate) fn any_may_be_first(&self) -> bool {
        self.is_elastic()
    }
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;

    use super::*;

    /// An elastic job, of which this rank is the one that the user knows as 3.
    struct Alone;

    impl Regroup for Alone {
        fn group(&self) -> ProcessGroup {
            ProcessGroup::alone(GroupOptions::default())
        }

        fn regroup(&self, _: usize, _: &TrainError) -> Result<ProcessGroup, TrainError> {
            Ok(self.group())
        }

        fn somebody_waits(&self) -> bool {
            true
        }

        fn members(&self) -> Vec<usize> {
            vec![3]
        }
    }

    #[test]
    fn ranks_of_a_fixed_group_keep_it_and_end_with_its_first_error() {
        let fixed = Elasticity::default();
        let groups = ProcessGroup::over_threads(2, GroupOptions::default());
        assert_eq!(fixed.group(&groups[1]).rank(), 1);
        assert_eq!(fixed.members(&groups[1]), [0, 1]);
        assert!(!fixed.somebody_waits());
        assert!(fixed.next_after(&TrainError::SomebodyWaits).is_none());
        assert_eq!(fixed.after_the_end(Err("lost")), Err("lost"));
        assert_eq!(fixed.outside_loop(|| Ok(1)).unwrap(), Some(1));
        assert_eq!(fixed.in_loop(|| Ok(1)).unwrap(), None);
    }

    #[test]
    fn ranks_of_an_elastic_job_continue_in_another_group() {
        let elastic = Elasticity::by(Arc::new(Alone));
        let first = ProcessGroup::over_threads(2, GroupOptions::default());
        assert_eq!(elastic.group(&first[1]).world_size(), 1);
        assert_eq!(elastic.members(&first[1]), [3]);
        assert!(elastic.somebody_waits());
        assert!(elastic.next_after(&TrainError::SomebodyWaits).is_some());
        let own = TrainError::Config("no such optimizer".to_string());
        assert!(elastic.next_after(&own).is_none(), "it would fail again");
        assert_eq!(elastic.after_the_end(Err("lost")), Ok(Some("lost")));
        assert_eq!(elastic.outside_loop(|| Ok(1)).unwrap(), None);
        assert_eq!(elastic.in_loop(|| Ok(1)).unwrap(), Some(1));
    }
}
