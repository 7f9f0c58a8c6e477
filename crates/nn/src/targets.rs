//! Targets of a loss that are none of the classes. Whole passes run in this module: it is none of `layers`, whose
//! functions a profile takes for a layer's own.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::prelude::*;
use burn::tensor::Int;

thread_local! {
    static CHECKS: Cell<Checks> = const { Cell::new(Checks::Outside) };
}

/// What becomes of wrong targets on this thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checks {
    /// Those in the host's memory are a panic with a message.
    Outside,
    /// Those in the host's memory are an error of [`with_checked_targets`].
    OnHost,
    /// The same, and those on other devices are waited for.
    OnEachDevice,
}

/// What an index is of that there is nothing for.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::IndexOf;
///
/// assert_ne!(IndexOf::Class, IndexOf::Token);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexOf {
    /// The scores of classes.
    Class,
    /// The rows of an embedding.
    Token,
}

/// A target of a [`cross_entropy`](crate::cross_entropy) that is none of the classes, or a token that an
/// [`embedding`](crate::tensor::module::embedding) has no row for.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::{IndexOf, WrongTarget};
///
/// let wrong = WrongTarget { row: 3, rows: 8, target: 7, classes: 5, index: IndexOf::Class };
/// assert_eq!(wrong.to_string(), "row 3 of 8 has target 7, and there are scores of 5 classes, 0 to 4");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct WrongTarget {
    /// The row, counted from 0.
    pub row: usize,
    /// How many rows there are.
    pub rows: usize,
    /// Its target, or token.
    pub target: i64,
    /// How many classes there are, or rows of the embedding.
    pub classes: usize,
    /// What it is.
    pub index: IndexOf,
}

/// `5 classes, 0 to 4`
fn classes_from_zero(classes: usize) -> String {
    match classes {
        0 => "no class".to_string(),
        1 => "1 class, 0".to_string(),
        _ => format!("{classes} classes, 0 to {}", classes - 1),
    }
}

impl WrongTarget {
    fn text(&self) -> String {
        let Self {
            row, rows, target, ..
        } = self;
        match self.index {
            IndexOf::Class => format!(
                "row {row} of {rows} has target {target}, and there are scores of {}",
                classes_from_zero(self.classes)
            ),
            IndexOf::Token => format!(
                "token {row} of {rows} is {target}, and the embedding has {} rows: the tokens are of another tokenizer than the \
                 model's, or its vocabulary is too small",
                self.classes
            ),
        }
    }

    /// The first of `targets` that is none of `classes` classes. Targets on a GPU are not waited for, unless
    /// [`with_checked_targets`] says so.
    ///
    /// # Shapes
    /// - targets: `[rows]`
    pub fn find(targets: &Tensor<1, Int>, classes: usize) -> Option<Self> {
        if CHECKS.get() != Checks::OnEachDevice && !is_host(&targets.device()) {
            return None;
        }
        // What the device cannot give is an error of the pass itself.
        let data = targets.clone().try_into_data().ok()?;
        let is_class = |target: i64| usize::try_from(target).is_ok_and(|target| target < classes);
        let mut targets = data.iter::<i64>().enumerate();
        let (row, target) = targets.find(|(_, target)| !is_class(*target))?;
        Some(Self {
            row,
            rows: data.shape()[0],
            target,
            classes,
            index: IndexOf::Class,
        })
    }

    /// Ends the pass that found it: an error of [`with_checked_targets`], a panic elsewhere.
    ///
    /// # Panics
    /// Always.
    pub fn raise(self) -> ! {
        match CHECKS.get() {
            Checks::Outside => panic!("{self}"),
            // The error has its own way to the user: the panic hook is not called.
            Checks::OnHost | Checks::OnEachDevice => resume_unwind(Box::new(self)),
        }
    }
}

/// Refuses targets that are none of `classes` classes.
///
/// # Panics
/// Panics if there is one, as far as [`WrongTarget::find`] looks.
pub(crate) fn check_targets(targets: &Tensor<1, Int>, classes: usize) {
    if let Some(wrong) = WrongTarget::find(targets, classes) {
        wrong.raise();
    }
}

/// Refuses tokens that an embedding of `rows` rows has none for.
///
/// # Panics
/// Panics if there is one, as far as [`WrongTarget::find`] looks.
fn check_tokens(tokens: &Tensor<2, Int>, rows: usize) {
    if let Some(wrong) = WrongTarget::find(&tokens.clone().flatten(0, 1), rows) {
        let index = IndexOf::Token;
        WrongTarget { index, ..wrong }.raise();
    }
}

/// [`burn::tensor::module::embedding`], whose tokens are checked as the targets of a loss are: in the host's memory, and
/// elsewhere where [`with_checked_targets`] waits.
///
/// # Shapes
/// - weights: `[V, E]`
/// - tokens: `[B, T]`, each below `V`
/// - output: `[B, T, E]`
///
/// # Panics
/// Panics if a token is beyond the rows: see [`WrongTarget`].
pub fn embedding(weights: Tensor<2>, tokens: Tensor<2, Int>) -> Tensor<3> {
    check_tokens(&tokens, weights.dims()[0]);
    burn::tensor::module::embedding(weights, tokens)
}

/// Runs `pass`, in which a target that is none of the classes is an error and not a panic. Where `waits`, targets on a
/// GPU are read, too.
///
/// # Errors
/// The target.
pub fn with_checked_targets<R>(waits: bool, pass: impl FnOnce() -> R) -> Result<R, WrongTarget> {
    let checks = match waits {
        true => Checks::OnEachDevice,
        false => Checks::OnHost,
    };
    let before = CHECKS.replace(checks);
    let passed = catch_unwind(AssertUnwindSafe(pass));
    CHECKS.set(before);
    passed.map_err(|panic| match panic.downcast::<WrongTarget>() {
        Ok(wrong) => *wrong,
        Err(panic) => resume_unwind(panic),
    })
}

#[cfg(feature = "flex")]
fn is_host(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

#[cfg(not(feature = "flex"))]
fn is_host(_device: &Device) -> bool {
    false
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::loss::CrossEntropyLossConfig;
    use crate::{EmbeddingConfig, cross_entropy};

    fn logits(rows: usize) -> Tensor<2> {
        Tensor::zeros([rows, 4], &Device::flex().autodiff())
    }

    fn targets<const N: usize>(targets: [i64; N]) -> Tensor<1, Int> {
        Tensor::from_ints(targets, &Device::flex().autodiff())
    }

    #[test]
    fn each_loss_refuses_targets_beyond_the_scores_and_below_zero() {
        let device = Device::flex();
        let plain = CrossEntropyLossConfig::new().init(&device);
        let smoothed = CrossEntropyLossConfig::new()
            .with_smoothing(Some(0.1))
            .init(&device);
        for target in [-1, 4, i64::from(i32::MAX), i64::from(i32::MIN)] {
            let given = || targets([0, 3, target]);
            let found = [
                with_checked_targets(false, || cross_entropy(logits(3), given())),
                with_checked_targets(false, || plain.forward(logits(3), given())),
                with_checked_targets(false, || smoothed.forward(logits(3), given())),
            ];
            for wrong in found {
                let (row, rows, classes) = (2, 3, 4);
                let expected = WrongTarget {
                    row,
                    rows,
                    target,
                    classes,
                    index: IndexOf::Class,
                };
                assert_eq!(wrong.unwrap_err(), expected);
            }
        }
        with_checked_targets(false, || cross_entropy(logits(2), targets([0, 3]))).unwrap();
    }

    #[test]
    fn an_embedding_refuses_tokens_that_it_has_no_row_for() {
        let device = Device::flex().autodiff();
        let module = EmbeddingConfig::new(3, 5).init(&device);
        let looked_up = |tokens: [i64; 4]| {
            let tokens = Tensor::<1, Int>::from_ints(tokens, &device).reshape([2, 2]);
            let weights = module.weight.val();
            let of_module = with_checked_targets(false, || module.forward(tokens.clone()));
            let found = with_checked_targets(false, || embedding(weights, tokens));
            assert_eq!(of_module.as_ref().err(), found.as_ref().err());
            found
        };
        assert_eq!(looked_up([0, 1, 2, 0]).unwrap().dims(), [2, 2, 5]);
        for token in [3, -1] {
            let expected = WrongTarget {
                row: 2,
                rows: 4,
                target: token,
                classes: 3,
                index: IndexOf::Token,
            };
            assert_eq!(looked_up([0, 1, token, 9]).unwrap_err(), expected);
            let text = expected.to_string();
            let whole = format!("token 2 of 4 is {token}, and the embedding has 3 rows");
            assert!(text.starts_with(&whole), "{text}");
        }
    }

    #[test]
    fn outside_of_a_training_it_is_a_panic_with_the_row() {
        let outside = || catch_unwind(|| cross_entropy(logits(2), targets([1, 9])));
        let panic = outside().unwrap_err();
        let message = panic.downcast::<String>().unwrap();
        assert_eq!(
            *message,
            "row 1 of 2 has target 9, and there are scores of 4 classes, 0 to 3"
        );
        // An error inside changes nothing for what comes after it.
        with_checked_targets(true, || cross_entropy(logits(1), targets([4]))).unwrap_err();
        assert!(outside().unwrap_err().is::<String>());
    }

    #[test]
    fn other_panics_pass() {
        let panic = catch_unwind(|| with_checked_targets(true, || std::panic::panic_any(7_u8)))
            .unwrap_err();
        assert_eq!(*panic.downcast::<u8>().unwrap(), 7);
    }
}
