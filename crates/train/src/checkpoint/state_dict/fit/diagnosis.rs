//! The tensors in which a file differs from a model, and what it seems to hold in place of it.

use std::collections::{BTreeMap, BTreeSet};

use burn::store::burn_pack::Tensor as PackedTensor;

use super::transposed::is_transposed;
use super::{MOST_SHOWN, WeightsMismatch, fits, layers_that_differ, names, patterns_of};
use crate::checkpoint::state_dict::is_count;

/// Tensors that are missing or unknown are few, if a model has this many times as many: it is no other model then.
const FEW: usize = 10;

/// How the tensors of a file differ from those of a model, a line for each.
#[derive(Default)]
pub(super) struct Differences {
    /// They have another shape or type.
    pub(super) other: Vec<String>,
    /// How many of those have the shape of the model's, and are integers.
    integers: usize,
    /// How many of those are matrices that the file has transposed.
    pub(super) transposed: usize,
    /// They are in the file only.
    pub(super) unknown: Vec<String>,
    /// They are in the model only.
    pub(super) missing: Vec<String>,
}

impl Differences {
    pub(super) fn of(
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
            // No count of batches is read.
            if known.contains(&**name) || is_count(name) {
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

    pub(super) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    pub(super) fn count(&self) -> usize {
        self.other.len() + self.unknown.len() + self.missing.len()
    }

    /// The first of each kind, and how many more there are.
    pub(super) fn shown(&self) -> String {
        self.shown_up_to(MOST_SHOWN)
    }

    /// The same with at most `most` of them.
    pub(super) fn shown_up_to(&self, most: usize) -> String {
        let other = self.other.len().min(most);
        let left = most - other;
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
    pub(super) fn diagnosis(
        &self,
        ours: &[PackedTensor],
        theirs: &BTreeMap<String, PackedTensor>,
        prefix: &str,
    ) -> (WeightsMismatch, String) {
        use WeightsMismatch::{Missing, OtherArchitecture, OtherSize, Tensors};

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
            (0, ..) => (OtherArchitecture, names::diagnosis(ours, theirs, prefix)),
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
            (_, 0, missing) if self.other.is_empty() && (missing <= few || self.lacks_a_layer(ours)) => {
                let skip = self.patterns_of_missing(ours);
                let patterns = skip.iter().map(|it| format!("`init_skip = '{it}'`"));
                let training = match skip.is_empty() {
                    true => String::new(),
                    false => format!(
                        " A training with {} begins with new weights there; an import needs all tensors",
                        patterns.collect::<Vec<_>>().join(" ")
                    ),
                };
                let text = format!(
                    "the file lacks {missing} of the model's {all} tensors, and all others fit: was it saved whole?{training}"
                );
                (Missing { skip }, text)
            }
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
    pub(super) fn layer_missing(&self) -> Option<String> {
        let layer = |name: &str| name.rsplit_once('.').map(|(layer, _)| layer.to_owned());
        let mut layers = self.missing_names().map(layer);
        let first = layers.next().flatten()?;
        layers
            .all(|other| other.as_deref() == Some(&first))
            .then_some(first)
    }

    /// Whether the file lacks one layer of the model, and all of it: a head, say.
    pub(super) fn lacks_a_layer(&self, ours: &[PackedTensor]) -> bool {
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
    /// missing, else their names; nothing where they are too many to name.
    fn patterns_of_missing(&self, ours: &[PackedTensor]) -> Vec<String> {
        match self.layer_missing() {
            Some(layer) if self.lacks_a_layer(ours) => vec![format!("{layer}.*")],
            _ if self.missing.len() > MOST_SHOWN => Vec::new(),
            _ => self.missing_names().map(str::to_owned).collect(),
        }
    }
}
