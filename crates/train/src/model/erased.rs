//! One engine for all models and all data: their types end here.
//!
//! A [`Trainer`](crate::Trainer) takes any model, data set and batch, and trains them as an [`AnyModel`] with
//! [`AnyItem`]s and [`AnyBatch`]es: boxes around the typed ones. So the training loop is compiled once, and not
//! once for each model.
//!
//! The boxes are made and opened in this module alone; a box that holds another type than it was made with is a
//! fault of this crate, and panics.

mod data;
mod model;
mod over_ranks;
mod visit;

pub use self::data::{AnyBatch, AnyData, AnyItem};
pub(crate) use self::data::{AnyLoader, erase_data};
pub use self::model::{AnyModel, Trainable};
pub use self::over_ranks::AnyModelOverRanks;
pub(crate) use self::over_ranks::{erase_over_ranks, erase_samples};

/// What a box that holds another type than it was made with is answered with.
const WRONG_TYPE: &str = "a box is opened with the type that it was made with";
