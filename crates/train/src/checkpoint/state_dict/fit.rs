//! Whether the tensors of a file are those of a model.

mod patterns;
mod transposed;

use std::collections::{BTreeMap, BTreeSet};

use burn::store::burn_pack::Tensor as PackedTensor;

pub(super) use self::patterns::check_patterns;
use self::transposed::is_transposed;
use super::{BATCHES, is_count};
use crate::config::parameter_groups::Patterns;

/// Tensors that are missing or unknown are few, if a model has this many times as many: it is no other model then.
const FEW: usize = 10;

/// How many differences are shown.
const MOST_SHOWN: usize = 8;

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
    /// Another architecture.
    OtherArchitecture,
    /// The `config.json` of a folder states other sizes than the weights beside it have.
    OtherConfig,
    /// Only one layer has other shapes: most likely a head for other classes.
    OtherHead {
        /// The pattern that leaves it out.
        skip: String,
    },
    /// Single tensors are missing, unknown, or of another type.
    Tensors,
}

/// How the tensors of a file differ from the model's, and what is wrong with them, a line each; `None` if nothing. The
/// lines name tensors as the file does, by `their_name`.
pub(in crate::checkpoint) fn mismatch(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
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
    if let Some((prefix, fitting)) = prefix_that_fits(ours, theirs) {
        let without = theirs.iter().map(|(name, tensor)| {
            let name = name.strip_prefix(&prefix).unwrap_or(name);
            (name.to_string(), tensor.clone())
        });
        let rest = Differences::of(ours, &without.collect(), their_name);
        let is_beside = |name: &&String| !name.starts_with(&*prefix) && !is_count(name);
        let beside: Vec<&str> = theirs
            .keys()
            .filter(is_beside)
            .map(|name| &**name)
            .collect();
        if rest.other.is_empty()
            && rest.missing.is_empty()
            && rest.unknown.len() == beside.len()
            && let Some(patterns) = patterns_of(&beside, theirs)
        {
            let problems = format!(
                "\n  the model's {} tensors fit, with `{}` before their names, and the file has {} more: {patterns} leaves out \
                 what is no part of the model{}",
                ours.len(),
                prefix.escape_debug(),
                beside.len(),
                rest.shown()
            );
            return Some((WeightsMismatch::Tensors, problems));
        }
        let prefix = prefix.escape_debug();
        let problems = format!(
            "\n  {fitting} of the model's {} tensors have `{prefix}` before their names in the file: save them without it, as in \
             {{name.removeprefix(\"{prefix}\"): tensor}}{}{}",
            ours.len(),
            match rest.is_empty() {
                true => "",
                false => "; these differ then, too:",
            },
            rest.shown()
        );
        return Some((WeightsMismatch::Tensors, problems));
    }
    let (mismatch, diagnosis) = found.diagnosis(ours, theirs);
    Some((mismatch, diagnosis + &found.shown()))
}

/// How the tensors of a file differ from those of a model, a line for each of the first; empty if they do not.
pub(in crate::checkpoint) fn differences(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
) -> String {
    Differences::of(ours, theirs, &str::to_owned).shown()
}

/// How the tensors of a file differ from those of a model, a line for each.
#[derive(Default)]
struct Differences {
    /// They have another shape or type.
    other: Vec<String>,
    /// How many of those have the shape of the model's, and are integers.
    integers: usize,
    /// How many of those are matrices that the file has transposed.
    transposed: usize,
    /// They are in the file only.
    unknown: Vec<String>,
    /// They are in the model only.
    missing: Vec<String>,
}

impl Differences {
    fn of(
        ours: &[PackedTensor],
        theirs: &BTreeMap<String, PackedTensor>,
        their_name: &dyn Fn(&str) -> String,
    ) -> Self {
        let mut found = Self::default();
        for tensor in ours {
            let (name, shape) = (their_name(&tensor.name), &*tensor.shape);
            match theirs.get(&tensor.name) {
                None => found.missing.push(format!(
                    "{name} is not in the file, and has shape {shape:?} in the model"
                )),
                Some(their) if *their.shape != *shape => {
                    let transposed = is_transposed(tensor, their);
                    found.transposed += usize::from(transposed);
                    let hint = match transposed {
                        true => ": transposed, save v.t()",
                        false => "",
                    };
                    found.other.push(format!(
                        "{name} has shape {:?} in the file and {shape:?} in the model{hint}",
                        &*their.shape
                    ));
                }
                Some(their) if tensor.dtype.is_float() && !their.dtype.is_float() => {
                    found.integers += 1;
                    found.other.push(format!(
                        "{name} is {:?} in the file and {:?} in the model",
                        their.dtype, tensor.dtype
                    ));
                }
                Some(_) => {}
            }
        }
        let known: BTreeSet<&str> = ours.iter().map(|tensor| &*tensor.name).collect();
        for (name, tensor) in theirs {
            // A count belongs to a batch norm.
            let norm = name.strip_suffix(BATCHES);
            let is_count = |norm: &str| known.contains(&*format!("{norm}running_var"));
            if known.contains(&**name) || norm.is_some_and(is_count) {
                continue;
            }
            // The name is the file's; no control character of it reaches a terminal.
            found.unknown.push(format!(
                "{} has shape {:?} in the file, and is not in the model",
                their_name(name).escape_debug(),
                &*tensor.shape
            ));
        }
        found
    }

    fn is_empty(&self) -> bool {
        self.count() == 0
    }

    fn count(&self) -> usize {
        self.other.len() + self.unknown.len() + self.missing.len()
    }

    /// The first of each kind, and how many more there are.
    fn shown(&self) -> String {
        let other = self.other.len().min(MOST_SHOWN);
        let left = MOST_SHOWN - other;
        let unknown = left.saturating_sub(self.missing.len()).max(left / 2);
        let unknown = unknown.min(self.unknown.len());
        let lines = self.other.iter().take(other);
        let lines = lines.chain(self.unknown.iter().take(unknown));
        let lines = lines.chain(self.missing.iter().take(left - unknown));
        let lines = lines.map(|line| format!("\n  {line}")).collect::<Vec<_>>();
        let more = match self.count() - lines.len() {
            0 => String::new(),
            more => format!("\n  and {more} more"),
        };
        lines.concat() + &more
    }

    /// What the file seems to hold in place of the model.
    fn diagnosis(
        &self,
        ours: &[PackedTensor],
        theirs: &BTreeMap<String, PackedTensor>,
    ) -> (WeightsMismatch, String) {
        use WeightsMismatch::{OtherArchitecture, OtherSize, Tensors};

        let other_size = || OtherSize {
            skip: layers_that_differ(ours, theirs),
        };
        let named = |tensor: &&PackedTensor| theirs.contains_key(&tensor.name);
        let named = ours.iter().filter(named).count();
        let fitting = ours.iter().filter(|tensor| fits(tensor, theirs)).count();
        let all = ours.len();
        // One is few in a small model, too.
        let few = (all / FEW).max(1);
        let (mismatch, diagnosis) = match (named, self.unknown.len(), self.missing.len()) {
            (0, ..) => (
                OtherArchitecture,
                "no tensor of it has a name of the model: it is of another architecture"
                    .to_string(),
            ),
            (_, 0, 0) if self.integers > 0 && self.integers == self.other.len() => (
                Tensors,
                format!(
                    "{} of its tensors hold integers, as quantised weights do: save the weights as floating-point numbers",
                    self.integers
                ),
            ),
            (_, 0, 0) if !self.other.is_empty() => (
                other_size(),
                self.other_shapes(fitting, all, few),
            ),
            (_, 0, _) if self.other.is_empty() && self.lacks_statistics() => (
                Tensors,
                "the file lacks the running statistics of batch norms, running_mean and running_var, and all else fits: save the \
                 whole state_dict(), buffers too"
                    .to_string(),
            ),
            (_, 0, missing) if self.other.is_empty() && (missing <= few || self.lacks_a_layer(ours)) => (
                Tensors,
                format!(
                    "the file lacks {missing} of the model's {all} tensors, and all others fit: was it saved whole? A training \
                     with {} begins with new weights there, and with no others",
                    self.pattern_of_missing(ours)
                ),
            ),
            (_, unknown, 0) if self.other.is_empty() && unknown <= few => (
                Tensors,
                format!(
                    "the model's {all} tensors fit, and the file has {unknown} more: {} leaves out what is no part of the model",
                    self.pattern_of_unknown(ours, theirs)
                ),
            ),
            (_, 0, _) | (_, _, 0) => (
                other_size(),
                format!(
                    "{fitting} of the model's {all} tensors fit: it is a model with other layers or of another size"
                ),
            ),
            _ if fitting == 0 && 2 * named > theirs.len() => (
                other_size(),
                format!(
                    "{named} of the file's {} tensors have names of the model, and other shapes: it is a model of another size, \
                     or with other options",
                    theirs.len()
                ),
            ),
            _ if fitting == 0 => (
                OtherArchitecture,
                "no tensor of it fits: it is of another architecture".to_string(),
            ),
            _ => (
                Tensors,
                format!("{fitting} of the model's {all} tensors fit"),
            ),
        };
        (mismatch, format!("\n  {diagnosis}"))
    }
}

impl Differences {
    /// What is said where the names are the model's, and shapes are not. Few of those are no model of another size.
    fn other_shapes(&self, fitting: usize, all: usize, few: usize) -> String {
        match self.other.len() {
            1 if all > 1 => {
                format!("{fitting} of the model's {all} tensors fit, and 1 has another shape")
            }
            some if some <= few && fitting > 0 => {
                format!("{fitting} of the model's {all} tensors fit, and {some} have other shapes")
            }
            _ => format!(
                "it has the model's names and other shapes: it is a model of another size ({fitting} of {all} tensors fit)"
            ),
        }
    }

    /// The names with which the lines begin.
    fn missing_names(&self) -> impl Iterator<Item = &str> {
        let names = self.missing.iter();
        names.map(|line| line.split(' ').next().unwrap_or_default())
    }

    /// Whether all that the file lacks is what batch norms have seen.
    fn lacks_statistics(&self) -> bool {
        let is_one = |name: &str| name.ends_with("running_mean") || name.ends_with("running_var");
        !self.missing.is_empty() && self.missing_names().all(is_one)
    }

    /// The layer that all missing tensors are of, if it is one.
    fn layer_missing(&self) -> Option<String> {
        let layer = |name: &str| name.rsplit_once('.').map(|(layer, _)| layer.to_owned());
        let mut layers = self.missing_names().map(layer);
        let first = layers.next().flatten()?;
        layers
            .all(|other| other.as_deref() == Some(&first))
            .then_some(first)
    }

    /// Whether the file lacks one layer of the model, and all of it: a head, say.
    fn lacks_a_layer(&self, ours: &[PackedTensor]) -> bool {
        let Some(layer) = self.layer_missing() else {
            return false;
        };
        let of_layer = |tensor: &&PackedTensor| {
            let rest = tensor.name.strip_prefix(&layer);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        ours.iter().filter(of_layer).count() == self.missing.len()
    }

    /// What `init_skip` has to say for the tensors that only the file has.
    fn pattern_of_unknown(
        &self,
        ours: &[PackedTensor],
        theirs: &BTreeMap<String, PackedTensor>,
    ) -> String {
        let known: BTreeSet<&str> = ours.iter().map(|tensor| &*tensor.name).collect();
        let unknown = theirs.keys().map(|name| &**name);
        let unknown = unknown.filter(|name| !known.contains(name) && !is_count(name));
        let unknown: Vec<&str> = unknown.collect();
        patterns_of(&unknown, theirs).unwrap_or_else(|| "`init_skip = '...'`".to_owned())
    }

    /// What `init_skip` has to say for the missing tensors, and for no others: the pattern of their layer if all of it is
    /// missing, else their names.
    fn pattern_of_missing(&self, ours: &[PackedTensor]) -> String {
        match self.layer_missing() {
            Some(layer) if self.lacks_a_layer(ours) => format!("`init_skip = '{layer}.*'`"),
            _ => {
                let names = self.missing_names().take(MOST_SHOWN);
                let names = names
                    .map(|name| format!("`init_skip = '{name}'`"))
                    .collect::<Vec<_>>();
                names.join(" ")
            }
        }
    }
}

fn fits(own: &PackedTensor, theirs: &BTreeMap<String, PackedTensor>) -> bool {
    let their = theirs.get(&own.name);
    their.is_some_and(|their| *their.shape == *own.shape)
}

/// What `init_skip` has to say to leave `unknown` out of a file, and none of its other tensors: the first parts of their
/// names, or of a layer, or whole names; `None` if these are many.
fn patterns_of(unknown: &[&str], theirs: &BTreeMap<String, PackedTensor>) -> Option<String> {
    let others = || theirs.keys().filter(|name| !unknown.contains(&&***name));
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

/// What is before the names in the file of most of the model's tensors, and of how many, if they fit without it and not
/// with it.
fn prefix_that_fits(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
) -> Option<(String, usize)> {
    let known = ours.iter().map(|tensor| (&*tensor.name, tensor));
    let known: BTreeMap<&str, &PackedTensor> = known.collect();
    let mut counts = BTreeMap::<&str, usize>::new();
    for (name, tensor) in theirs {
        for (dot, _) in name.match_indices('.') {
            let (prefix, rest) = name.split_at(dot + 1);
            if known
                .get(rest)
                .is_some_and(|own| *own.shape == *tensor.shape)
            {
                *counts.entry(prefix).or_default() += 1;
            }
        }
    }
    let (prefix, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let with = ours.iter().filter(|tensor| fits(tensor, theirs)).count();
    (2 * count > ours.len() && count > with).then(|| (prefix.to_string(), count))
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
