//! Attention, feed-forward nets and encoders made of this crate's layers, as Burn's are made of Burn's.

mod attention;
mod cache;
mod encoder;
mod encoder_layer;
mod feed_forward;

pub use attention::{MhaCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
pub use cache::TensorCache;
pub use encoder::{
    TransformerEncoder, TransformerEncoderAutoregressiveCache, TransformerEncoderConfig,
    TransformerEncoderInput,
};
pub use encoder_layer::{TransformerEncoderLayer, TransformerEncoderLayerAutoregressiveCache};
pub use feed_forward::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
