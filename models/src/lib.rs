//! Models as ordinary Burn modules: one file per model, without code for ranks or devices.
//!
//! Each model is a `Config` that builds a `Module`, exactly as in Burn's own crates, and can be
//! used from any Burn project by one dependency line:
//!
//! ```toml
//! everburn-models = { path = "../everburn/models" }
//! ```
//!
//! - [`mnist::Mnist`]: the two-convolution net of the PyTorch tutorials.
//! - [`mnist_bn::MnistBn`]: the Keras convolution net with batch norm and dropout.
//! - [`mlp::Mlp`]: a multi-layer perceptron.
//! - [`vit::ViT`]: the vision transformer.
//! - [`resnet18::ResNet18`]: the residual net of 18 or 34 layers.
//! - [`resnet50::ResNet50`]: the residual net of 50 layers, with stems for three sizes of images.
//! - [`two_part_resnet::TwoPartResNet`]: the beginning of a residual net, an example of a model in two parts.
//! - [`gpt::Gpt`]: a text decoder, such as GPT-2.
//! - [`llama::Llama`]: a text decoder, such as Llama 2 and 3, Mistral and Qwen 2.
//! - [`decoder::Decoder`]: the interface of both, with a cache of keys and values.
//!
//! Legend of the shapes in this crate: `B` batch, `C` channels, `H` height, `W` width,
//! `K` classes, `T` tokens, `E` width of a token's vector, `V` vocabulary.

pub mod decoder;
mod error;
pub mod gpt;
pub mod image_model;
pub mod llama;
pub mod mlp;
pub mod mnist;
pub mod mnist_bn;
pub mod resnet;
pub mod resnet18;
pub mod resnet50;
pub mod two_part_resnet;
pub mod vit;

pub use error::ModelError;
