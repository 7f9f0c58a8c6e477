//! Image models by name.
//!
//! A model is a type, a name is not: [`visit`] turns the one into the other by calling a
//! [`ModelVisitor`] with the concrete module's constructor and forward function.

use std::fmt::Display;

use burn::module::Module;
use burn::prelude::*;

use crate::mlp::{Mlp, MlpConfig};
use crate::mnist::{Mnist, MnistConfig};
use crate::mnist_bn::{MnistBn, MnistBnConfig};
use crate::resnet50::{ResNet50, ResNet50Config, Stem};
use crate::two_part_resnet::{TwoPartResNet, TwoPartResNetConfig};

/// The numbers in which a model takes its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PixelRange {
    /// `0.0..=1.0`
    Unit,
    /// `0.0..=255.0`, as they lie in the file.
    Byte,
}

/// A line of the registry: what is known of a model before it is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelInfo {
    /// The name by which users ask for the model.
    pub name: &'static str,
    /// What the model is, in one line.
    pub summary: &'static str,
    /// The numbers in which the model takes its pixels.
    pub pixels: PixelRange,
}

/// The names and summaries of all models, in the order in which they are listed.
pub const MODELS: [ModelInfo; 5] = [
    ModelInfo {
        name: "mnist",
        summary: "two convolutions and two linear layers",
        pixels: PixelRange::Unit,
    },
    ModelInfo {
        name: "mnist-bn",
        summary: "three convolutions with batch norm, dropout",
        pixels: PixelRange::Byte,
    },
    ModelInfo {
        name: "mlp",
        summary: "a perceptron with hidden layers of 256 and 128",
        pixels: PixelRange::Unit,
    },
    ModelInfo {
        name: "resnet50",
        summary: "the residual net of 50 layers, with a stem for 28 x 28 pixels",
        pixels: PixelRange::Unit,
    },
    ModelInfo {
        name: "two-part-resnet",
        summary: "the stem of a ResNet and the next block, to be cut in two",
        pixels: PixelRange::Unit,
    },
];

/// How a model of type `M` is built.
pub type Init<M> = fn(&Device) -> M;

/// How a model of type `M` turns images `[B, 1, 28, 28]` into logits `[B, K]`.
pub type Forward<M> = fn(&M, Tensor<4>) -> Tensor<2>;

/// Something to be done with a model whose type is known by name only.
pub trait ModelVisitor {
    /// What the visit yields.
    type Output;

    /// Is called with the model's line in the registry, its constructor and its forward function.
    fn visit<M: Module + Display + Sync + 'static>(
        self,
        info: ModelInfo,
        init: Init<M>,
        forward: Forward<M>,
    ) -> Self::Output;
}

/// Calls `visitor` with the model of this name, or returns `None` if there is none.
///
/// ```
/// use std::fmt::Display;
/// use burn::prelude::*;
/// use everburn_models::registry::{Forward, Init, ModelInfo, ModelVisitor, visit};
///
/// struct CountParameters;
///
/// impl ModelVisitor for CountParameters {
///     type Output = usize;
///     fn visit<M: Module + Display + Sync + 'static>(
///         self,
///         _info: ModelInfo,
///         init: Init<M>,
///         _forward: Forward<M>,
///     ) -> usize {
///         init(&Device::flex()).num_params()
///     }
/// }
///
/// assert_eq!(visit("mnist", CountParameters), Some(21_840));
/// assert_eq!(visit("no-such-model", CountParameters), None);
/// ```
pub fn visit<V: ModelVisitor>(name: &str, visitor: V) -> Option<V::Output> {
    let info = *MODELS.iter().find(|info| info.name == name)?;
    match name {
        "mnist" => Some(visitor.visit(info, |d| MnistConfig::new().init(d), Mnist::forward)),
        "mnist-bn" => Some(visitor.visit(info, |d| MnistBnConfig::new().init(d), MnistBn::forward)),
        "mlp" => Some(visitor.visit(info, |d| MlpConfig::new().init(d), Mlp::forward)),
        "resnet50" => Some(visitor.visit(info, mnist_resnet50, ResNet50::forward)),
        "two-part-resnet" => {
            let init = |d: &Device| TwoPartResNetConfig::new().init(d);
            Some(visitor.visit(info, init, TwoPartResNet::forward))
        }
        _ => None,
    }
}

fn mnist_resnet50(device: &Device) -> ResNet50 {
    let config = ResNet50Config::new().with_stem(Stem::Mnist);
    config.with_classes(10).init(device)
}

/// The number of trainable and fixed numbers of the model of this name.
pub fn num_params(name: &str) -> Option<usize> {
    struct Count;
    impl ModelVisitor for Count {
        type Output = usize;
        fn visit<M: Module + Display + Sync + 'static>(
            self,
            _info: ModelInfo,
            init: Init<M>,
            _forward: Forward<M>,
        ) -> usize {
            init(&Device::default()).num_params()
        }
    }
    visit(name, Count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_model_can_be_built() {
        for info in MODELS {
            assert!(
                num_params(info.name).is_some_and(|n| n > 0),
                "{}",
                info.name
            );
        }
    }

    #[test]
    fn parameter_counts_match_the_originals() {
        assert_eq!(num_params("mnist"), Some(21_840));
        assert_eq!(
            num_params("mlp"),
            Some(784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10)
        );
        // Convolutions, batch norms (gamma, beta, two running statistics), linear layers.
        let expected = (9 * 12)
            + (36 * 12 * 24)
            + (36 * 24 * 32)
            + 4 * (12 + 24 + 32)
            + (32 * 256 + 256)
            + (256 * 10 + 10);
        assert_eq!(num_params("mnist-bn"), Some(expected));
    }
}
