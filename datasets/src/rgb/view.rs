//! Views of a set of images: some of them, in grey, or with other numbers of their classes.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn_dataset::Dataset;

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
        Some(count) if count < all => Ok(Arc::new(Selection::of(&set, (0..count).collect()))),
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
    Arc::new(Selection::of(set, indices))
}

/// Some samples of a set, by their numbers.
pub(super) struct Selection {
    set: Arc<dyn Dataset<RgbItem>>,
    indices: Vec<usize>,
}

impl Selection {
    fn of(set: &Arc<dyn Dataset<RgbItem>>, indices: Vec<usize>) -> Self {
        Self {
            set: Arc::clone(set),
            indices,
        }
    }
}

impl Dataset<RgbItem> for Selection {
    fn get(&self, index: usize) -> Result<RgbItem, burn_dataset::DatasetError> {
        self.set.get(self.indices[index])
    }

    fn len(&self) -> usize {
        self.indices.len()
    }
}

/// The same images in grey.
pub(super) struct Grey(pub(super) Arc<dyn Dataset<RgbItem>>);

impl Dataset<RgbItem> for Grey {
    fn get(&self, index: usize) -> Result<RgbItem, burn_dataset::DatasetError> {
        Ok(self.0.get(index)?.to_grey())
    }

    fn len(&self) -> usize {
        self.0.len()
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

/// The same images, with other numbers of their classes.
pub(super) struct Renumbered {
    pub(super) set: Arc<dyn Dataset<RgbItem>>,
    /// By the number in the set.
    pub(super) numbers: Arc<[usize]>,
}

impl Dataset<RgbItem> for Renumbered {
    fn get(&self, index: usize) -> Result<RgbItem, burn_dataset::DatasetError> {
        let item = self.set.get(index)?;
        let mixed = item.mixed;
        Ok(RgbItem {
            class: self.numbers[item.class],
            mixed: mixed.map(|(other, share)| (self.numbers[other], share)),
            ..item
        })
    }

    fn len(&self) -> usize {
        self.set.len()
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
