//! Models over several ranks, and samples of what a model can do, without the model's type.

use std::any::Any;
use std::sync::Arc;

use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{
    Connector, Ddp, InitialValues, MicroBatch, ShareOfBatch, SyncedGradients,
};

use super::data::AnyBatch;
use super::model::{AnyModel, Trainable};
use crate::error::TrainError;
use crate::metrics::rank_times::PassTimes;
use crate::metrics::step_report::StepReport;
use crate::metrics::sums::MetricSums;
use crate::model::samples::Samples;
use crate::parallel::model::ParallelModel;

/// Any model that several ranks hold together.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::AnyModelOverRanks;
///
/// fn replicas(over: &AnyModelOverRanks) -> usize {
///     over.replicas().world_size()
/// }
/// ```
pub type AnyModelOverRanks = Arc<dyn ParallelModel<AnyModel, AnyBatch>>;

pub(crate) fn erase_over_ranks<M: Trainable>(
    over: Arc<dyn ParallelModel<M, M::Batch>>,
) -> AnyModelOverRanks {
    if let Some(erased) = (&over as &dyn Any).downcast_ref::<AnyModelOverRanks>() {
        return Arc::clone(erased);
    }
    Arc::new(Erased(over))
}

pub(crate) fn erase_samples<M: Trainable>(samples: Samples<M>) -> Samples<AnyModel> {
    samples.of(|model: &AnyModel| model.inner())
}

struct Erased<M: Trainable>(Arc<dyn ParallelModel<M, M::Batch>>);

impl<M: Trainable> ParallelModel<AnyModel, AnyBatch> for Erased<M> {
    fn replicas(&self) -> &ProcessGroup {
        self.0.replicas()
    }

    fn micro_batches(&self) -> usize {
        self.0.micro_batches()
    }

    fn cuts_layers(&self) -> bool {
        self.0.cuts_layers()
    }

    fn prepare(
        &self,
        model: AnyModel,
        values: Option<&dyn InitialValues>,
        connector: Option<&Connector>,
    ) -> Result<AnyModel, TrainError> {
        let model = self.0.prepare(model.open(), values, connector)?;
        Ok(AnyModel::new(model))
    }

    fn random_stream(&self) -> usize {
        self.0.random_stream()
    }

    fn verify(&self, model: &AnyModel) -> Result<(), TrainError> {
        self.0.verify(model.inner())
    }

    fn step(
        &self,
        model: &AnyModel,
        share: ShareOfBatch<AnyBatch>,
        ddp: &Ddp,
        max_gradient_norm: Option<f64>,
    ) -> Result<(SyncedGradients, MetricSums, PassTimes), TrainError> {
        let open = |part: MicroBatch<AnyBatch>| MicroBatch {
            batch: part.batch.open(),
            samples: part.samples,
            weight: part.weight,
            index: part.index,
            indices: part.indices,
        };
        let share = ShareOfBatch {
            micro_batches: share.micro_batches.into_iter().map(open).collect(),
            rounds: share.rounds,
            samples: share.samples,
            weight: share.weight,
            global_samples: share.global_samples,
        };
        self.0.step(model.inner(), share, ddp, max_gradient_norm)
    }

    fn infer(&self, model: &AnyModel, batch: AnyBatch) -> Result<Option<StepReport>, TrainError> {
        self.0.infer(model.inner(), batch.open())
    }

    fn gather(&self, model: AnyModel) -> Result<AnyModel, TrainError> {
        Ok(AnyModel::new(self.0.gather(model.open())?))
    }

    fn part_of_optimizer(&self, model: &AnyModel, whole: Vec<u8>) -> Result<Vec<u8>, TrainError> {
        self.0.part_of_optimizer(model.inner(), whole)
    }

    fn gather_optimizer(&self, model: &AnyModel, part: Vec<u8>) -> Result<Vec<u8>, TrainError> {
        self.0.gather_optimizer(model.inner(), part)
    }
}
