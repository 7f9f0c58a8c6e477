//! Which dict of a file holds the weights.
//!
//! A state dict has tensors under its keys. A checkpoint has one in an entry, whose name differs from one program to
//! the next. So all dicts are looked at that are reached through keys that are texts (an optimizer numbers its own),
//! level by level; those under the usual names come before others, and those further out before those further in. Where
//! several are left that are not the same tensors, the file does not say which is meant, and nothing is guessed.

use std::collections::BTreeMap;

use crate::error::{Shown, WeightsError, pickle as refuse};
use crate::pickle::{Built, Id, LONGEST_NAME, Value};

/// Entries of a checkpoint that are the model's state dict, in PyTorch's tutorials and elsewhere.
pub(crate) const IN_CHECKPOINTS: [&[u8]; 3] = [b"state_dict", b"model_state_dict", b"model"];

/// How many dicts weights may be in: a checkpoint of a checkpoint is two deep.
const DEEPEST: usize = 4;

/// How many dicts an error names.
const NAMED: usize = 8;

/// A dict that was met on the way.
struct Met<'a> {
    dict: Id,
    key: &'a [u8],
    /// The dict that it is in, by its place among those met.
    parent: Option<usize>,
    depth: usize,
    /// Whether a key on the way is one of [`IN_CHECKPOINTS`].
    usual: bool,
}

/// Which of a checkpoint's entries is read, by [`WeightsFile::entry`](crate::WeightsFile::entry). The keys to an entry have
/// points between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The entry that is read; empty where the file holds a state dict itself.
    pub taken: String,
    /// Others that hold tensors, and not the same; the first of them where they are many.
    pub others: Vec<String>,
}

/// The tensors of the dict that holds the weights, by name, and which dict it is.
///
/// # Errors
/// [`WeightsError::Ambiguous`], and [`WeightsError::Pickle`] where there is none.
pub(crate) fn state_dict<'a>(
    built: &Built<'a>,
) -> Result<(BTreeMap<&'a [u8], u32>, Entry), WeightsError> {
    let Value::Dict(root) = built.root else {
        return Err(refuse("it holds no dict; save the model's state_dict()"));
    };
    let met = meet(built, root);
    let with_tensors: Vec<usize> = (0..met.len())
        .filter(|place| has_tensors(built, met[*place].dict))
        .collect();
    let mut candidates = with_tensors.clone();
    if candidates.iter().any(|place| met[*place].usual) {
        candidates.retain(|place| met[*place].usual);
    }
    // They were met level by level.
    let level = candidates.first().map(|place| met[*place].depth);
    candidates.retain(|place| Some(met[*place].depth) == level);
    let Some((first, others)) = candidates.split_first() else {
        let has = |key: &[u8]| built.named(root).any(|(name, _)| built.bytes(name) == key);
        if has(b"state") && has(b"param_groups") {
            return Err(refuse(
                "it is the state of an optimizer, and has no weights of a model; save the model's state_dict()",
            ));
        }
        return Err(refuse(
            "there is no tensor in its dict; save the model's state_dict()",
        ));
    };
    let tensors = tensors(built, met[*first].dict)?;
    for other in others {
        if !is_same(built, &tensors, met[*other].dict)? {
            let named = candidates
                .iter()
                .take(NAMED)
                .map(|place| path(&met, *place));
            let mut named: Vec<String> = named.collect();
            if candidates.len() > NAMED {
                named.push(format!("{} more", candidates.len() - NAMED));
            }
            return Err(WeightsError::Ambiguous { candidates: named });
        }
    }
    let others = with_tensors.into_iter();
    let others = others.filter(|place| place != first && met[*place].parent.is_some());
    let is_other = |place: &usize| !is_same(built, &tensors, met[*place].dict).unwrap_or(false);
    let others = others.take(NAMED).filter(is_other);
    let entry = Entry {
        taken: path(&met, *first),
        others: others.map(|place| path(&met, place)).collect(),
    };
    Ok((tensors, entry))
}

/// All dicts within [`DEEPEST`], each once.
fn meet<'a>(built: &Built<'a>, root: Id) -> Vec<Met<'a>> {
    let mut places = BTreeMap::from([(root, 0)]);
    let mut met = vec![Met {
        dict: root,
        key: b"",
        parent: None,
        depth: 0,
        usual: false,
    }];
    let mut next = 0;
    while next < met.len() {
        let (dict, depth, usual) = (met[next].dict, met[next].depth, met[next].usual);
        let inner = built.named(dict).filter(|_| depth < DEEPEST);
        for (key, value) in inner {
            let Value::Dict(dict) = value else {
                continue;
            };
            let key = built.bytes(key);
            let usual = usual || IN_CHECKPOINTS.contains(&key);
            let place = *places.entry(dict).or_insert(met.len());
            if place == met.len() {
                met.push(Met {
                    dict,
                    key,
                    parent: Some(next),
                    depth: depth + 1,
                    usual,
                });
            } else if met[place].depth == depth + 1 {
                // One dict in two entries has the better name of both.
                met[place].usual |= usual;
            }
        }
        next += 1;
    }
    met
}

fn has_tensors(built: &Built<'_>, dict: Id) -> bool {
    let mut named = built.named(dict);
    named.any(|(_, value)| matches!(value, Value::Tensor(_)))
}

/// The tensors of a dict; as in Python, the last one of a name counts.
fn tensors<'a>(built: &Built<'a>, dict: Id) -> Result<BTreeMap<&'a [u8], u32>, WeightsError> {
    let named = built.named(dict).filter_map(|(name, value)| match value {
        Value::Tensor(tensor) => Some((name, tensor)),
        _ => None,
    });
    let named = named.map(|(name, tensor)| match name.is_short() {
        true => Ok((built.bytes(name), tensor)),
        false => Err(refuse(format!(
            "a tensor in it has a name of more than {LONGEST_NAME} bytes"
        ))),
    });
    named.collect()
}

/// Whether a dict has these tensors: the same numbers of the same storages under the same names.
fn is_same(built: &Built<'_>, ours: &BTreeMap<&[u8], u32>, dict: Id) -> Result<bool, WeightsError> {
    let theirs = tensors(built, dict)?;
    let mut pairs = ours.iter().zip(&theirs);
    let same = pairs.all(|((our_name, ours), (their_name, theirs))| {
        our_name == their_name && (ours == theirs || shows_the_same(built, *ours, *theirs))
    });
    Ok(same && ours.len() == theirs.len())
}

fn shows_the_same(built: &Built<'_>, ours: u32, theirs: u32) -> bool {
    let parts = |tensor: u32| {
        let tensor = built.tensor(tensor);
        let storage = built.storage(tensor.storage);
        (
            built.bytes(storage.key),
            storage.class,
            storage.count,
            tensor.offset,
            (tensor.dtype, tensor.metadata),
        )
    };
    let sizes = |tensor: u32| {
        let tensor = built.tensor(tensor);
        [tensor.shape, tensor.strides].map(|sizes| built.tuple(sizes).iter().map(size))
    };
    let size_of = |(ours, theirs): (Option<u64>, Option<u64>)| ours.is_some() && ours == theirs;
    parts(ours) == parts(theirs)
        && sizes(ours)
            .into_iter()
            .zip(sizes(theirs))
            .all(|(ours, theirs)| ours.len() == theirs.len() && ours.zip(theirs).all(size_of))
}

/// A size of a tensor, if the value is one.
pub(crate) fn size(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// The keys to a dict.
fn path(met: &[Met<'_>], place: usize) -> String {
    let mut keys = Vec::new();
    let mut next = Some(place);
    while let Some(this) = next {
        next = met[this].parent;
        if next.is_some() {
            keys.push(Shown(met[this].key).to_string());
        }
    }
    keys.reverse();
    keys.join(".")
}
