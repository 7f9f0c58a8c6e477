//! Tests of `objective`.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Mutex};
use std::thread;

use everburn_record::sync::lock;

use super::*;

#[test]
fn a_panic_of_a_loss_or_a_metric_names_the_file_of_the_user() {
    let (own, found) = (thread::current().id(), Arc::new(Mutex::new(String::new())));
    let (noted, before) = (Arc::clone(&found), Arc::new(take_hook()));
    let previous = Arc::clone(&before);
    set_hook(Box::new(move |panic| {
        if thread::current().id() == own
            && let Some(place) = panic.location()
        {
            *lock(&noted) = place.file().to_owned();
        }
        previous(panic);
    }));
    let several = || Tensor::<1>::ones([3], &Device::flex());
    let counts = || Tensor::<1, Int>::ones([3], &Device::flex());
    let loss = || Loss::new(Tensor::ones([1], &Device::flex()), 3);
    let wrong: [(&str, &dyn Fn()); 5] = [
        ("a loss", &|| drop(Loss::new(several(), 3))),
        ("a sum", &|| drop(loss().with_metric("mae", several(), 3))),
        ("a name", &|| drop(loss().with_metric("loss", 1.0, 3))),
        ("an accuracy", &|| drop(loss().with_accuracy(counts()))),
        ("a metric", &|| drop(NamedSum::new("mae", several(), 3))),
    ];
    let seen = wrong.map(|(what, work)| {
        lock(&found).clear();
        let panics = catch_unwind(AssertUnwindSafe(work)).is_err();
        (what, panics, lock(&found).clone())
    });
    set_hook(Box::new(move |panic| before(panic)));
    for (what, panics, file) in seen {
        assert!(panics, "{what}");
        assert!(file.ends_with("objective/tests.rs"), "{what}: {file}");
    }
}

#[test]
fn the_loss_of_mixed_classes_is_the_weighted_sum_of_both_cross_entropies() {
    let device = Device::flex();
    let rows = [[0.3, -1.0, 2.0], [1.5, 0.2, -0.7], [0.0, 4.0, 1.0]];
    let (own, other, share) = ([2, 0, 1], [0, 1, 1], [0.25, 0.5, 0.1]);
    let logits = Tensor::<2>::from_floats(rows, &device);
    let classes = |classes: [i64; 3]| Tensor::<1, Int>::from_ints(classes, &device);
    let targets = (
        classes(own),
        Some((classes(other), Tensor::from_floats(share, &device))),
    );
    let loss = Classification::<2, (Tensor<1, Int>, _)>::loss(logits.clone(), targets);
    let alone = |row: usize, class: i64| {
        let class = Tensor::<1, Int>::from_ints([class], &device);
        let logits = logits.clone().narrow(0, row, 1);
        class.loss(logits).mean.into_scalar::<f64>()
    };
    let expected = (0..3)
        .map(|row| (1.0 - share[row]) * alone(row, own[row]) + share[row] * alone(row, other[row]));
    let expected = expected.sum::<f64>() / 3.0;
    let sums = loss.report().sums().unwrap();
    assert!((sums.mean_loss() - expected).abs() < 1e-6, "{sums:?}");
    assert_eq!(sums.correct(), Some(3));
}

#[test]
fn a_wrong_label_is_named_by_its_row_among_mixed_classes_and_masked_tokens() {
    let device = Device::flex();
    let ints = |values: [i64; 2]| Tensor::<1, Int>::from_ints(values, &device);
    let shares = Tensor::from_floats([0.5, 0.5], &device);
    let mixed = (ints([0, 1]), Some((ints([1, 3]), shares)));
    let logits = Tensor::<2>::zeros([2, 3], &device);
    let wrong = everburn_nn::with_checked_targets(false, || mixed.loss(logits)).unwrap_err();
    assert_eq!((wrong.row, wrong.rows, wrong.target), (1, 2, 3));

    let next = Tensor::<2, Int>::from_ints([[9, 0, 1], [0, 8, 2]], &device);
    let loss = |counting| {
        let logits = Tensor::<3>::zeros([2, 3, 3], &device);
        let targets = (next.clone(), Some(ints(counting)));
        everburn_nn::with_checked_targets(false, || MaskedNextToken::loss(logits, targets))
    };
    let wrong = loss([3, 4]).unwrap_err();
    assert_eq!((wrong.row, wrong.rows, wrong.target), (4, 6, 8));
    loss([1, 5]).expect("tokens that do not count may be any");
}

#[test]
#[should_panic(expected = "the loss has 3 values, and a training follows one")]
fn a_loss_of_each_sample_is_refused() {
    let _ = Loss::new(Tensor::ones([3], &Device::flex()), 3);
}

#[test]
#[should_panic(expected = "the sum of the metric `accuracy` has 3 values")]
fn correct_answers_that_are_not_added_up_are_refused() {
    let device = Device::flex();
    let loss = Loss::new(Tensor::ones([1], &device), 3);
    let _ = loss.with_accuracy(Tensor::from_ints([0, 1, 1], &device));
}
