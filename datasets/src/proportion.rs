//! Samples in an order in which any part has the classes of the whole.

/// The samples of a set, by their numbers, so that each stretch of them has its classes in the proportion of the whole, as far
/// as it is long enough; within a class, in the order of the set. A training holds out the last samples for validation: of a
/// set in the order of its classes, they would all be of the last class.
pub(crate) fn in_proportion(classes: impl ExactSizeIterator<Item = usize> + Clone) -> Vec<usize> {
    let mut counts: Vec<u64> = Vec::new();
    for class in classes.clone() {
        if class >= counts.len() {
            counts.resize(class + 1, 0);
        }
        counts[class] += 1;
    }
    let mut seen = vec![0_u64; counts.len()];
    let placed = classes.enumerate().map(|(index, class)| {
        seen[class] += 1;
        // The middle of its share of the class, as a fraction in 64 bits: exact enough for any set that fits a disk.
        let middle = (u128::from(2 * seen[class] - 1) << 64) / u128::from(2 * counts[class]);
        (middle, class, index)
    });
    let mut placed: Vec<_> = placed.collect();
    placed.sort_unstable();
    placed.into_iter().map(|(_, _, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::in_proportion;

    #[test]
    fn each_part_of_an_ordered_set_has_all_classes() {
        let classes: Vec<usize> = [vec![0; 40], vec![1; 20], vec![2; 20]].concat();
        let order = in_proportion(classes.iter().copied());
        for part in order.chunks(8) {
            let count = |class| {
                part.iter()
                    .filter(|index| classes[**index] == class)
                    .count()
            };
            assert_eq!([count(0), count(1), count(2)], [4, 2, 2], "{order:?}");
        }
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, Vec::from_iter(0..80), "each sample once");
        let of_class_1 = order.iter().filter(|index| classes[**index] == 1);
        assert!(of_class_1.is_sorted(), "a class keeps its order");
    }

    #[test]
    fn one_class_and_no_samples_stay_as_they_are() {
        assert_eq!(in_proportion([3, 3, 3].into_iter()), [0, 1, 2]);
        assert!(in_proportion([].into_iter()).is_empty());
    }
}
