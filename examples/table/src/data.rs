//! Rows of a table, and batches of them.

use std::path::Path;

use everburn::burn::data::dataloader::batcher::Batcher;
use everburn::burn::prelude::*;
use everburn::prelude::*;
use serde::Deserialize;

/// A row of the table; the header names the columns.
#[derive(Debug, Clone, Deserialize)]
pub struct House {
    pub area: f32,
    pub rooms: f32,
    pub age: f32,
    pub distance: f32,
    /// Unknown where it is to be predicted.
    #[serde(default)]
    pub price: f32,
}

/// Columns `[B, 4]` and prices `[B, 1]`.
pub type HouseBatch = (Tensor<2>, Tensor<2>);

/// Makes a batch of several rows; columns are scaled to about -1 to 1.
pub struct HouseBatcher;

impl Batcher<House, HouseBatch> for HouseBatcher {
    fn batch(&self, houses: Vec<House>, device: &Device) -> HouseBatch {
        let columns =
            |h: &House| [h.area / 100.0 - 1.0, h.rooms / 4.0 - 1.0, h.age / 50.0 - 1.0, h.distance / 10.0 - 1.0];
        let columns = houses.iter().map(|house| Tensor::<1>::from_floats(columns(house), device));
        let prices = houses.iter().map(|house| Tensor::<1>::from_floats([house.price / 100.0], device));
        (Tensor::stack(columns.collect(), 0), Tensor::stack(prices.collect(), 0))
    }
}

/// The rows of a table. Any error becomes a `TaskError` by `?`, and the user reads it.
pub fn read(file: &Path) -> Result<Vec<House>, TaskError> {
    let rows = csv::Reader::from_path(file)?.into_deserialize();
    Ok(rows.collect::<Result<_, _>>()?)
}
