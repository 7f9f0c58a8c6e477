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
/// let items = vec![TextItem::new(vec![5, 6, 7])];
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

/// Makes a batch of texts of any lengths, of which only some tokens may count: see [`TextItem::mask`].
///
/// Shorter texts are padded at their ends. In a causal model no token sees a later one, and predictions in the padding do
/// not count.
///
/// # Shapes
/// - inputs and what follows them: `[B, T]`, as long as the longest text
/// - which of the following tokens count, `[N]`: their places, counted row by row. `None` if all do
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::prelude::*;
/// use everburn::datasets::{MaskedTextBatcher, TextItem};
///
/// let answer = TextItem::new(vec![5, 6, 7, 8]).masked(vec![false, false, true, true]);
/// let items = vec![answer, TextItem::new(vec![1, 2])];
/// let (inputs, (next, counting)) = MaskedTextBatcher.batch(items, &Device::flex());
/// assert_eq!(inputs.into_data().iter::<i64>().collect::<Vec<_>>(), [5, 6, 7, 1, 0, 0]);
/// assert_eq!(next.into_data().iter::<i64>().collect::<Vec<_>>(), [6, 7, 8, 2, 0, 0]);
/// let counting = counting.unwrap().into_data();
/// assert_eq!(counting.iter::<i64>().collect::<Vec<_>>(), [1, 2, 3]);
/// ```
///
/// # Panics
/// If there is no text, or one without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskedTextBatcher;

/// Inputs, what follows them, and what counts of it.
type MaskedBatch = (Tensor<2, Int>, (Tensor<2, Int>, Option<Tensor<1, Int>>));

impl Batcher<TextItem, MaskedBatch> for MaskedTextBatcher {
    fn batch(&self, items: Vec<TextItem>, device: &Device) -> MaskedBatch {
        let lengths = items.iter().map(|item| item.tokens.len() - 1);
        let longest = lengths.max().expect("a batch has a text");
        let part = |from: usize| {
            let row = |item: &TextItem| {
                let behind = item.tokens.len() - 1;
                let tokens = item.tokens[from..from + behind].iter();
                let tokens = tokens.map(|&token| i64::from(token));
                let filled = tokens.chain(std::iter::repeat_n(0, longest - behind));
                filled.collect::<Vec<_>>()
            };
            let rows = items.iter().flat_map(row).collect::<Vec<_>>();
            Tensor::from_data(TensorData::new(rows, [items.len(), longest]), device)
        };
        let counts = |item: &TextItem, place: usize| match &item.mask {
            None => place + 1 < item.tokens.len(),
            Some(mask) => mask.get(place + 1).copied().unwrap_or(false),
        };
        let places = items.iter().enumerate().flat_map(|(row, item)| {
            let counting = (0..longest).filter(move |&place| counts(item, place));
            counting.map(move |place| (row * longest + place) as i64)
        });
        let places = places.collect::<Vec<_>>();
        let counting = (places.len() < items.len() * longest).then(|| {
            let count = places.len();
            Tensor::from_data(TensorData::new(places, [count]), device)
        });
        (part(0), (part(1), counting))
    }
}
