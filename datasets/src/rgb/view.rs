//! Views of a set of images: some of them, in grey, or with other numbers of their classes.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn_dataset::Dataset;
use burn_dataset::transform::{Mapper, MapperDataset, PartialDataset, SelectionDataset};

use crate::error::wrong_count;
use crate::proportion::in_proportion;
use crate::{DatasetError, RgbItem};

/// The first samples of a set, as many as are wanted. They are of all classes: a set is mixed, or its classes alternate.
pub(super) fn limited(
    set: Arc<dyn Dataset<RgbItem>>,
    limit: Option<usize>,
    split: &str,
) -> Result<Arc<dyn Dataset<RgbItem>>, DatasetError> {
    let all = set.len();
    match limit {
        Some(0) => Err(wrong_count(split, 0, all)),
        Some(count) if count < all => Ok(Arc::new(PartialDataset::new(set, 0, count))),
        _ => Ok(set),
    }
}

/// Some samples of a set with these classes, which alternate then.
pub(super) fn mixed(
    set: &Arc<dyn Dataset<RgbItem>>,
    classes: &[usize],
    chosen: &[usize],
) -> Arc<dyn Dataset<RgbItem>> {
    let order = in_proportion(chosen.iter().map(|index| classes[*index]));
    let indices = order.into_iter().map(|place| chosen[place]).collect();
    let selected: SelectionDataset<Arc<dyn Dataset<RgbItem>>, RgbItem> =
        SelectionDataset::from_indices_unchecked(Arc::clone(set), indices);
    Arc::new(selected)
}

/// The images of a set as `mapper` makes them.
pub(super) fn mapped(
    set: Arc<dyn Dataset<RgbItem>>,
    mapper: impl Mapper<RgbItem, RgbItem> + 'static,
) -> Arc<dyn Dataset<RgbItem>> {
    Arc::new(MapperDataset::<_, _, RgbItem>::new(set, mapper))
}

/// Makes images grey.
pub(super) struct Grey;

impl Mapper<RgbItem, RgbItem> for Grey {
    fn map(&self, item: &RgbItem) -> RgbItem {
        item.clone().to_grey()
    }
}

/// For each class, its number in another order; `None` if that order is the same, or is of other classes.
pub(super) fn numbers_in_order(classes: &[String], order: &[String]) -> Option<Vec<usize>> {
    if classes == order || classes.len() != order.len() {
        return None;
    }
    let places = order.iter().enumerate().map(|(place, name)| (name, place));
    let places: BTreeMap<&String, usize> = places.collect();
    if places.len() != order.len() {
        return None;
    }
    let numbers = classes.iter().map(|name| places.get(name).copied());
    numbers.collect()
}

/// Gives images other numbers of their classes: those here, by the number in the set.
pub(super) struct Renumbered(pub(super) Arc<[usize]>);

impl Mapper<RgbItem, RgbItem> for Renumbered {
    fn map(&self, item: &RgbItem) -> RgbItem {
        RgbItem {
            class: self.0[item.class],
            mixed: item.mixed.map(|(other, share)| (self.0[other], share)),
            ..item.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_take_the_numbers_of_another_order_of_the_same_ones() {
        let names = |names: [&str; 3]| names.map(str::to_owned).to_vec();
        let found = names(["a", "b", "c"]);
        let order = names(["c", "a", "b"]);
        assert_eq!(numbers_in_order(&found, &order), Some(vec![1, 2, 0]));
        for other in [
            found.clone(),
            names(["a", "b", "d"]),
            names(["a", "b", "b"]),
        ] {
            assert_eq!(numbers_in_order(&found, &other), None, "{other:?}");
        }
        assert_eq!(numbers_in_order(&found, &[]), None);
    }
}
