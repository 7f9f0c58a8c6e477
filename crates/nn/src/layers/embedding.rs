//! The embedding.

use burn::config::Config;
use burn::nn::{self as burns, Initializer};
use burn::prelude::*;
use burn::tensor::Int;

use super::drop_in::drop_in;
use crate::targets::embedding;

/// Configuration of [`Embedding`]: the same as [`burn::nn::EmbeddingConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let device = burn::prelude::Device::flex();
/// let embedding = everburn::nn::EmbeddingConfig::new(7, 4).init(&device);
/// assert_eq!(embedding.weight.dims(), [7, 4]);
/// ```
#[derive(Config, Debug)]
pub struct EmbeddingConfig {
    /// The number of rows.
    pub n_embedding: usize,
    /// The size of each row.
    pub d_model: usize,
    /// How the rows are drawn.
    #[config(default = "Initializer::Normal{mean:0.0, std:1.0}")]
    pub initializer: Initializer,
}

impl EmbeddingConfig {
    /// Initialises the module on `device`.
    pub fn init(&self, device: &Device) -> Embedding {
        let config = burns::EmbeddingConfig::new(self.n_embedding, self.d_model);
        let config = config.with_initializer(self.initializer.clone());
        config.init(device).into()
    }
}

/// Burn's [`burn::nn::Embedding`], in whose forward pass a token without a row is an error of the training, with the
/// sample: see [`WrongTarget`](crate::WrongTarget).
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use burn::tensor::Int;
/// use everburn::nn::{EmbeddingConfig, with_checked_targets};
///
/// let device = Device::flex();
/// let embedding = EmbeddingConfig::new(3, 4).init(&device);
/// let tokens = Tensor::<2, Int>::from_ints([[0, 7]], &device);
/// let wrong = with_checked_targets(true, || embedding.forward(tokens)).unwrap_err();
/// assert_eq!((wrong.row, wrong.target, wrong.classes), (1, 7, 3));
/// ```
#[derive(Debug, Clone)]
pub struct Embedding {
    embedding: burns::Embedding,
}

drop_in!(Embedding, embedding: burns::Embedding);

impl Embedding {
    /// The rows of the tokens.
    ///
    /// # Shapes
    /// - tokens: `[B, T]`, each below the number of rows
    /// - output: `[B, T, E]`
    ///
    /// # Panics
    /// Panics if a token has no row: see [`WrongTarget`](crate::WrongTarget).
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        embedding(self.weight.val(), tokens)
    }
}
