//! Buckets of devices that go through host memory in 16 bits, beside the communication hooks that do it on processors.

use std::sync::Arc;

use burn::prelude::*;
use burn::tensor::{DType, TensorData};
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{
    CommunicationHookConfig, Ddp, DdpConfig, DeviceCommunicator, GradientBucket, HostCommunicator,
};

use super::ways::model;
use crate::communication_hooks::ranks::{WORLD_SIZES, bits, random};
use crate::models::values;
use crate::ranks::on_ranks;
use crate::steps::{all_values, overlapped, small_buckets};

const HOOKS: [&str; 2] = ["fp16", "bf16"];

fn config(hook: &str) -> CommunicationHookConfig {
    hook.parse().unwrap()
}

fn communicator(group: &ProcessGroup, hook: &str) -> HostCommunicator {
    let own = group.duplicate("gradients").unwrap();
    HostCommunicator::with_hook(own, config(hook)).unwrap()
}

fn tensor(values: &[f32]) -> Tensor<1> {
    let data = TensorData::new(values.to_vec(), [values.len()]);
    Tensor::from_data(data, &Device::flex())
}

/// Usual numbers, those that leave the range of the type in both directions, and what is not finite.
fn steps(rank: usize, bucket: usize) -> Vec<Vec<f32>> {
    let scales = [1.0, 0.7, 1e6, 1e6, 1e-20, 1e-20, 0.0, 3.0, f32::MAX, 1.0];
    let scaled = scales.iter().enumerate().map(|(step, scale)| {
        let numbers = random(&[rank, bucket, step], 1025).into_iter();
        let mut numbers: Vec<f32> = numbers.map(|number| number * scale).collect();
        if (rank, step) == (0, 1) {
            numbers[7] = f32::NAN;
            numbers[8] = f32::NEG_INFINITY;
        }
        numbers
    });
    scaled.collect()
}

#[test]
fn a_bucket_of_a_device_gets_the_bits_of_the_hook_and_sends_as_many_bytes() {
    for hook in HOOKS {
        for world_size in WORLD_SIZES {
            on_ranks(world_size, |group| {
                let communicator = communicator(&group, hook);
                let mut on_host = config(hook).build();
                let both = steps(group.rank(), 0).into_iter();
                for (step, both) in both.zip(steps(group.rank(), 1)).enumerate() {
                    // Two buckets are under way together.
                    let mut buckets = [both.0, both.1];
                    let begun: Vec<_> = buckets
                        .iter()
                        .enumerate()
                        .map(|(index, values)| communicator.begin(index, tensor(values)).unwrap())
                        .collect();
                    let mut bytes = 0;
                    for (index, (sum, own)) in begun.into_iter().zip(&mut buckets).enumerate() {
                        let bucket = GradientBucket {
                            index,
                            slots: &[],
                            values: own,
                        };
                        bytes += on_host.reduce(bucket, &group).unwrap();
                        let sum = sum.collect().unwrap();
                        assert_eq!(sum.dtype(), DType::F32);
                        let found = values(sum);
                        assert_eq!(
                            bits(&found),
                            bits(own),
                            "{hook}, {world_size} ranks, step {step}, bucket {index}"
                        );
                    }
                    assert_eq!(
                        communicator.take_bytes(),
                        Some(bytes),
                        "{hook}, step {step}"
                    );
                }
                communicator.settle().unwrap();
            });
        }
    }
}

#[test]
fn a_sum_that_nobody_collects_is_forgotten_on_all_ranks() {
    on_ranks(3, |group| {
        let communicator = communicator(&group, "fp16");
        let begin = || communicator.begin(0, tensor(&[1.0; 100])).unwrap();
        let step = || {
            assert_eq!(values(begin().collect().unwrap()), [3.0; 100]);
            communicator.take_bytes().unwrap()
        };
        assert_eq!([step(), step()], [400, 200]);
        drop(begin());
        // Its scale is that of no sum that all ranks have: it is found again.
        assert_eq!([step(), step()], [400, 200]);
        communicator.settle().unwrap();
    });
}

#[test]
fn other_types_than_f32_go_as_they_are() {
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        on_ranks(2, |group| {
            let communicator = communicator(&group, "bf16");
            let sum = communicator
                .begin(0, tensor(&[1.5; 5]).cast(dtype))
                .unwrap()
                .collect()
                .unwrap();
            assert_eq!(sum.dtype(), dtype);
            assert_eq!(values(sum), [3.0; 5]);
            assert_eq!(communicator.take_bytes(), Some(5 * dtype.size() as u64));
        });
    }
}

#[test]
fn hooks_that_need_gradients_in_host_memory_are_refused() {
    on_ranks(1, |group| {
        let refused = HostCommunicator::with_hook(group, config("power-sgd:2")).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("the communication hook power-sgd:2 is for"));
        assert!(refused.contains("use fp16 or bf16"), "{refused}");
    });
}

#[test]
fn a_step_has_the_bits_of_the_step_on_processors_with_the_hook() {
    for hook in HOOKS {
        for (samples, parts) in [(1, 1), (5, 2), (13, 4)] {
            // A sum of two numbers is rounded alike everywhere.
            on_ranks(2, |group| {
                let device = Device::flex().autodiff();
                let hooked = DdpConfig {
                    communication: config(hook),
                    ..small_buckets()
                };
                let made = Ddp::new(model(&device), group.clone(), hooked);
                let (host, own) = made.unwrap();
                let communicator: Arc<dyn DeviceCommunicator> =
                    Arc::new(communicator(&group, hook));
                let made =
                    Ddp::with_communicator(model(&device), group, small_buckets(), communicator);
                let (ddp, other) = made.unwrap();
                let (mut first, mut last) = (0, 0);
                // From the second step on the buckets are packed in the order of the backward pass.
                for step in 0..4 {
                    let expected = overlapped(&host, &own, samples, parts, true).unwrap();
                    let found = overlapped(&ddp, &other, samples, parts, true).unwrap();
                    assert_eq!(
                        all_values(&other, &found.gradients),
                        all_values(&own, &expected.gradients),
                        "{hook}, {samples} samples in {parts} parts, step {step}"
                    );
                    last = found.communication.bytes;
                    first = first.max(last);
                }
                if hook == "fp16" {
                    assert!(last < first, "{last} of {first} bytes");
                }
                ddp.settle().unwrap();
            });
        }
    }
}
