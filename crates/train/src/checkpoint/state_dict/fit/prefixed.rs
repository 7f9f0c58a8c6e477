//! Files in which most of the model's tensors have the same prefix.

use std::collections::BTreeMap;

use burn::store::burn_pack::Tensor as PackedTensor;

use super::diagnosis::Differences;
use super::{fits, is_count, patterns_of};

/// What is wrong with a file in which most of the model's tensors have a prefix, a line each; `None` if it is no such file.
pub(super) fn problems(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
    their_name: &dyn Fn(&str) -> String,
) -> Option<String> {
    let (prefix, fitting) = prefix_that_fits(ours, theirs)?;
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
    // The tensors without the prefix are all that keeps it from being removed.
    let is_all = rest.other.is_empty() && rest.unknown.len() == beside.len();
    let patterns = match is_all && !beside.is_empty() {
        true => patterns_of(&beside, theirs),
        false => None,
    };
    let all = ours.len();
    let prefix = prefix.escape_debug();
    if rest.missing.is_empty()
        && let Some(patterns) = &patterns
    {
        return Some(format!(
            "\n  the model's {all} tensors fit, with `{prefix}` before their names, and the file has {} more: {patterns} leaves \
             out what is no part of the model{}",
            beside.len(),
            rest.shown()
        ));
    }
    let head = rest.layer_missing().filter(|_| rest.lacks_a_layer(ours));
    let new_head = match (patterns, head) {
        (Some(patterns), Some(head)) => format!(
            "\n  (a training with {patterns} `init_skip = '{head}.*'` needs no other file, and begins with new weights in {head})"
        ),
        _ => String::new(),
    };
    let differ = match rest.is_empty() {
        true => "",
        false => "; these differ then, too:",
    };
    Some(format!(
        "\n  {fitting} of the model's {all} tensors have `{prefix}` before their names in the file: save them without it, as in \
         {{name.removeprefix(\"{prefix}\"): tensor}}{differ}{}{new_head}",
        rest.shown()
    ))
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
