//! Trainings of one model, alone and cut.

use std::sync::Arc;

use burn::prelude::*;
use everburn_distributed::{GradientBackend, NcclWait};
use everburn_nccl_fake::FakeCluster;
use everburn_nn::{Activation, Placement, TensorParallel};
use everburn_pipeline::Stages;
use everburn_schedules::ScheduleKind;
use everburn_train::{
    Mesh, MeshParallel, MeshParallelConfig, Objective, OptimizerKind, ParallelModel, Supervised,
    Trainer, TrainingConfig, TrainingData,
};

use crate::harness::config::optimizer;
use crate::harness::parameters::parameters;
use crate::harness::ranks::{connector, on_ranks};
use crate::harness::run::step_lines;

pub(crate) fn config(steps: usize, kind: OptimizerKind) -> TrainingConfig {
    let rate = match kind {
        OptimizerKind::Sgd => 0.02,
        _ => 1e-3,
    };
    TrainingConfig {
        epochs: 1,
        steps: Some(steps),
        batch_size: 16,
        validation_samples: Some(20),
        log_every: 1,
        optimizer: optimizer(kind, rate),
        ..TrainingConfig::default()
    }
}

/// How a model is cut.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    /// Over this many devices of one process; the mesh has one rank then.
    pub(crate) devices: usize,
    pub(crate) mesh: Mesh,
    pub(crate) chunks: usize,
    pub(crate) kind: ScheduleKind,
    pub(crate) micro_batches: usize,
    /// Each rank has a GPU of its own, and NCCL connects them: stand-ins for both.
    pub(crate) nccl: bool,
}

pub(crate) fn mesh(data: usize, pipeline: usize, tensor: usize) -> Mesh {
    Mesh {
        data,
        pipeline,
        tensor,
    }
}

pub(crate) fn cut(ranks: usize, kind: ScheduleKind, micro_batches: usize) -> Cut {
    Cut {
        devices: 1,
        mesh: mesh(1, ranks, 1),
        chunks: 1,
        kind,
        micro_batches,
        nccl: false,
    }
}

/// What a training leaves behind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    pub(crate) parameters: Vec<Vec<f32>>,
    /// Of each step, before clipping.
    pub(crate) norms: Vec<Option<f64>>,
    pub(crate) test_loss: f64,
}

pub(crate) fn train<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    cut: Option<&Cut>,
) -> Trained
where
    M: TensorParallel<Input = O::Input, Output = O::Output> + std::fmt::Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let folder = tempfile::tempdir().unwrap();
    train_in::<M, O, I>(model, data, config, cut, folder.path(), false)
}

pub(crate) fn train_in<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    cut: Option<&Cut>,
    folder: &std::path::Path,
    resume: bool,
) -> Trained
where
    M: TensorParallel<Input = O::Input, Output = O::Output> + std::fmt::Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let world = cut.map_or(1, |cut| cut.mesh.world_size());
    let cluster = Arc::new(FakeCluster::new(world));
    let by_nccl = cut.is_some_and(|cut| cut.nccl);
    let results = on_ranks(world, config, Some(folder), |trainer| {
        let connector = by_nccl.then(|| {
            let (rank, waits) = (trainer.group.rank(), NcclWait::Device);
            connector(&cluster, rank, GradientBackend::Auto, waits)
        });
        let trainer = Trainer {
            resume,
            connector,
            ..trainer
        };
        let model = model.clone();
        let Some(cut) = cut else {
            let model = Supervised::<M, O>::of_blocks(model);
            return trainer.fit(model, data).unwrap();
        };
        if cut.devices > 1 {
            let devices = vec![Device::flex(); cut.devices];
            let split = Placement::even(&model, &devices).unwrap();
            let split = split.split(&model).unwrap();
            let model = Supervised::<M, O>::on_devices(model, split);
            return trainer.fit(model, data).unwrap();
        }
        let blocks = model.blocks().len();
        let stages = Stages::even(blocks, cut.mesh.pipeline, cut.chunks).unwrap();
        let laid = MeshParallelConfig {
            schedule: cut.kind,
            micro_batches: cut.micro_batches,
            tensor_rules: model.tensor_rules(),
            activation_checkpointing: config.activation_checkpointing,
            ..MeshParallelConfig::new(cut.mesh, stages)
        };
        let group = trainer.group.clone();
        let over = MeshParallel::<M, O>::new(group, &model, laid, Device::flex()).unwrap();
        let over: Arc<dyn ParallelModel<_, _>> = Arc::new(over);
        let model = Supervised::<M, O>::of_blocks(model);
        trainer.fit_over_ranks(model, data, None, &over).unwrap()
    });
    for rank in 0..world {
        assert_eq!(!cluster.take_calls(rank).is_empty(), by_nccl, "rank {rank}");
    }
    let steps = step_lines(folder);
    let (model, report) = &results[0];
    Trained {
        losses: steps.iter().map(|line| line.loss).collect(),
        norms: steps.iter().map(|line| line.gradient_norm).collect(),
        parameters: parameters(model),
        test_loss: report.test_loss.unwrap(),
    }
}
