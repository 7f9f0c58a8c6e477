//! Ours are Burn's for all who use them.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv as burns;
use burn::nn::pool;
use burn::prelude::*;
use burn::store::ModuleRecord;
use everburn_nn::conv::{Conv2d, Conv2dConfig};
use everburn_nn::pool::{AvgPool2d, AvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use everburn_nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, parameter_paths};

use super::comparison::{tensor, values};

#[derive(Module, Debug)]
struct Ours {
    conv: Conv2d,
    pool: MaxPool2d,
    mean: AvgPool2d,
    last: Option<Conv2d>,
    norm: LayerNorm,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Burns {
    conv: burns::Conv2d,
    pool: pool::MaxPool2d,
    mean: pool::AvgPool2d,
    last: Option<burns::Conv2d>,
    norm: nn::LayerNorm,
    dropout: nn::Dropout,
}

fn ours(device: &Device) -> Ours {
    Ours {
        conv: Conv2dConfig::new([3, 6], [3, 3])
            .with_groups(3)
            .init(device),
        pool: MaxPool2dConfig::new([2, 2]).init(),
        mean: AvgPool2dConfig::new([2, 2]).with_strides([1, 1]).init(),
        last: Some(
            Conv2dConfig::new([6, 2], [2, 2])
                .with_padding(PaddingConfig2d::Same)
                .with_bias(false)
                .init(device),
        ),
        norm: LayerNormConfig::new(5).init(device),
        dropout: DropoutConfig::new(0.3).init(),
    }
}

fn burns(device: &Device) -> Burns {
    Burns {
        conv: burns::Conv2dConfig::new([3, 6], [3, 3])
            .with_groups(3)
            .init(device),
        pool: pool::MaxPool2dConfig::new([2, 2]).init(),
        mean: pool::AvgPool2dConfig::new([2, 2])
            .with_strides([1, 1])
            .init(),
        last: Some(
            burns::Conv2dConfig::new([6, 2], [2, 2])
                .with_padding(PaddingConfig2d::Same)
                .with_bias(false)
                .init(device),
        ),
        norm: nn::LayerNormConfig::new(5).init(device),
        dropout: nn::DropoutConfig::new(0.3).init(),
    }
}

#[test]
fn a_checkpoint_loads_either_way() {
    let device = Device::flex();
    let (ours, burns) = (ours(&device), burns(&device));
    assert_eq!(parameter_paths(&ours), parameter_paths(&burns));
    let bytes = |record: ModuleRecord| record.into_bytes().unwrap();
    let of_burns = bytes(burns.clone().into_record());
    let ours = ours.load_record(ModuleRecord::from_bytes(of_burns.clone()).unwrap());
    assert_eq!(&bytes(ours.clone().into_record())[..], &of_burns[..]);
    let input = tensor([2, 3, 9, 9], 1, &device);
    let theirs = {
        let hidden = burns
            .mean
            .forward(burns.pool.forward(burns.conv.forward(input.clone())));
        values(burns.last.as_ref().unwrap().forward(hidden))
    };
    let hidden = ours
        .mean
        .forward(ours.pool.forward(ours.conv.forward(input)));
    let ours = values(ours.last.as_ref().unwrap().forward(hidden));
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!((ours - theirs).abs() < 1e-5, "{ours} {theirs}");
    }
}

#[test]
fn they_are_printed_as_burns() {
    let device = Device::flex();
    let printed = |text: String| text.replace("Ours", "Burns");
    assert_eq!(
        printed(ours(&device).to_string()),
        burns(&device).to_string()
    );
}
