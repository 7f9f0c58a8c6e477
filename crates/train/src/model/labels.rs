//! Labels that a model has no score for, and tokens that its embedding has no row for.

use everburn_nn::{IndexOf, WrongTarget, with_checked_targets};

use crate::error::TrainError;

/// A sample whose label is none that the model has a score for, or with a token that its embedding has no row for.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; pub use everburn_train as train; }
/// use everburn::nn::IndexOf;
/// use everburn::train::WrongLabel;
///
/// let index = IndexOf::Class;
/// let wrong = WrongLabel { sample: Some(17), of: "the training", place: None, label: 7, scores: 5, index };
/// let text = wrong.to_string();
/// assert!(text.starts_with("sample 17 of the training has the label 7, and the model makes 5 scores, for labels 0 to 4"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct WrongLabel {
    /// The sample's number in its data set, counted from 0, where it is known.
    pub sample: Option<usize>,
    /// What the set is for, `the training` say.
    pub of: &'static str,
    /// Which of the sample's labels it is, counted from 0, if the sample has several: tokens of a text, or pixels.
    pub place: Option<usize>,
    /// The label, or the token.
    pub label: i64,
    /// How many scores the model makes, or rows its embedding has.
    pub scores: usize,
    /// What the label is.
    pub index: IndexOf,
}

impl WrongLabel {
    /// `samples` are the numbers of the samples that the rows are of, as many rows each.
    fn new(wrong: WrongTarget, samples: &[usize], of: &'static str) -> Self {
        let WrongTarget {
            row,
            rows,
            target,
            classes,
            index,
        } = wrong;
        let each = rows.checked_div(samples.len());
        let each = each.filter(|each| *each > 0 && each * samples.len() == rows);
        Self {
            sample: each.and_then(|each| samples.get(row / each).copied()),
            of,
            place: each.filter(|each| *each > 1).map(|each| row % each),
            label: target,
            scores: classes,
            index,
        }
    }

    fn text(&self) -> String {
        let Self {
            sample,
            of,
            place,
            label,
            scores,
            index,
        } = self;
        let sample = sample.map_or_else(
            || format!("a sample of {of}"),
            |sample| format!("sample {sample} of {of}"),
        );
        let place = place.map_or_else(String::new, |place| format!(" at place {place}"));
        let most = scores.saturating_sub(1);
        if *index == IndexOf::Token {
            return format!(
                "{sample} has the token {label}{place}, and the model's embedding has {scores} rows, for tokens 0 to {most}; read \
                 the data with the tokenizer of the model, or give the model the vocabulary of the data"
            );
        }
        let outputs = "the model needs an output for each class of the data (for each token of the vocabulary, in texts)";
        let what_to_do = match label {
            ..0 => format!("labels are counted from 0; {outputs}"),
            _ => format!(
                "{outputs}, here at least {}: set its number of classes, or correct the label",
                label.saturating_add(1)
            ),
        };
        format!(
            "{sample} has the label {label}{place}, and the model makes {scores} scores, for labels 0 to {most}; {what_to_do}"
        )
    }
}

/// Runs a pass over `samples`, in which a label without a score is an error. Where `waits`, labels on a GPU are read, too.
pub(crate) fn checked<R>(
    waits: bool,
    samples: &[usize],
    of: &'static str,
    pass: impl FnOnce() -> R,
) -> Result<R, TrainError> {
    with_checked_targets(waits, pass)
        .map_err(|wrong| TrainError::Label(WrongLabel::new(wrong, samples, of)))
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    fn wrong(row: usize, rows: usize, target: i64) -> WrongTarget {
        WrongTarget {
            row,
            rows,
            target,
            classes: 5,
            index: IndexOf::Class,
        }
    }

    #[test]
    fn a_row_leads_to_its_sample_and_to_the_place_in_it() {
        let found = WrongLabel::new(wrong(1, 3, 7), &[40, 17, 2], "the training");
        assert_eq!((found.sample, found.place), (Some(17), None));
        let found = WrongLabel::new(wrong(7, 12, 7), &[40, 17, 2], "the training");
        assert_eq!((found.sample, found.place), (Some(17), Some(3)));
        for samples in [&[][..], &[1, 2]] {
            let found = WrongLabel::new(wrong(1, 3, 7), samples, "the test");
            assert_eq!((found.sample, found.place), (None, None));
            assert!(found.to_string().starts_with("a sample of the test has"));
        }
    }

    #[test]
    fn it_says_how_many_outputs_are_needed() {
        let text = |label| WrongLabel::new(wrong(0, 1, label), &[3], "the training").to_string();
        assert!(text(7).contains("here at least 8"), "{}", text(7));
        let negative = text(-1);
        negative.assert_contains(["the label -1, and the model makes 5 scores, for labels 0 to 4"]);
        assert!(negative.contains("labels are counted from 0"), "{negative}");
        assert!(text(i64::MAX).contains("the label 9223372036854775807"));
        let token = WrongTarget {
            index: IndexOf::Token,
            ..wrong(4, 6, 7)
        };
        let token = WrongLabel::new(token, &[3, 8], "the training").to_string();
        let whole = "sample 8 of the training has the token 7 at place 1, and the model's embedding has 5 rows";
        assert!(token.starts_with(whole), "{token}");
        assert!(token.contains("the tokenizer of the model"), "{token}");
    }
}
