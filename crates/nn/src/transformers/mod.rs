//! Attention, feed-forward nets and encoders made of this crate's layers, as Burn's are made of Burn's.

mod attention;
mod cache;
mod encoder;
mod feed_forward;

pub use attention::{MhaCache, MhaInput, MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig};
pub use cache::TensorCache;
pub use encoder::{
    TransformerEncoder, TransformerEncoderAutoregressiveCache, TransformerEncoderConfig,
    TransformerEncoderInput, TransformerEncoderLayer, TransformerEncoderLayerAutoregressiveCache,
};
pub use feed_forward::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
