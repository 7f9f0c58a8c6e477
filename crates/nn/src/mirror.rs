//! The modules of [`burn::nn`] and [`burn::tensor`] under their own paths, with layers of this crate in the place of
//! Burn's: a name that is listed comes before one of a glob.

pub mod activation {
    //! [`burn::nn::activation`], with [`Relu`] and [`Gelu`] of this crate.

    pub use burn::nn::activation::*;

    pub use crate::layers::{Gelu, Relu};
}

pub mod attention {
    //! [`burn::nn::attention`], with [`MultiHeadAttention`] of this crate's layers.

    pub use burn::nn::attention::*;

    pub use crate::transformers::{
        MhaCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig,
    };
}

pub mod cache {
    //! [`burn::nn::cache`] for the transformers of this crate.

    pub use crate::transformers::TensorCache;
}

pub mod conv {
    //! [`burn::nn::conv`], with [`Conv2d`] of this crate.

    pub use burn::nn::conv::*;

    pub use crate::layers::{Conv2d, Conv2dConfig};
}

pub mod loss {
    //! [`burn::nn::loss`], with [`CrossEntropyLoss`] and [`MseLoss`] of this crate.

    pub use burn::nn::loss::*;

    pub use crate::layers::{CrossEntropyLoss, CrossEntropyLossConfig, MseLoss};
}

pub mod norm {
    //! [`burn::nn::norm`], with [`BatchNorm`] and [`LayerNorm`] of this crate.

    pub use burn::nn::norm::*;

    pub use crate::batch_norm::{BatchNorm, BatchNormConfig};
    pub use crate::layers::{LayerNorm, LayerNormConfig, Normalization, NormalizationConfig};
}

pub mod pool {
    //! [`burn::nn::pool`], with the two-dimensional pools of this crate.

    pub use burn::nn::pool::*;

    pub use crate::layers::{
        AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, MaxPool2d,
        MaxPool2dConfig,
    };
}

pub mod transformer {
    //! [`burn::nn::transformer`], with [`TransformerEncoder`] of this crate's layers.

    pub use burn::nn::transformer::*;

    pub use crate::transformers::{
        PositionWiseFeedForward, PositionWiseFeedForwardConfig, TransformerEncoder,
        TransformerEncoderAutoregressiveCache, TransformerEncoderConfig, TransformerEncoderInput,
        TransformerEncoderLayer, TransformerEncoderLayerAutoregressiveCache,
    };
}

pub mod modules {
    //! [`burn::nn::modules`], with the layers of this crate.

    pub use burn::nn::modules::*;

    pub use super::{attention, cache, conv, norm, pool, transformer};
    pub use crate::batch_norm::{BatchNorm, BatchNormConfig};
    pub use crate::layers::{
        Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig,
    };
    pub use crate::linear::{Linear, LinearConfig};
}

pub mod tensor {
    //! [`burn::tensor`], with functions of this crate in [`activation`] and
    //! [`module`].

    pub use burn::tensor::*;

    pub mod activation {
        //! [`burn::tensor::activation`], with [`relu`] and [`gelu`] of this crate.

        pub use burn::tensor::activation::*;

        pub use crate::layers::{gelu, relu};
    }

    pub mod module {
        //! [`burn::tensor::module`], with [`linear`], [`conv2d`] and [`embedding`] of this crate.

        pub use burn::tensor::module::*;

        pub use crate::layers::conv2d;
        pub use crate::linear::linear;
        pub use crate::targets::embedding;
    }
}
