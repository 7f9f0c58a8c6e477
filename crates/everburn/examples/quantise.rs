//! Trains `mnist`, then keeps its weights in 8 bits, by Burn's own quantisation after the training:
//!
//! ```sh
//! cargo run --release --example quantise
//! ```
//!
//! Each weight matrix or kernel becomes a byte a number and one scale. What is computed is still `f32`: the
//! weights are turned back when they are loaded, so it is memory and files that become smaller.

#![allow(clippy::print_stdout)] // what an example is for

use std::error::Error;

use everburn::burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Quantizer};
use everburn::burn::prelude::*;
use everburn::burn::tensor::DType;
use everburn::burn::tensor::quantization::{
    Calibration, QuantScheme, QuantStore, QuantValue, ScaleDtype,
};
use everburn::prelude::*;
use everburn::train::LabeledBatch;
use everburn_datasets::{DataRequest, ImageBatcher, ImageItem, LoadedData, load};
use everburn_models::mnist::{Mnist, MnistConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let data = load(&DataRequest::default())?;
    println!("data: {}", data.description);
    let [full, quantised] = train_and_quantise(&data, 2)?;
    println!("mnist in f32:  {full}");
    println!("mnist in int8: {quantised}");
    Ok(())
}

/// How large a model is, and how good.
#[derive(Debug, Clone, Copy)]
struct ModelScore {
    /// Bytes of all parameters, scales included.
    bytes: usize,
    /// The share of test images whose class it finds.
    accuracy: f64,
}

impl std::fmt::Display for ModelScore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bytes, accuracy } = self;
        write!(
            f,
            "{bytes:>6} bytes, test accuracy {:.2} %",
            100.0 * accuracy
        )
    }
}

/// The model as it was trained, and with weights of 8 bits.
fn train_and_quantise(data: &LoadedData, epochs: usize) -> Result<[ModelScore; 2], Box<dyn Error>> {
    let (train, test) = (data.train.clone(), data.test.clone());
    let data = TrainingData::new(&data.description.name, train, test, ImageBatcher::unit())
        .with_origin(&data.description.origin);
    let config = TrainingConfig {
        epochs,
        ..TrainingConfig::default()
    };
    let trainer = Trainer::new(config, ProcessGroup::alone(GroupOptions::default()));
    trainer.seed();
    let model = Classifier::new(MnistConfig::new().init(&trainer.device), Mnist::forward);
    let (model, _) = trainer.fit(model, &data)?;
    let full = measure(&trainer, &model, &data)?;

    let quantised = model.valid().map(&mut Weights(quantizer()));
    let bytes = bytes_of(&quantised);
    let loaded = quantised.map(&mut Dequantise);
    let int8 = ModelScore {
        bytes,
        ..measure(&trainer, &loaded, &data)?
    };
    Ok([full, int8])
}

/// Symmetric, from the least to the greatest number of each tensor.
fn quantizer() -> Quantizer {
    let scheme = QuantScheme::default()
        .with_value(QuantValue::Q8S)
        .with_store(QuantStore::Native)
        .per_tensor(ScaleDtype::F32);
    Quantizer::new(Calibration::MinMax, scheme)
}

/// Quantises what has two dimensions or more: biases are few, and all of a layer's outputs hang on them.
struct Weights(Quantizer);

impl ModuleMapper for Weights {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match D {
            0 | 1 => param,
            _ => self.0.map_float(param),
        }
    }
}

/// Turns quantised tensors back.
struct Dequantise;

impl ModuleMapper for Dequantise {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| match tensor.dtype() {
            DType::QFloat(_) => tensor.dequantize(),
            _ => tensor,
        })
    }
}

fn measure(
    trainer: &Trainer,
    model: &Classifier<Mnist, 4>,
    data: &TrainingData<ImageItem, LabeledBatch<4>>,
) -> Result<ModelScore, Box<dyn Error>> {
    let sums = trainer.evaluate(model, data)?;
    Ok(ModelScore {
        bytes: bytes_of(model),
        accuracy: sums
            .ok_or("the evaluation was stopped")?
            .accuracy()
            .ok_or("a classifier has an accuracy")?,
    })
}

fn bytes_of<M: Module>(model: &M) -> usize {
    struct Bytes(usize);
    impl ModuleVisitor for Bytes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 += param.val().into_data().as_bytes().len();
        }
    }
    let mut bytes = Bytes(0);
    model.visit(&mut bytes);
    bytes.0
}

#[cfg(test)]
mod tests {
    use everburn_datasets::DataChoice;

    use super::*;

    #[test]
    fn eight_bits_are_a_quarter_of_the_size_and_lose_under_half_a_point() {
        let data = load(&DataRequest {
            choice: DataChoice::Synthetic,
            limits: Some((6_000, 2_000)),
            ..DataRequest::default()
        });
        let [full, int8] = train_and_quantise(&data.unwrap(), 2).unwrap();
        assert_eq!(full.bytes, 4 * 21_840);
        assert!(100 * int8.bytes < 27 * full.bytes, "{int8}");
        assert!(full.accuracy > 0.8, "{full}");
        assert!(int8.accuracy > full.accuracy - 0.005, "{full}, then {int8}");
    }

    #[test]
    fn what_is_quantised_holds_bytes_and_comes_back_within_half_a_step() {
        let device = Device::flex();
        let layer = nn::LinearConfig::new(40, 30).init(&device);
        let quantised = layer.clone().map(&mut Weights(quantizer()));
        assert!(matches!(quantised.weight.val().dtype(), DType::QFloat(_)));
        assert!(matches!(
            quantised.bias.as_ref().unwrap().val().dtype(),
            DType::F32
        ));
        assert!(bytes_of(&quantised) < 40 * 30 + 4 * 30 + 64);
        let loaded = quantised.map(&mut Dequantise);
        let (before, after) = (layer.weight.val(), loaded.weight.val());
        let largest = before.clone().abs().max().into_scalar::<f64>();
        let apart = (before - after).abs().max().into_scalar::<f64>();
        assert!(apart > 0.0 && apart <= 0.51 * largest / 127.0, "{apart:e}");
    }
}
