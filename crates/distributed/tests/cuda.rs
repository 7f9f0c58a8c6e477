//! Burn's tensors on real GPUs. `cargo xtask test` runs these tests where there are GPUs and NCCL, and says why
//! not where there are none. Ranks are threads here.

use std::sync::Arc;

use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::prelude::*;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{
    CommunicationHookConfig, CubeMemory, Ddp, DdpConfig, DeviceCollective, DeviceCommunicator,
    DeviceMemory, DeviceName, GradientBucket, HostCommunicator, ModuleRanks, NcclCommunicator,
    NcclWait, ParameterShards, ShardStage, kernel_timer, share_of,
};
use everburn_nccl::{Library, NcclBackend, gpus};
use everburn_nn::StatisticsGroup;
use everburn_tests::in_parallel;

/// How far apart sums in another order may be.
const TOLERANCE: f32 = 1e-4;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Nccl,
    NcclAndHostWaits,
    Staged,
}

fn number_of_gpus() -> usize {
    gpus().unwrap_or_else(|error| panic!("{error}")).gpus.len()
}

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
    unused: Linear,
}

impl Mlp {
    /// More parameters than one launch of the kernel takes, of lengths that fit no alignment.
    fn new(device: &Device) -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let mut layers = vec![layer(5, 33)];
        layers.extend((0..40).map(|_| layer(33, 33)));
        layers.push(layer(33, 3));
        Self {
            layers,
            unused: layer(2, 2),
        }
    }

    fn loss(&self, rows: Tensor<2>) -> Tensor<1> {
        let (last, others) = self.layers.split_last().expect("there are layers");
        let hidden = others
            .iter()
            .fold(rows, |rows, layer| layer.forward(rows).tanh());
        last.forward(hidden).powf_scalar(2.0).mean()
    }
}

fn rows(count: usize, device: &Device) -> Tensor<2> {
    let numbers = (0..count * 5).map(|index| ((index * 37 % 19) as f32 - 9.0) / 7.0);
    let data = TensorData::new(numbers.collect::<Vec<f32>>(), [count, 5]);
    Tensor::from_data(data, device)
}

fn gradients_of(model: &Mlp, gradients: &GradientsParams) -> Vec<Vec<f32>> {
    let weights = model.layers.iter().map(|layer| {
        let gradient = gradients.get::<2>(layer.weight.id).expect("it was used");
        gradient.into_data().iter::<f32>().collect()
    });
    weights.collect()
}

fn assert_close(found: &[Vec<f32>], expected: &[Vec<f32>]) {
    let numbers = |of: &[Vec<f32>]| of.iter().flatten().count();
    assert_eq!(numbers(found), numbers(expected));
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        let scale = expected.abs().max(1e-2);
        assert!(
            (found - expected).abs() <= TOLERANCE * scale,
            "{found} and {expected}"
        );
    }
}

/// Runs `work` on ranks that are threads, on the GPUs `devices`.
fn on_gpus(
    devices: &[usize],
    way: Way,
    work: impl Fn(Ddp, Mlp, &Device) + Sync,
    config: DdpConfig,
) {
    let library = Library::load().map(Arc::new);
    let groups = ProcessGroup::over_threads(devices.len(), GroupOptions::default());
    let model = Mlp::new(&Device::flex());
    let ranks = groups.into_iter().zip(devices);
    let ranks = ranks.map(|(group, number)| (group, *number, model.clone()));
    in_parallel(ranks, |(group, number, model)| {
        let device = Device::cuda(number).autodiff();
        let communicator: Arc<dyn DeviceCommunicator> = match way {
            Way::Staged => {
                let own = group.duplicate("gradients").unwrap();
                Arc::new(HostCommunicator::start(own).unwrap())
            }
            Way::Nccl | Way::NcclAndHostWaits => {
                let library = library.as_ref().unwrap_or_else(|error| panic!("{error}"));
                let waits = match way {
                    Way::Nccl => NcclWait::Device,
                    _ => NcclWait::Host,
                };
                let backend = NcclBackend::connect(library.on_gpu(number), &group);
                let memory = Arc::new(CubeMemory);
                Arc::new(NcclCommunicator::new(backend.unwrap(), memory, waits))
            }
        };
        let model = model.fork(&device);
        let (ddp, model) = Ddp::with_communicator(model, group, config, communicator).unwrap();
        work(ddp, model, &device);
    });
}

/// The gradients of one device on the processor, over all rows.
fn whole(model: &Mlp, samples: usize) -> Vec<Vec<f32>> {
    let device = Device::flex().autodiff();
    let model = model.clone().fork(&device);
    let loss = model.loss(rows(samples, &device));
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    gradients_of(&model, &gradients)
}

fn steps_equal_the_processors(devices: &[usize], way: Way, config: DdpConfig) {
    on_gpus(
        devices,
        way,
        |ddp, mut model, device| {
            let mut optimizer = SgdConfig::new().init();
            for _ in 0..3 {
                let expected = whole(&model, 7);
                let share = share_of(7, ddp.group().rank(), ddp.group().world_size());
                let step = ddp.begin(share.len()).unwrap();
                if !share.is_empty() {
                    let watched = step.with_hooks(&model, share.len());
                    let mine = rows(7, device).slice([share]);
                    drop(watched.loss(mine).backward());
                }
                let synced = step.finish(&model).unwrap();
                assert!(synced.gradients.get::<2>(model.unused.weight.id).is_none());
                let found = gradients_of(&model, &synced.gradients);
                match &synced.norm {
                    None => assert_close(&found, &expected),
                    Some(norm) => assert!(norm.read().unwrap() > 0.0),
                }
                model = optimizer.step(0.01, model, synced.gradients);
            }
            ddp.settle().unwrap();
            ddp.verify_replicas(&model).unwrap();
        },
        config,
    );
}

/// Steps whose gradients are scattered and whose parameters are gathered: the parameters are those of the processor.
fn sharded_steps_equal_the_processors(devices: &[usize]) {
    let config = DdpConfig {
        shard: Some(ShardStage::Gradients),
        ..small_buckets()
    };
    let weights = |model: &Mlp| -> Vec<Vec<f32>> {
        let weights = model.layers.iter().map(|layer| {
            let weight = layer.weight.val().into_data();
            weight.iter::<f32>().collect()
        });
        weights.collect()
    };
    on_gpus(
        devices,
        Way::Nccl,
        |ddp, model, device| {
            let processor = Device::flex().autodiff();
            let mut expected = model.clone().fork(&processor);
            let mut of_shards = SgdConfig::new().init();
            let mut of_processor = SgdConfig::new().init();
            let (mut shards, mut model) = ParameterShards::new(model, &ddp, None).unwrap();
            for _ in 0..3 {
                let share = share_of(7, ddp.group().rank(), ddp.group().world_size());
                let step = ddp.begin(share.len()).unwrap();
                if !share.is_empty() {
                    let watched = step.with_hooks(&model, share.len());
                    drop(watched.loss(rows(7, device).slice([share])).backward());
                }
                let synced = shards.average(step.finish_sharded().unwrap()).unwrap();
                let updated = shards.update(model, synced.gradients, |local, gradients| {
                    of_shards.step(0.01, local, gradients)
                });
                model = updated.unwrap();
                let gradients = expected.loss(rows(7, &processor)).backward();
                let gradients = GradientsParams::from_grads(gradients, &expected);
                expected = of_processor.step(0.01, expected, gradients);
            }
            let model = shards.settle(model).unwrap();
            ddp.verify_replicas(&model).unwrap();
            assert_close(&weights(&model), &weights(&expected));
        },
        config,
    );
}

/// Buckets of several sizes.
fn small_buckets() -> DdpConfig {
    DdpConfig {
        bucket_bytes: 40_000,
        first_bucket_bytes: 1000,
        ..DdpConfig::default()
    }
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn one_rank_by_nccl_has_the_gradients_of_the_processor() {
    for way in [Way::Nccl, Way::NcclAndHostWaits] {
        steps_equal_the_processors(&[0], way, small_buckets());
        steps_equal_the_processors(&[0], way, DdpConfig::default());
    }
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn ranks_that_share_a_gpu_go_through_host_memory() {
    for ranks in [1, 2, 4] {
        steps_equal_the_processors(&vec![0; ranks], Way::Staged, small_buckets());
    }
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn a_bucket_that_the_gpu_rounds_has_the_bits_of_the_hook() {
    for hook in [CommunicationHookConfig::Fp16, CommunicationHookConfig::Bf16] {
        let groups = ProcessGroup::over_threads(2, GroupOptions::default());
        in_parallel(groups, |group| {
            let own = group.duplicate("gradients").unwrap();
            let communicator = HostCommunicator::with_hook(own, hook).unwrap();
            let mut on_host = hook.build();
            let seed = 7919 + 104 * group.rank();
            for scale in [1e-3, 1e-3, 1e-3, 1e9, 1e-9, 1e-9] {
                let number = |i: usize| ((i * seed % 10_007) as f32 - 5003.0) * scale;
                let mut values: Vec<f32> = (0..10_000).map(number).collect();
                let data = TensorData::new(values.clone(), [values.len()]);
                let numbers = Tensor::<1>::from_data(data, &Device::cuda(0));
                let sum = communicator.begin(0, numbers).unwrap().collect().unwrap();
                let bucket = GradientBucket {
                    index: 0,
                    slots: &[],
                    values: &mut values,
                };
                let bytes = on_host.reduce(bucket, &group).unwrap();
                assert_eq!(communicator.take_bytes(), Some(bytes), "{hook} {scale}");
                let found: Vec<f32> = sum.into_data().iter().collect();
                assert_eq!(found, values, "{hook} {scale}");
            }
        });
    }
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn gradients_are_clipped_on_the_gpu() {
    let config = DdpConfig {
        max_gradient_norm: Some(0.1),
        ..small_buckets()
    };
    steps_equal_the_processors(&[0], Way::Nccl, config);
    steps_equal_the_processors(&[0, 0], Way::Staged, config);
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn memory_that_is_lent_comes_back_as_the_same_tensor() {
    let device = Device::cuda(0);
    let name = DeviceName::of(&device.clone().autodiff());
    assert_eq!(name, Some(DeviceName::Cuda(0)));
    let numbers: Vec<f32> = (0..1000u16).map(f32::from).collect();
    let data = TensorData::new(numbers, [1000]);
    let numbers = Tensor::<1>::from_data(data, &device);
    let lent = CubeMemory.lend(numbers).unwrap();
    assert_eq!(lent.buffer().len(), 1000);
    CubeMemory.synchronize(&device).unwrap();
    let back = CubeMemory.take_back(lent).unwrap();
    let sum = (back * 2.0).sum().into_scalar::<f32>();
    assert_eq!(sum, 999_000.0);
}

/// One rank, alone on the first GPU.
fn alone() -> (ProcessGroup, Arc<dyn DeviceCommunicator>) {
    let library = Arc::new(Library::load().unwrap_or_else(|error| panic!("{error}")));
    let group = ProcessGroup::alone(GroupOptions::default());
    let backend = NcclBackend::connect(library.on_gpu(0), &group).unwrap();
    let communicator = NcclCommunicator::new(backend, Arc::new(CubeMemory), NcclWait::Device);
    (group, Arc::new(communicator))
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn tensors_are_scattered_gathered_and_summed_where_they_are() {
    let (group, communicator) = alone();
    let numbers: Vec<f32> = (0..1000u16).map(f32::from).collect();
    for collective in [
        DeviceCollective::ReduceScatter { bucket: 0 },
        DeviceCollective::AllGather,
        DeviceCollective::AllReduce,
    ] {
        // Many at once, whose memory is used again while others are under way.
        let begun: Vec<_> = (0..20u8)
            .map(|factor| {
                let data = TensorData::new(numbers.clone(), [1000]);
                let own = Tensor::<1>::from_data(data, &Device::cuda(0)) * f32::from(factor);
                communicator.begin_collective(collective, own).unwrap()
            })
            .collect();
        for (factor, result) in (0..20u8).zip(begun) {
            let sum = result.collect().unwrap().sum().into_scalar::<f32>();
            assert_eq!(sum, 499_500.0 * f32::from(factor), "{collective}");
        }
    }
    // Statistics of batch norms are summed in f64.
    let ranks = ModuleRanks::new(&group)
        .unwrap()
        .with_communicator(&communicator);
    let on_device = StatisticsGroup::on_device(&ranks).expect("NCCL sums there");
    let own = Tensor::<1>::full([3], 1.0 / 3.0, (&Device::cuda(0), burn::tensor::DType::F64));
    let sums = on_device.all_reduce(own).unwrap().into_data();
    assert_eq!(sums.iter::<f64>().collect::<Vec<_>>(), [1.0 / 3.0; 3]);
    communicator.settle().unwrap();
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn gradients_that_are_sharded_by_nccl_are_those_of_the_processor() {
    sharded_steps_equal_the_processors(&[0]);
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn kernels_are_timed_one_by_one() {
    let device = Device::cuda(0);
    let mut timer = kernel_timer(&device).unwrap();
    let product = || {
        let numbers = Tensor::<2>::ones([512, 512], &device);
        numbers.clone().matmul(numbers).sum().into_scalar::<f32>()
    };
    product();
    timer.begin();
    let since = std::time::Instant::now();
    assert_eq!(product(), 512.0 * 512.0 * 512.0);
    let all = since.elapsed();
    let kernels = timer.end();
    assert!(!kernels.is_empty());
    assert!(kernels.iter().all(|kernel| kernel.asked >= since));
    let busy: std::time::Duration = kernels.iter().map(|kernel| kernel.took).sum();
    assert!(!busy.is_zero() && busy <= all, "{busy:?} of {all:?}");
    // Nobody watches any more.
    product();
    assert!(timer.end().is_empty());
}

/// `cargo xtask test` lists these as skipped where there is one GPU.
mod two_gpus {
    use super::*;

    #[test]
    #[ignore = "needs two GPUs and NCCL: cargo xtask test runs it where there are"]
    fn ranks_with_gpus_of_their_own_exchange_by_nccl() {
        let count = number_of_gpus().min(4);
        assert!(count > 1, "needs two GPUs");
        let devices: Vec<usize> = (0..count).collect();
        for way in [Way::Nccl, Way::NcclAndHostWaits] {
            steps_equal_the_processors(&devices, way, small_buckets());
        }
        sharded_steps_equal_the_processors(&devices);
    }
}
