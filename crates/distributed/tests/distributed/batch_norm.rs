//! Data parallelism with batch norms over all ranks equals one device on the same global batch.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{self as burns, Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::prelude::*;
use burn::tensor::TensorData;
use burn::tensor::activation::{relu, tanh};
use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
use everburn_collectives::heartbeat::{HeartbeatMonitor, HeartbeatOptions};
use everburn_collectives::store::{HashStore, SharedStore};
use everburn_distributed::{
    Ddp, DdpConfig, DdpError, DeviceCommunicator, ModuleRanks, share_of, synchronize_batch_norms,
};
use everburn_nn::{BatchNorm, BatchNormConfig};
use everburn_tests::{AssertContains, in_parallel};

use crate::device::ways::{self, Rank, Way};
use crate::parameters::{numbers, parameters};
use crate::ranks::{on_ranks, separate};

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    norm1: BatchNorm,
    conv2: Conv2d,
    norm2: BatchNorm,
    side: Linear,
    norm3: BatchNorm,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let norm = |channels| BatchNormConfig::new(channels).init(device);
        let conv = |channels| {
            Conv2dConfig::new(channels, [3, 3])
                .with_bias(false)
                .init(device)
        };
        Self {
            conv: conv([1, 4]),
            norm1: norm(4),
            conv2: conv([4, 6]),
            norm2: norm(6),
            side: LinearConfig::new(64, 6).with_bias(false).init(device),
            norm3: norm(6),
            head: LinearConfig::new(6, 2).init(device),
        }
    }

    /// The loss of each image: `[B, 1, 8, 8] -> [B]`.
    fn losses(&self, images: Tensor<4>) -> Tensor<1> {
        // A branch beside the others that comes last and is the shallowest: its place in the
        // backward pass depends on more than its depth.
        let flat: Tensor<2> = images.clone().flatten(1, 3);
        let x = relu(self.norm1.forward(self.conv.forward(images)));
        let x = tanh(self.norm2.forward(self.conv2.forward(x)));
        let x: Tensor<2> = x.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2);
        let x = x * self.norm3.forward(self.side.forward(flat));
        let x = self.head.forward(x).powi_scalar(2);
        x.sum_dim(1).squeeze_dim(1)
    }
}

fn images(count: usize, step: usize, device: &Device) -> Tensor<4> {
    let number = |index: usize| {
        let mixed = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 + 2 * step);
        ((mixed >> 40) % 2000) as f32 / 1000.0
    };
    let numbers = (0..count * 64).map(number).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(numbers, [count, 1, 8, 8]), device)
}

/// All parameters and running statistics.
fn state(model: &Net) -> Vec<f32> {
    numbers(&parameters(&model.valid()))
}

/// When gradients leave.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Overlap {
    AfterBackward,
    DuringBackward,
}

const STEPS: usize = 4;

/// A few steps with `samples` samples each, dealt to the ranks of `group`.
fn train(model: Net, group: ProcessGroup, samples: usize, overlap: Overlap) -> Vec<f32> {
    let (ddp, model) = Ddp::new(model, group, DdpConfig::default()).unwrap();
    let model = synchronize_batch_norms(model, ddp.group()).unwrap();
    steps(&ddp, model, samples, overlap)
}

fn steps(ddp: &Ddp, mut model: Net, samples: usize, overlap: Overlap) -> Vec<f32> {
    let device = Device::flex().autodiff();
    let (rank, world_size) = (ddp.group().rank(), ddp.group().world_size());
    let mut optimizer = SgdConfig::new().init();
    for step in 0..STEPS {
        let share = share_of(samples, rank, world_size);
        let count = share.len();
        let sync = ddp.begin(count).unwrap();
        if share.is_empty() {
            let stand_in = Tensor::zeros([1, 1, 8, 8], &device);
            drop(
                sync.with_hooks_stand_in(&model)
                    .losses(stand_in)
                    .mean()
                    .backward(),
            );
        } else {
            let mine = images(samples, step, &device).slice([share]);
            let watched = match overlap {
                Overlap::DuringBackward => sync.with_hooks(&model, count),
                Overlap::AfterBackward => sync.with_hooks_no_sync(&model, count),
            };
            drop(watched.losses(mine).mean().backward());
        }
        let synced = sync.finish(&model).unwrap();
        model = optimizer.step(0.05, model, synced.gradients);
        // Running statistics too: they are equal without having been averaged.
        ddp.verify_replicas(&model).unwrap();
    }
    state(&model)
}

#[test]
fn training_with_any_shares_equals_one_device() {
    // Drawn once: all tests draw from one generator.
    let initial = Net::new(&Device::flex().autodiff());
    drop(state(&initial));
    for samples in [1, 3, 7, 12] {
        let expected = train(
            separate(&initial),
            ProcessGroup::alone(GroupOptions::default()),
            samples,
            Overlap::AfterBackward,
        );
        let both = [Overlap::AfterBackward, Overlap::DuringBackward];
        for (world_size, overlap) in [2, 3, 4].into_iter().flat_map(|n| both.map(|e| (n, e))) {
            let work = |group| train(separate(&initial), group, samples, overlap);
            for trained in on_ranks(world_size, work) {
                assert_eq!(trained.len(), expected.len());
                for (index, (a, b)) in trained.iter().zip(&expected).enumerate() {
                    let scale = a.abs().max(b.abs()).max(1.0);
                    assert!(
                        (a - b).abs() <= 1e-5 * scale,
                        "{a} and {b} at {index} with {samples} samples on {world_size} ranks"
                    );
                }
            }
        }
    }
}

/// One rank's model, whose statistics and gradients go by NCCL.
fn by_nccl(rank: &Rank, way: Way, model: Net) -> (Ddp, Net) {
    let by: Arc<dyn DeviceCommunicator> = rank.communicator(way);
    let (group, config) = (rank.group.clone(), crate::steps::small_buckets());
    let (ddp, model) = Ddp::with_communicator(model, group, config, by.clone()).unwrap();
    let ranks = ModuleRanks::new(&rank.group)
        .unwrap()
        .with_communicator(&by);
    let model = everburn_nn::synchronize_batch_norms(model, Arc::new(ranks)).unwrap();
    (ddp, model)
}

/// Statistics, sums of gradients and buckets all go by NCCL, in one order on all ranks: also where a rank has no samples,
/// which has its buckets at once.
#[test]
fn a_training_by_nccl_has_the_bits_of_one_through_host_memory() {
    let initial = Net::new(&Device::flex().autodiff());
    drop(state(&initial));
    for samples in [1, 3, 12] {
        // A sum of two numbers is rounded alike everywhere.
        let host = on_ranks(2, |group| {
            train(separate(&initial), group, samples, Overlap::DuringBackward)
        });
        for way in [Way::Nccl, Way::NcclAndHostWaits, Way::NcclOnOldDriver] {
            let ranks = ways::on_ranks(2, |rank| {
                let (ddp, model) = by_nccl(&rank, way, separate(&initial));
                let found = steps(&ddp, model, samples, Overlap::DuringBackward);
                (found, rank.cluster.take_calls(rank.number()))
            });
            for (rank, (found, calls)) in ranks.iter().enumerate() {
                assert!(
                    *found == host[rank],
                    "{way:?}, {samples} samples, rank {rank}"
                );
                assert_eq!(*calls, ranks[0].1, "{way:?}, {samples} samples");
                // In each step two sums forward and one backward per layer, and then the buckets.
                let of_layers = |call: &String| call.starts_with("all_reduce(f64[");
                let runs = calls.chunk_by(|a, b| of_layers(a) == of_layers(b));
                let runs = runs.map(|run| (of_layers(&run[0]), run.len()));
                let runs = runs.collect::<Vec<_>>();
                assert_eq!(runs.len(), 2 * STEPS, "{calls:?}");
                for step in runs.chunks(2) {
                    assert_eq!(step[0], (true, 3 * 3), "{calls:?}");
                    assert!(!step[1].0 && step[1].1 > 1, "{calls:?}");
                }
            }
        }
    }
}

/// One rank's model, attached, and its loss.
fn ready(group: &ProcessGroup) -> (Ddp, Net, Tensor<4>) {
    let device = Device::flex().autodiff();
    let (ddp, model) = Ddp::new(Net::new(&device), group.clone(), DdpConfig::default()).unwrap();
    let model = synchronize_batch_norms(model, group).unwrap();
    (ddp, model, images(2, group.rank(), &device))
}

/// A whole step on this rank, of which the error is what the group says in the end.
fn failing_step(ddp: &Ddp, model: &Net, images: Tensor<4>) -> CollectiveError {
    let gradients = model.losses(images).mean().backward();
    let gradients = GradientsParams::from_grads(gradients, model);
    match ddp.sync_gradients(model, gradients, 2).unwrap_err() {
        DdpError::Collective(error) => error.root_cause().clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_rank_that_dies_within_the_model_is_named_by_the_step() {
    let attached = Barrier::new(3);
    on_ranks(3, |group| {
        let (ddp, model, images) = ready(&group);
        attached.wait();
        if group.rank() == 1 {
            group.sever();
            return;
        }
        // Found by this rank itself, or told by the other one that found it first.
        let error = failing_step(&ddp, &model, images).to_string();
        assert!(error.contains("lost rank 1"), "{error}");
    });
}

#[test]
fn a_rank_that_is_lost_is_named_where_sums_stay_on_their_devices() {
    let errors = ways::on_ranks(3, |rank| {
        let device = Device::flex().autodiff();
        let (ddp, model) = by_nccl(&rank, Way::Nccl, Net::new(&device));
        let step = || {
            let sync = ddp.begin(2)?;
            let mine = images(2, rank.number(), &device);
            drop(sync.with_hooks(&model, 2).losses(mine).mean().backward());
            sync.finish(&model).map(drop)
        };
        step().unwrap();
        ddp.settle().unwrap();
        rank.group.barrier().wait().unwrap();
        if rank.number() == 1 {
            rank.cluster.kill(1, false);
            rank.group.sever();
            return String::new();
        }
        // A step whose sums had left already is found to have failed in the next.
        let error = (0..2).find_map(|_| step().err());
        let error = error.expect("nobody can be without rank 1 for two steps");
        error.to_string()
    });
    for error in [&errors[0], &errors[2]] {
        assert!(error.contains("rank 1"), "{error}");
    }
}

#[test]
fn a_rank_that_skips_the_model_is_named_by_the_step() {
    let options = GroupOptions {
        // Of what comes before on a busy machine, too.
        timeout: Some(Duration::from_secs(5)),
        ..GroupOptions::default()
    };
    let groups = ProcessGroup::over_threads(2, options);
    let (attached, failed) = (Barrier::new(2), Barrier::new(2));
    let store: SharedStore = Arc::new(HashStore::new());
    let errors = in_parallel(groups, |group| {
        let options = HeartbeatOptions::default();
        let heartbeat = HeartbeatMonitor::start(store.clone(), group.rank(), 2, options).unwrap();
        heartbeat.follow(&group);
        let (ddp, model, images) = ready(&group);
        attached.wait();
        let error = if group.rank() == 0 {
            let error = failing_step(&ddp, &model, images);
            failed.wait();
            error
        } else {
            failed.wait();
            group.barrier().wait().unwrap_err()
        };
        // The model's own group is gone with it: the group of all ranks knows that somebody hangs.
        drop((ddp, model));
        let report = heartbeat.report(&error, &|_| None);
        assert!(report.is_some(), "{error}");
        error.to_string()
    });
    let reason = "in a module's forward or backward pass: rank 0 waited";
    for error in errors {
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("for rank 1 in all_reduce"), "{error}");
    }
}

#[test]
fn layers_in_another_order_end_the_step_on_all_ranks() {
    let errors = on_ranks(2, |group| {
        let device = Device::flex().autodiff();
        let norm = || BatchNormConfig::new(2).init(&device);
        let norms = synchronize_batch_norms(vec![norm(), norm()], &group).unwrap();
        let _output = norms[group.rank()].forward(Tensor::<2>::ones([3, 2], &device));
        group.barrier().wait().unwrap_err().to_string()
    });
    for error in errors {
        error.assert_contains([
            "another rank is at another layer or call",
            "check that every rank runs the same layers in the same order",
            "`without_samples`",
        ]);
    }
}

#[test]
fn a_model_with_burns_own_norms_is_refused_by_all_ranks() {
    on_ranks(2, |group| {
        let model: Vec<burns::BatchNorm> =
            vec![burns::BatchNormConfig::new(2).init(&Device::flex())];
        let error = synchronize_batch_norms(model, &group).unwrap_err();
        assert!(
            error.to_string().contains("import it from `everburn::nn`"),
            "{error}"
        );
        // The group is as good as before.
        group.barrier().wait().unwrap();
    });
}

#[test]
fn a_model_trains_on_after_its_statistics_have_been_synchronised() {
    // The model outlives the group: detached, it trains alone.
    let means = on_ranks(2, |group| {
        let device = Device::flex().autodiff();
        let norm = BatchNormConfig::new(1).with_momentum(1.0).init(&device);
        let norm = synchronize_batch_norms(norm, &group).unwrap();
        let input = Tensor::<2>::full([1, 1], group.rank() as f32 * 2.0, &device);
        let _output = norm.forward(input.clone());
        let together = norm.running_mean.value_sync().into_scalar::<f32>();
        let norm = everburn_nn::isolate_batch_norms(norm);
        group.destroy().unwrap();
        let _output = norm.forward(input);
        (
            together,
            norm.running_mean.value_sync().into_scalar::<f32>(),
        )
    });
    assert_eq!(means, [(1.0, 0.0), (1.0, 2.0)]);
}
