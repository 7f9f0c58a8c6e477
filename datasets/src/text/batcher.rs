//! From tokens to tensors.

use burn::data::dataloader::batcher::Batcher;
use burn::prelude::*;
use burn::tensor::{Int, TensorData};

use super::TextItem;

/// Makes a batch of windows: what the model sees, and what follows each of its tokens.
///
/// # Shapes
/// - inputs and targets `[B, context]`; target `t` of a window is input `t + 1`
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::prelude::*;
/// use everburn::datasets::{TextBatcher, TextItem};
///
/// let items = vec![TextItem { tokens: vec![5, 6, 7] }];
/// let (inputs, targets) = TextBatcher.batch(items, &Device::flex());
/// assert_eq!(inputs.into_data().iter::<i64>().collect::<Vec<_>>(), [5, 6]);
/// assert_eq!(targets.into_data().iter::<i64>().collect::<Vec<_>>(), [6, 7]);
/// ```
///
/// # Panics
/// If windows have different lengths, or there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextBatcher;

impl Batcher<TextItem, (Tensor<2, Int>, Tensor<2, Int>)> for TextBatcher {
    fn batch(&self, items: Vec<TextItem>, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let context = items[0].tokens.len() - 1;
        let part = |from: usize| {
            let tokens = items
                .iter()
                .flat_map(|item| &item.tokens[from..from + context])
                .map(|&token| i64::from(token));
            let data = TensorData::new(tokens.collect::<Vec<_>>(), [items.len(), context]);
            Tensor::from_data(data, device)
        };
        (part(0), part(1))
    }
}
