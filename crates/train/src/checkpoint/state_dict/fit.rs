//! Whether the tensors of a file are those of a model.

mod diagnosis;
mod names;
mod patterns;
mod prefixed;
mod transposed;

use std::collections::{BTreeMap, BTreeSet};

use burn::store::burn_pack::Tensor as PackedTensor;

use self::diagnosis::Differences;
pub(super) use self::patterns::check_patterns;
use super::is_count;
use crate::config::parameter_groups::Patterns;

/// How many differences are shown.
const MOST_SHOWN: usize = 8;

/// How many are all shown where no name is the model's.
const SMALL: usize = 20;

/// How a file of weights differs from the model.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{TrainError, WeightsMismatch};
///
/// /// The pattern of `init_skip` for a model with another head.
/// fn head(error: &TrainError) -> Option<&str> {
///     match error {
///         TrainError::Weights { mismatch: WeightsMismatch::OtherHead { skip }, .. } => Some(skip),
///         _ => None,
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightsMismatch {
    /// The same architecture, with other sizes or another number of layers.
    OtherSize {
        /// The patterns that leave out the layers that differ; none where nothing fits, or too many differ.
        skip: Vec<String>,
    },
    /// Another architecture, or other names for all tensors.
    OtherArchitecture,
    /// The `config.json` of a folder states other sizes than the weights beside it have.
    OtherConfig,
    /// Only one layer has other shapes: most likely a head for other classes.
    OtherHead {
        /// The pattern that leaves it out.
        skip: String,
    },
    /// Single tensors are missing in the file, and all others fit.
    Missing {
        /// The patterns that leave them out.
        skip: Vec<String>,
    },
    /// Single tensors are unknown or of another type, or several faults come together.
    Tensors,
}

/// How the tensors of a file differ from the model's, and what is wrong with them, a line each; `None` if nothing. The
/// lines name tensors as the file does, by `their_name`; in the file, all names begin with `prefix`.
pub(in crate::checkpoint) fn mismatch(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
    prefix: &str,
    their_name: &dyn Fn(&str) -> String,
) -> Option<(WeightsMismatch, String)> {
    let found = Differences::of(ours, theirs, their_name);
    if found.is_empty() {
        return None;
    }
    if found.transposed == found.count() {
        let diagnosis = transposed::diagnosis(found.transposed);
        return Some((WeightsMismatch::Tensors, diagnosis + &found.shown()));
    }
    if let Some(layer) = other_head(ours, theirs) {
        let skip = format!("{layer}.*");
        let hint = format!(
            "\n  (a training with `init_skip = '{skip}'` begins with new weights there: a head for other classes)"
        );
        return Some((WeightsMismatch::OtherHead { skip }, found.shown() + &hint));
    }
    if let Some(problems) = prefixed::problems(ours, theirs, their_name) {
        return Some((WeightsMismatch::Tensors, problems));
    }
    let (mismatch, diagnosis) = found.diagnosis(ours, theirs, prefix);
    // Where no name is the model's, all of a small model are of use.
    let shown = match mismatch {
        WeightsMismatch::OtherArchitecture if found.count() <= SMALL => found.shown_up_to(SMALL),
        _ => found.shown(),
    };
    Some((mismatch, diagnosis + &shown))
}

/// How the tensors of a file differ from those of a model, a line for each of the first; empty if they do not.
pub(in crate::checkpoint) fn differences(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
) -> String {
    Differences::of(ours, theirs, &str::to_owned).shown()
}

fn fits(own: &PackedTensor, theirs: &BTreeMap<String, PackedTensor>) -> bool {
    let their = theirs.get(&own.name);
    their.is_some_and(|their| *their.shape == *own.shape)
}

/// What `init_skip` has to say to leave `unknown` out of a file, and none of its other tensors: the first parts of their
/// names, or of a layer, or whole names; `None` if these are many.
fn patterns_of(unknown: &[&str], theirs: &BTreeMap<String, PackedTensor>) -> Option<String> {
    let is_other = |name: &&String| !is_count(name) && !unknown.contains(&&***name);
    let others = || theirs.keys().filter(is_other);
    let patterns = unknown.iter().map(|name| {
        let first = name.split_once('.').map(|(first, _)| first);
        let layer = name.rsplit_once('.').map(|(layer, _)| layer);
        let patterns = [first, layer].into_iter().flatten();
        let mut patterns = patterns.map(|part| format!("{part}.*"));
        let is_apart = |pattern: &String| {
            let pattern = Patterns::from(pattern.as_str());
            !others().any(|other| pattern.fit(other))
        };
        patterns
            .find(is_apart)
            .unwrap_or_else(|| (*name).to_owned())
    });
    let patterns: BTreeSet<String> = patterns.collect();
    let patterns = patterns.iter();
    let patterns: Vec<String> = patterns
        .map(|pattern| format!("`init_skip = '{}'`", pattern.escape_debug()))
        .collect();
    (patterns.len() <= MOST_SHOWN).then(|| patterns.join(" "))
}

/// The patterns of the layers in which the model and the file differ, if they are few and leave tensors that fit.
fn layers_that_differ(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
) -> Vec<String> {
    let fitting = ours.iter().filter(|own| fits(own, theirs));
    let fitting: BTreeSet<&str> = fitting.map(|own| &*own.name).collect();
    let names = ours.iter().map(|own| &own.name).chain(theirs.keys());
    let differing = names.filter(|name| !is_count(name) && !fitting.contains(&***name));
    let patterns = differing.map(|name| match name.rsplit_once('.') {
        Some((layer, _)) => format!("{layer}.*"),
        None => name.clone(),
    });
    let patterns: BTreeSet<String> = patterns.collect();
    if patterns.len() > MOST_SHOWN {
        return Vec::new();
    }
    let patterns: Vec<String> = patterns.into_iter().collect();
    let skip = Patterns::from(patterns.clone());
    match ours.iter().any(|own| !skip.fit(&own.name)) {
        true => patterns,
        false => Vec::new(),
    }
}

/// The head, if the last layer of the model has other shapes than that of the file and all else fits.
fn other_head<'a>(
    ours: &'a [PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
) -> Option<&'a str> {
    let mut layers = ours
        .iter()
        .filter(|tensor| !fits(tensor, theirs))
        .map(|tensor| {
            let there = theirs.contains_key(&tensor.name);
            tensor.name.rsplit_once('.').filter(|_| there)
        });
    let (layer, _) = layers.next()??;
    let is_ours = |name: &String| is_count(name) || ours.iter().any(|own| own.name == *name);
    let alone = layers.all(|other| other.is_some_and(|(other, _)| other == layer));
    let is_last = ours.last().is_some_and(|tensor| !fits(tensor, theirs));
    (alone && is_last && theirs.keys().all(is_ours)).then_some(layer)
}

#[cfg(test)]
mod tests;
