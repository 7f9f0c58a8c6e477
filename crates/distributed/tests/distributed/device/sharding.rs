//! Gradients that are reduce-scattered and parameters that are gathered by NCCL: the numbers are those of host memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::Module;
use burn::optim::SgdConfig;
use burn::prelude::*;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{
    Ddp, DdpConfig, DdpError, DeviceCollective, DeviceCommunicator, DeviceMemory, GradientShards,
    HostCommunicator, Lent, NcclCommunicator, NcclWait, ParameterShards, PendingTensor, ShardStage,
    share_of,
};
use everburn_distributed_fake::FakeMemory;

use super::ways::{Rank, Way, model, on_ranks};
use crate::models::{Branchy, assert_close, rows};
use crate::parameters::{numbers, parameters};
use crate::steps::small_buckets;

const STEPS: usize = 3;

/// What is sharded, and how steps are made.
#[derive(Debug, Clone, Copy)]
struct Case {
    stage: ShardStage,
    samples: usize,
    /// Into how many micro-batches a rank's samples are cut.
    parts: usize,
    max_norm: Option<f32>,
    offload: bool,
}

impl Case {
    fn config(self) -> DdpConfig {
        DdpConfig {
            shard: Some(self.stage),
            max_gradient_norm: self.max_norm,
            ..small_buckets()
        }
    }

    /// The parameters after a few steps. Rank 0 alone uses the branch.
    fn train(self, ddp: &Ddp, model: Branchy) -> Vec<f32> {
        let device = Device::flex().autodiff();
        let offload = self.offload.then(Device::flex);
        let (mut shards, mut model) = ParameterShards::new(model, ddp, offload).unwrap();
        let mut optimizer = SgdConfig::new().init();
        for _ in 0..STEPS {
            model = shards.open(model).unwrap();
            let gradients = match self.stage {
                ShardStage::Optimizer => {
                    let step = ddp.begin(self.share(ddp).len()).unwrap();
                    self.pass(&step, ddp, &model, self.share(ddp), &device);
                    let synced = step.finish(&model).unwrap();
                    shards.shard_gradients(&model, synced.gradients).unwrap()
                }
                _ => {
                    let mut sum = GradientShards::default();
                    let whole = self.share(ddp);
                    for part in 0..self.parts {
                        let within = share_of(whole.len(), part, self.parts);
                        let range = whole.start + within.start..whole.start + within.end;
                        let step = ddp.begin(range.len()).unwrap();
                        self.pass(&step, ddp, &model, range, &device);
                        sum.add(step.finish_sharded().unwrap());
                    }
                    shards.average(sum).unwrap().gradients
                }
            };
            let updated = shards.update(model, gradients, |local, gradients| {
                optimizer.step(0.05, local, gradients)
            });
            model = updated.unwrap();
        }
        let model = shards.settle(model).unwrap();
        ddp.verify_replicas(&model).unwrap();
        numbers(&parameters(&model.valid()))
    }

    fn share(self, ddp: &Ddp) -> std::ops::Range<usize> {
        share_of(self.samples, ddp.group().rank(), ddp.group().world_size())
    }

    fn pass(
        self,
        step: &everburn_distributed::Synchronization,
        ddp: &Ddp,
        model: &Branchy,
        range: std::ops::Range<usize>,
        device: &Device,
    ) {
        if range.is_empty() {
            return;
        }
        let watched = step.with_hooks(model, range.len());
        let mine = rows(self.samples, device).slice([range]);
        let takes_branch = ddp.group().rank() == 0;
        drop(watched.loss(mine, takes_branch).mean().backward());
    }

    fn through_host_memory(self) -> Vec<Vec<f32>> {
        on_ranks(2, |rank| {
            let model = model(&Device::flex().autodiff());
            let (ddp, model) = Ddp::new(model, rank.group, self.config()).unwrap();
            self.train(&ddp, model)
        })
    }

    /// The parameters of each rank, and what it has called of NCCL.
    fn by(self, way: Way) -> Vec<(Vec<f32>, Vec<String>)> {
        on_ranks(2, |rank: Rank| {
            let (ddp, model) = rank.ddp(way, self.config()).unwrap();
            let found = self.train(&ddp, model);
            (found, rank.cluster.take_calls(rank.number()))
        })
    }
}

const GRADIENTS: Case = Case {
    stage: ShardStage::Gradients,
    samples: 7,
    parts: 1,
    max_norm: None,
    offload: false,
};

#[test]
fn shards_by_nccl_have_the_bits_of_those_through_host_memory() {
    let optimizer = Case {
        stage: ShardStage::Optimizer,
        ..GRADIENTS
    };
    // With one sample, rank 1 has none.
    let lone = Case {
        samples: 1,
        ..GRADIENTS
    };
    let parts = Case {
        parts: 2,
        ..GRADIENTS
    };
    let offloaded = Case {
        offload: true,
        ..GRADIENTS
    };
    for case in [GRADIENTS, optimizer, lone, parts, offloaded] {
        let host = case.through_host_memory();
        for way in [Way::Nccl, Way::NcclAndHostWaits, Way::NcclOnOldDriver] {
            let ranks = case.by(way);
            for (rank, (found, calls)) in ranks.iter().enumerate() {
                assert_eq!(*found, host[rank], "{way:?}, {case:?}, rank {rank}");
                assert_eq!(*calls, ranks[0].1, "{way:?}, {case:?}");
                // In each step all buckets, and then all chunks of parameters.
                let name = |call: &String| call.split('(').next().unwrap_or_default().to_string();
                let runs = calls.chunk_by(|a, b| name(a) == name(b));
                let runs = runs.map(|run| name(&run[0])).collect::<Vec<_>>();
                let sums = match case.stage {
                    ShardStage::Optimizer => "all_reduce",
                    _ => "reduce_scatter",
                };
                assert_eq!(runs, [sums, "all_gather"].repeat(STEPS), "{calls:?}");
            }
        }
    }
}

#[test]
fn shards_are_clipped_by_the_norm_of_all_ranks() {
    for max_norm in [0.1, 1e6] {
        let case = Case {
            max_norm: Some(max_norm),
            ..GRADIENTS
        };
        let host = case.through_host_memory();
        for (rank, (found, _)) in case.by(Way::Nccl).iter().enumerate() {
            assert_close(found, &host[rank]);
        }
    }
}

/// Memory of which none is left once it is full.
#[derive(Debug)]
struct Limited {
    memory: FakeMemory,
    is_full: Arc<AtomicBool>,
}

impl DeviceMemory for Limited {
    fn lend(&self, numbers: Tensor<1>) -> Result<Lent, String> {
        match self.is_full.load(Ordering::Acquire) {
            true => Err("out of memory".to_string()),
            false => self.memory.lend(numbers),
        }
    }

    fn take_back(&self, lent: Lent) -> Result<Tensor<1>, String> {
        self.memory.take_back(lent)
    }

    fn synchronize(&self, device: &Device) -> Result<(), String> {
        self.memory.synchronize(device)
    }
}

#[test]
fn a_rank_that_cannot_gather_parameters_is_named_on_all() {
    let errors = on_ranks(2, |rank| {
        let (number, device) = (rank.number(), Device::flex().autodiff());
        let is_full = Arc::new(AtomicBool::new(false));
        let memory = Arc::new(Limited {
            memory: FakeMemory::new(rank.cluster.clone(), number),
            is_full: is_full.clone(),
        });
        let nccl = rank.cluster.connect(number, &rank.group).unwrap();
        let communicator = Arc::new(NcclCommunicator::new(nccl, memory, NcclWait::Device));
        let (model, config) = (model(&device), GRADIENTS.config());
        let made = Ddp::with_communicator(model, rank.group.clone(), config, communicator);
        let (ddp, model) = made.unwrap();
        let (mut shards, model) = ParameterShards::new(model, &ddp, None).unwrap();
        let step = ddp.begin(1).unwrap();
        GRADIENTS.pass(&step, &ddp, &model, number..number + 1, &device);
        let gradients = step.finish_sharded().unwrap();
        let gradients = shards.average(gradients).unwrap().gradients;
        // The end of rank 1's part must not reach the other one's step before.
        rank.group.barrier().wait().unwrap();
        is_full.store(number == 1, Ordering::Release);
        let updated = shards.update(model, gradients, |local, _| local);
        if number == 1 {
            return updated.map(drop).unwrap_err().to_string();
        }
        // Its own part had left, or not.
        let settled = updated.and_then(|model| shards.settle(model));
        settled.map(drop).unwrap_err().to_string()
    });
    for error in &errors {
        assert!(error.contains("out of memory"), "{error}");
    }
    assert!(errors[0].contains("rank 1"), "{}", errors[0]);
}

/// A communicator whose failure is seen only where it is waited for.
#[derive(Debug)]
struct FailsLate(Arc<dyn DeviceCommunicator>);

impl DeviceCommunicator for FailsLate {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn begin(&self, bucket: usize, numbers: Tensor<1>) -> Result<Box<dyn PendingTensor>, DdpError> {
        self.0.begin(bucket, numbers)
    }

    fn has_collectives(&self) -> bool {
        self.0.has_collectives()
    }

    fn begin_collective(
        &self,
        collective: DeviceCollective,
        numbers: Tensor<1>,
    ) -> Result<Box<dyn PendingTensor>, DdpError> {
        self.0.begin_collective(collective, numbers)
    }

    fn check(&self) -> Result<(), DdpError> {
        Ok(())
    }

    fn settle(&self) -> Result<(), DdpError> {
        Err(DdpError::Gather("it did not come".to_string()))
    }

    fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }
}

#[test]
fn parameters_that_are_gathered_on_a_device_have_come_at_the_end() {
    on_ranks(2, |rank| {
        let communicator = Arc::new(FailsLate(rank.communicator(Way::Nccl)));
        let (model, config) = (model(&Device::flex().autodiff()), GRADIENTS.config());
        let (ddp, model) = Ddp::with_communicator(model, rank.group, config, communicator).unwrap();
        let (mut shards, model) = ParameterShards::new(model, &ddp, None).unwrap();
        let error = shards.settle(model).map(drop).unwrap_err().to_string();
        assert!(error.contains("it did not come"), "{error}");
    });
}

#[test]
fn what_cannot_be_sharded_on_devices_is_refused() {
    on_ranks(2, |rank| {
        let refused = |made: Result<(Ddp, Branchy), DdpError>, part: &str| {
            let refused = made.unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        };
        let parameters = Case {
            stage: ShardStage::Parameters,
            ..GRADIENTS
        };
        let made = rank.ddp(Way::Nccl, parameters.config());
        refused(made, "use `ranks.backend = host`");
        let made = rank.ddp(Way::Staged, GRADIENTS.config());
        refused(made, "it cannot give each rank its shards");
        // The group is as good as before.
        rank.group.barrier().wait().unwrap();
    });
}

#[test]
fn each_end_of_a_step_is_for_its_kind_of_gradients() {
    let alone = || ProcessGroup::alone(GroupOptions::default());
    let device = Device::flex().autodiff();
    let communicator = Arc::new(HostCommunicator::start(alone()).unwrap());
    let made = Ddp::with_communicator(model(&device), alone(), small_buckets(), communicator);
    let (ddp, model) = made.unwrap();
    let step = ddp.begin(2).unwrap();
    let watched = step.with_hooks(&model, 2);
    drop(watched.loss(rows(2, &device), true).mean().backward());
    let refused = step.finish_sharded().unwrap_err().to_string();
    assert!(refused.contains("call `finish`"), "{refused}");
}
