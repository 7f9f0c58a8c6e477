//! How ranks that are left, or come, form the next process group.

use everburn_collectives::group::ProcessGroup;

use crate::error::TrainError;

/// Where a rank finds the group with which its training continues after ranks were lost or when others want
/// to take part.
///
/// The training leaves a group whose ranks do not answer, and asks for the next one; there it compares how
/// far each rank has come, and continues from the newest step that any of them has finished.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Regroup;
///
/// fn members(regroup: &dyn Regroup) -> usize {
///     regroup.members().len()
/// }
/// ```
pub trait Regroup: Send + Sync {
    /// The present group.
    fn group(&self) -> ProcessGroup;

    /// Leaves the present group, because of `why`, and returns the next one with this rank in it. `step` is
    /// how far this rank has come.
    ///
    /// # Errors
    /// [`TrainError::JobFinished`] if the others have come to the end meanwhile; [`TrainError::Elastic`] if
    /// there will be no group; [`TrainError::NotMember`] if the others continue without this process.
    fn regroup(&self, step: usize, why: &TrainError) -> Result<ProcessGroup, TrainError>;

    /// Whether somebody waits to join; asked on rank 0 after each step.
    fn somebody_waits(&self) -> bool;

    /// The number by which the user knows each rank of the present group, in the order of ranks: it stays
    /// when ranks are numbered anew.
    fn members(&self) -> Vec<usize>;
}
