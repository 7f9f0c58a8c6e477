//! A model of Burn's is the same model with `everburn_nn` in the place of `burn::nn`.

mod burns;
mod ours;
mod transformers;

use std::fmt::Display;

use burn::module::Module;
use burn::prelude::*;
use burn::store::ModuleRecord;
use everburn_nn::parameter_paths;

use crate::alone::alone;
use crate::numbers::{all_gradients, assert_close, tensor, values};

/// A model that a step of training can be made with.
pub trait Trains: Module + Display {
    fn new(device: &Device) -> Self;

    /// The loss of one batch, always the same.
    fn loss(&self, device: &Device) -> Tensor<1>;
}

pub fn images<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    tensor(5, shape, device)
}

pub fn labels(count: usize, classes: usize, device: &Device) -> Tensor<1, Int> {
    let labels: Vec<i32> = (0..count).map(|row| (row * 7 % classes) as i32).collect();
    Tensor::from_data(labels.as_slice(), device)
}

/// Texts of unequal length.
pub fn words() -> Vec<Vec<usize>> {
    let text = |length: usize| (0..length).map(|word| 1 + word * 11 % 49).collect();
    [12, 5, 9].map(text).to_vec()
}

fn bytes<M: Module>(model: &M) -> burn::tensor::Bytes {
    model.clone().into_record().into_bytes().unwrap()
}

fn loaded<M: Module>(model: M, record: &[u8]) -> M {
    let record = burn::tensor::Bytes::from_bytes_vec(record.to_vec());
    model.load_record(ModuleRecord::from_bytes(record).unwrap())
}

/// A step of both from one record gives the same loss, gradients and running statistics.
fn compute_the_same<Burns: Trains, Ours: Trains>() {
    let device = Device::flex().autodiff();
    // Of parameters drawn at random, some may make a sum so near to zero that rounding decides its sign, and a gradient.
    device.seed(17);
    let burns = Burns::new(&device);
    let ours = loaded(Ours::new(&device), &bytes(&burns));
    assert_eq!(parameter_paths(&ours), parameter_paths(&burns));

    let (their_loss, our_loss) = (burns.loss(&device), ours.loss(&device));
    assert_close(&values(our_loss.clone()), &values(their_loss.clone()));
    let theirs = all_gradients(&burns, &their_loss.backward());
    let of_ours = all_gradients(&ours, &our_loss.backward());
    assert_eq!(of_ours.len(), theirs.len());
    for ((path, ours), (their_path, theirs)) in of_ours.iter().zip(&theirs) {
        assert_eq!(path, their_path);
        match (ours, theirs) {
            (Some(ours), Some(theirs)) => assert_close(ours, theirs),
            (ours, theirs) => assert_eq!(ours, theirs, "{path}"),
        }
    }
    // What the step has left, without autodiff.
    let inference = Device::flex();
    let (burns, ours) = (burns.valid(), ours.valid());
    let (theirs, of_ours) = (burns.loss(&inference), ours.loss(&inference));
    assert_close(&values(of_ours), &values(theirs.clone()));
    let back = loaded(Burns::new(&inference), &bytes(&ours));
    assert_close(&values(back.loss(&inference)), &values(theirs));
}

/// From one seed both draw the same parameters.
fn begin_the_same<Burns: Trains, Ours: Trains>() {
    let device = Device::flex();
    let (burns, ours) = (Burns::new(&device), Ours::new(&device));
    // A record draws what is not drawn yet, in its own order.
    device.seed(17);
    let of_burns = loaded(Ours::new(&device), &bytes(&burns));
    device.seed(17);
    let own = loaded(Ours::new(&device), &bytes(&ours));
    assert_eq!(values(own.loss(&device)), values(of_burns.loss(&device)));
    assert_eq!(ours.to_string(), burns.to_string());
    assert_eq!(ours.num_params(), burns.num_params());
}

macro_rules! mirrored {
    ($($test:ident: $model:ident,)+) => {$(
        mod $test {
            use super::*;

            #[test]
            fn computes_the_same() {
                // Other tests draw from the same generator.
                alone(|| compute_the_same::<burns::models::$model, ours::models::$model>());
            }

            #[test]
            fn begins_the_same() {
                alone(|| begin_the_same::<burns::models::$model, ours::models::$model>());
            }
        }
    )+};
}

mirrored! {
    the_net_of_the_guide: Guide,
    the_text_classifier: TextClassifier,
    a_residual_net: ResNet,
    a_recurrent_net: Recurrent,
}

macro_rules! the_same_configurations {
    ($($config:ident $(::$part:ident)* ($($argument:expr),*),)+) => {$(
        assert_eq!(
            everburn_nn::$config$(::$part)*($($argument),*).to_string(),
            burn::nn::$config$(::$part)*($($argument),*).to_string()
        );
    )+};
}

#[test]
fn configurations_are_burns() {
    the_same_configurations! {
        LinearConfig::new(2, 3),
        LayerNormConfig::new(2),
        BatchNormConfig::new(2),
        DropoutConfig::new(0.2),
        EmbeddingConfig::new(5, 2),
        conv::Conv2dConfig::new([2, 4], [3, 1]),
        pool::MaxPool2dConfig::new([2, 3]),
        pool::AvgPool2dConfig::new([2, 3]),
        pool::AdaptiveAvgPool2dConfig::new([2, 3]),
        attention::MultiHeadAttentionConfig::new(8, 2),
        transformer::TransformerEncoderConfig::new(8, 32, 2, 3),
        transformer::PositionWiseFeedForwardConfig::new(8, 32),
        loss::CrossEntropyLossConfig::new(),
    }
    let ours = everburn_nn::norm::NormalizationConfig::from(everburn_nn::BatchNormConfig::new(3));
    let burns = nn::norm::NormalizationConfig::from(nn::BatchNormConfig::new(3));
    assert_eq!(ours.to_string(), burns.to_string());
}
