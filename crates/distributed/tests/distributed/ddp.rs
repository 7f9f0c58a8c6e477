//! Replicas start equal, stay equal, and are compared.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_distributed::{Ddp, DdpConfig, DdpError, share_of};

use crate::models::{assert_close, rows, values};
use crate::ranks::on_ranks;

#[test]
fn small_buckets_change_nothing() {
    let train = |bucket_bytes: usize| {
        on_ranks(2, move |group| {
            let device = Device::flex().autodiff();
            let model = Linear::from_fixed(&device);
            let (ddp, mut model) = Ddp::new(
                model,
                group,
                DdpConfig {
                    bucket_bytes,
                    first_bucket_bytes: bucket_bytes,
                    ..Default::default()
                },
            )
            .unwrap();
            let mut optimizer = SgdConfig::new().init();
            for _ in 0..3 {
                let mine = rows(4, &device).slice([share_of(4, ddp.group().rank(), 2)]);
                let loss = model.forward(mine).powf_scalar(2.0).mean();
                let local = GradientsParams::from_grads(loss.backward(), &model);
                let synced = ddp.sync_gradients(&model, local, 2).unwrap();
                model = optimizer.step(0.1, model, synced.gradients);
            }
            ddp.verify_replicas(&model).unwrap();
            values(model.weight.val())
        })
    };
    assert_eq!(train(1), train(1 << 20));
}

trait FromFixed {
    fn from_fixed(device: &Device) -> Self;
}

impl FromFixed for Linear {
    fn from_fixed(device: &Device) -> Self {
        // Nothing random: tests beside this one draw from the same generator.
        let mut linear = LinearConfig::new(4, 2).with_bias(false).init(device);
        let numbers = (0..8).map(|i| i as f32 / 8.0 - 0.5).collect::<Vec<_>>();
        linear.weight = Param::from_data(TensorData::new(numbers, [4, 2]), device);
        linear
    }
}

#[test]
fn every_rank_starts_from_rank_zero() {
    let weights = on_ranks(4, |group| {
        let device = Device::flex().autodiff();
        let constant = group.rank() as f32;
        let mut model = LinearConfig::new(3, 2).init(&device);
        model.weight = model
            .weight
            .map(|w| (w * 0.0 + constant).detach().require_grad());
        let (_, model) = Ddp::new(model, group, DdpConfig::default()).unwrap();
        assert!(model.weight.val().is_require_grad());
        values(model.weight.val())
    });
    assert_eq!(weights, vec![vec![0.0; 6]; 4]);
}

#[test]
fn ranks_that_keep_their_gradients_start_from_rank_zero_and_are_compared() {
    let weights = on_ranks(3, |group| {
        let device = Device::flex().autodiff();
        let rank = group.rank();
        let mut model = Linear::from_fixed(&device);
        if rank == 1 {
            model.weight = model.weight.map(|w| (w * 0.0).detach().require_grad());
        }
        let (ddp, mut model) = Ddp::without_gradients(model, group, DdpConfig::default()).unwrap();
        assert!(!ddp.synchronizes_gradients());
        ddp.verify_replicas(&model).unwrap();
        let weights = values(model.weight.val());
        if rank == 2 {
            model.weight = model.weight.map(|w| (w + 1.0).detach().require_grad());
        }
        let found = ddp.find_divergence(&model).unwrap().unwrap();
        assert_eq!((found.ranks, found.trusted), (vec![2], Some(0)));
        weights
    });
    let expected = values(Linear::from_fixed(&Device::flex()).weight.val());
    assert_eq!(weights, vec![expected; 3]);
}

#[test]
fn different_models_are_named_on_every_rank() {
    let errors = on_ranks(3, |group| {
        let device = Device::flex().autodiff();
        let width = if group.rank() == 2 { 5 } else { 4 };
        let model = LinearConfig::new(width, 2).init(&device);
        Ddp::new(model, group, DdpConfig::default())
            .unwrap_err()
            .to_string()
    });
    for error in errors {
        assert!(error.contains("rank 2 has built another model"), "{error}");
        assert!(
            error.contains("[5, 2]") && error.contains("[4, 2]"),
            "{error}"
        );
    }
}

#[test]
fn diverged_replicas_are_named_on_every_rank() {
    let errors = on_ranks(3, |group| {
        let device = Device::flex().autodiff();
        let (ddp, mut model) = Ddp::new(
            LinearConfig::new(3, 2).init(&device),
            group,
            DdpConfig::default(),
        )
        .unwrap();
        if ddp.group().rank() == 1 {
            model.bias = model.bias.map(|bias| bias.map(|b| b + 1e-7));
        }
        ddp.verify_replicas(&model).unwrap_err()
    });
    for error in errors {
        match error {
            DdpError::Diverged { rank, parameter } => assert_eq!((rank, &*parameter), (1, "bias")),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_step_without_any_sample_is_refused() {
    on_ranks(2, |group| {
        let device = Device::flex().autodiff();
        let (ddp, model) = Ddp::new(
            LinearConfig::new(3, 2).init(&device),
            group,
            DdpConfig::default(),
        )
        .unwrap();
        let error = ddp
            .sync_gradients(&model, GradientsParams::new(), 0)
            .unwrap_err();
        assert!(matches!(error, DdpError::NoSamples), "{error}");
    });
}

#[test]
fn running_statistics_are_averaged_and_frozen_parameters_keep_their_bits() {
    #[derive(Module, Debug)]
    struct Normed {
        norm: BatchNorm,
        frozen: Linear,
    }
    let ranks = on_ranks(3, |group| {
        let device = Device::flex().autodiff();
        let model = Normed {
            norm: BatchNormConfig::new(2).init(&device),
            frozen: LinearConfig::new(3, 3).init(&device).no_grad(),
        };
        let (ddp, model) = Ddp::new(model, group, DdpConfig::default()).unwrap();
        let before = model.frozen.weight.val().into_data();
        let value = ddp.group().rank() as f32 * 3.0;
        let batch = Tensor::<2>::full([4, 2], value, &device);
        drop(model.norm.forward(batch));
        let model = ddp.synchronize_buffers(model).unwrap();
        ddp.verify_replicas(&model).unwrap();
        assert_eq!(model.frozen.weight.val().into_data(), before);
        values(model.norm.running_mean.value())
    });
    // Momentum 0.1 of batch means 0, 3 and 6.
    for mean in ranks {
        assert_close(&mean, &[0.3, 0.3]);
    }
}
