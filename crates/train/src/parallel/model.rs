//! A model that several ranks hold together.

use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Connector, Ddp, InitialValues, ShareOfBatch, SyncedGradients};

use crate::config::TrainingConfig;
use crate::error::TrainError;
use crate::metrics::rank_times::PassTimes;
use crate::metrics::step_report::StepReport;
use crate::metrics::sums::MetricSums;

/// How the ranks of a job hold one model, or several replicas of it, each over several ranks; what
/// [`Trainer::fit_over_ranks`](crate::Trainer::fit_over_ranks) trains with. See
/// [`MeshParallel`](crate::MeshParallel).
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::ParallelModel;
///
/// fn replicas<M, B>(over: &dyn ParallelModel<M, B>) -> usize {
///     over.replicas().world_size()
/// }
/// ```
pub trait ParallelModel<M, B>: Send + Sync {
    /// The ranks that hold the same part of the model: one of each replica. They share the samples.
    fn replicas(&self) -> &ProcessGroup;

    /// Into how many micro-batches a replica's share of a batch is cut.
    fn micro_batches(&self) -> usize;

    /// Whether a rank has a part of some parameters only.
    fn cuts_layers(&self) -> bool;

    /// This rank's part of the model, with rank 0's values, or those that `values` has on all ranks. `connector` connects the
    /// ranks that share layers, if these exchange by something else than the group itself. All ranks call it.
    ///
    /// # Errors
    /// If a collective fails, the ranks' models differ, or a value cannot be read.
    fn prepare(
        &self,
        model: M,
        values: Option<&dyn InitialValues>,
        connector: Option<&Connector>,
    ) -> Result<M, TrainError>;

    /// Which random numbers this rank draws while it trains: ranks that compute the same draw the same.
    fn random_stream(&self) -> usize;

    /// Checks that what several ranks of one replica hold alike is the same on all of them. All ranks
    /// call it.
    ///
    /// # Errors
    /// If it is not, or a collective fails.
    fn verify(&self, model: &M) -> Result<(), TrainError>;

    /// Runs a step forward and backward: the gradients of this rank's part, averaged over all samples,
    /// sums over the samples, on one rank of each replica (the others have none), and how long this rank's
    /// passes took. Where the norm of all gradients is above `max_gradient_norm`, they are made smaller.
    ///
    /// # Errors
    /// If a collective fails.
    fn step(
        &self,
        model: &M,
        share: ShareOfBatch<B>,
        ddp: &Ddp,
        max_gradient_norm: Option<f64>,
    ) -> Result<(SyncedGradients, MetricSums, PassTimes), TrainError>;

    /// Runs a batch forward: the report of its samples, on one rank of each replica.
    ///
    /// # Errors
    /// If a collective fails.
    fn infer(&self, model: &M, batch: B) -> Result<Option<StepReport>, TrainError>;

    /// The whole model on rank 0, in the memory of the host's device; this rank's part on the others.
    ///
    /// # Errors
    /// If a collective fails.
    fn gather(&self, model: M) -> Result<M, TrainError>;

    /// This rank's part of the state of the optimizer.
    ///
    /// # Errors
    /// If `whole` is no such state, or not one of this model.
    fn part_of_optimizer(&self, model: &M, whole: Vec<u8>) -> Result<Vec<u8>, TrainError>;

    /// The whole state of the optimizer on rank 0, from the parts of all ranks; nothing on the others.
    ///
    /// # Errors
    /// If a collective fails.
    fn gather_optimizer(&self, model: &M, part: Vec<u8>) -> Result<Vec<u8>, TrainError>;
}

impl TrainingConfig {
    /// Refuses settings that differ from those of `over`.
    pub(crate) fn validate_over<M, B>(
        &self,
        over: &dyn ParallelModel<M, B>,
    ) -> Result<(), TrainError> {
        let parts = over.micro_batches();
        if self.accumulate > 1 && self.accumulate != parts {
            return Err(TrainError::Config(format!(
                "the training is to run a batch in {} parts, and the model over ranks in {parts}",
                self.accumulate
            )));
        }
        Ok(())
    }
}
