//! Whether the samples that are held out for validation are of the same classes as those to learn from.

use std::any::Any;
use std::collections::BTreeSet;
use std::ops::Range;

use burn::prelude::*;
use burn::tensor::Int;
use everburn_record::attempt;

use super::Trainer;
use crate::model::batch_tensors::{BatchVisitor, visit_tensors};
use crate::model::erased::{AnyData, AnyModel};
use crate::seeds::mix;

/// How many samples of each part are looked at: few, and more if these look wrong.
const LOOKS: [usize; 2] = [16, 256];

impl Trainer {
    /// Warns of data that nobody compares between ranks, of those in the order of their classes, and of a loss that is a sum.
    pub(super) fn warn_of_data(&self, model: AnyModel, data: &AnyData) -> AnyModel {
        // Ranks of an elastic job read nothing before they have met, and a profile is of the training alone.
        if self.elasticity.is_elastic() || self.recorder.is_some() {
            return model;
        }
        self.warn_of_uncompared_data(data);
        self.warn_of_sorted_classes(data);
        self.warn_of_a_summed_loss(model, data)
    }

    fn warn_of_uncompared_data(&self, data: &AnyData) {
        if self.is_first() && self.group.world_size() > 1 && data.fingerprint.is_empty() {
            tracing::warn!(
                "the ranks cannot compare their data: give `TrainingData::with_fingerprint`, for example the SHA-256 of the file"
            );
        }
    }

    /// Warns where the last samples are held out of a set that is in the order of its classes: the model would be
    /// validated on classes that it learns little or nothing of. Rank 0 looks at a few samples, where their batches have
    /// classes.
    fn warn_of_sorted_classes(&self, data: &AnyData) {
        let (all, held_out) = (data.train.len(), self.held_out(data));
        if !self.is_first() || held_out == 0 || held_out >= all {
            return;
        }
        let learnt = all - held_out;
        // Of batches without classes, one sample is enough to see it.
        let mut looked_at = self.classes_at(data, vec![0]).map(drop);
        let mut shown = String::new();
        for count in LOOKS {
            let looks = looked_at.and_then(|()| {
                let own = self.classes_at(data, some_of(learnt..all, count))?;
                Some((own, self.classes_at(data, some_of(0..learnt, count))?))
            });
            let Some((own, others)) = looks else { return };
            if !are_sorted(&own, &others) {
                return;
            }
            shown = listed(&own);
            looked_at = Some(());
        }
        tracing::warn!(
            "the samples seem to be in the order of their classes: the last {held_out}, which are held out for validation, \
             are of {shown} alone, and most of the others are not. Shuffle the file or folder, or hold out more by \
             `validation_samples`; in a task of your own, shuffle the set by a fixed seed before it is given to \
             `TrainingData::new`, or give it samples of all classes by `with_validation`"
        );
    }

    /// The classes of some samples to learn from; `None` where their batches have none, or one cannot be read: the loader
    /// says which.
    fn classes_at(&self, data: &AnyData, indices: Vec<usize>) -> Option<Vec<i64>> {
        let read = || {
            let items = data.train.get_many(indices).ok()?;
            let batch = data.batcher.batch(items, &self.device);
            let classes = classes_of(batch.inner())?.try_into_data().ok()?;
            Some(classes.iter::<i64>().collect())
        };
        attempt::run(read).ok().flatten()
    }
}

/// The classes of a batch of a known type, with or without a loss of the task's own.
fn classes_of(batch: &dyn Any) -> Option<Tensor<1, Int>> {
    struct Find(Option<Tensor<1, Int>>);
    impl BatchVisitor for Find {
        fn float<const D: usize>(&mut self, _: &'static str, _: &Tensor<D>) {}

        fn int<const D: usize>(&mut self, name: &'static str, tensor: &Tensor<D, Int>) {
            if name == "classes" {
                self.0 = (tensor as &dyn Any).downcast_ref().cloned();
            }
        }
    }
    let mut find = Find(None);
    visit_tensors(batch, &mut find);
    find.0
}

/// At most `count` samples of a range, drawn the same each time: in steps of one width, classes in turn would look like one.
fn some_of(range: Range<usize>, count: usize) -> Vec<usize> {
    match range.len() <= count {
        true => range.collect(),
        false => {
            let drawn = (0..count as u64).map(|number| mix(number) % range.len() as u64);
            drawn.map(|place| range.start + place as usize).collect()
        }
    }
}

/// Whether the classes of samples that are held out tell of an order, beside those of samples to learn from: there are at
/// most half as many different ones, and most samples to learn from have none of them; or no sample to learn from has one,
/// though classes repeat. Fewer samples than there are classes tell nothing.
fn are_sorted(held_out: &[i64], learnt: &[i64]) -> bool {
    let [own, others] = [held_out, learnt].map(|part| part.iter().collect::<BTreeSet<_>>());
    if held_out.len() < others.len() {
        return false;
    }
    let common = learnt.iter().filter(|class| own.contains(class)).count();
    let fewer = 2 * own.len() <= others.len() && 4 * common <= 3 * learnt.len();
    let disjoint = common == 0 && 4 * own.len() <= held_out.len();
    fewer || disjoint
}

/// The first few classes by their numbers.
fn listed(classes: &[i64]) -> String {
    /// As many as a line has room for.
    const SHOWN: usize = 5;
    let classes: BTreeSet<_> = classes.iter().collect();
    let shown: Vec<_> = classes
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect();
    match classes.len() {
        1 => format!("class {}", shown.concat()),
        2..=SHOWN => format!("classes {}", shown.join(", ")),
        all => format!("{all} classes ({}, ...)", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is looked at of a set of which the last tenth is held out.
    fn looks_sorted(classes: &[i64]) -> bool {
        let learnt = classes.len() - classes.len() / 10;
        LOOKS.iter().all(|count| {
            let at = |range| -> Vec<i64> {
                let places = some_of(range, *count).into_iter();
                places.map(|place| classes[place]).collect()
            };
            are_sorted(&at(learnt..classes.len()), &at(0..learnt))
        })
    }

    /// As many samples of each class as these.
    fn sorted(counts: &[usize]) -> Vec<i64> {
        let parts = counts.iter().enumerate();
        parts
            .flat_map(|(class, count)| vec![class as i64; *count])
            .collect()
    }

    #[test]
    fn sets_in_the_order_of_their_classes_are_seen() {
        for counts in [&[500, 500][..], &[900, 100], &[50, 50], &[300; 10]] {
            assert!(looks_sorted(&sorted(counts)), "{counts:?}");
        }
    }

    #[test]
    fn mixed_sets_are_not() {
        for counts in [
            &[500, 500][..],
            &[995, 5],
            &[9990, 10],
            &[50, 50],
            &[300; 10],
            &[20; 1000],
            &[1; 5000],
        ] {
            let mut classes = sorted(counts);
            // Fisher-Yates.
            for index in (1..classes.len()).rev() {
                let other = mix(index as u64 ^ 0x5eed) % (index as u64 + 1);
                classes.swap(index, other as usize);
            }
            assert!(!looks_sorted(&classes), "{counts:?}");
        }
        for classes in [2, 3, 10, 16] {
            let in_turn: Vec<i64> = (0..3210).map(|place| place % classes).collect();
            assert!(!looks_sorted(&in_turn), "{classes} classes in turn");
        }
        assert!(!looks_sorted(&[3; 100]), "one class");
        let few = sorted(&[4; 10]);
        assert!(!looks_sorted(&few), "4 held out of 10 classes");
    }

    #[test]
    fn classes_are_found_in_batches_of_known_types() {
        let device = Device::flex();
        let classes = || Tensor::<1, Int>::from_ints([2, 7], &device);
        let found = |batch: &dyn Any| -> Option<Vec<i64>> {
            Some(classes_of(batch)?.into_data().iter::<i64>().collect())
        };
        let rows = || Tensor::<2>::zeros([2, 3], &device);
        let images = || Tensor::<4>::zeros([2, 1, 3, 3], &device);
        let mixed: Option<(Tensor<1, Int>, Tensor<1>)> = None;
        let expected = Some(vec![2, 7]);
        assert_eq!(found(&(rows(), classes())), expected);
        assert_eq!(found(&((rows(), classes()), ())), expected);
        assert_eq!(found(&((images(), classes()), ())), expected);
        assert_eq!(found(&(images(), (classes(), mixed))), expected);
        assert_eq!(found(&(rows(), rows())), None);
        assert_eq!(listed(&[7, 2, 7]), "classes 2, 7");
        assert_eq!(
            listed(&[1, 2, 3, 4, 5, 6]),
            "6 classes (1, 2, 3, 4, 5, ...)"
        );
    }
}
