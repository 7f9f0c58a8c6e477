//! Files whose layers are the model's under other names.

use std::collections::BTreeMap;

use burn::store::burn_pack::Tensor as PackedTensor;

use super::is_count;

/// A file seems to be the model's if at most one shape in this many is only in one of the two: those of a head.
const FEW_LEFT: usize = 10;

/// The ends of the names of a layer's tensors, with their shapes.
type Shapes = BTreeMap<String, Vec<usize>>;

/// What is said of a file in which no tensor has a name of the model, and where each name begins with `prefix`, which
/// those of `theirs` lack.
pub(super) fn diagnosis(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
    prefix: &str,
) -> String {
    let Some(renamed) = renamed_layers(ours, theirs) else {
        let all = ours.len();
        let found = shapes_found(ours, theirs);
        let there = theirs.keys().filter(|name| !is_count(name)).count();
        return match FEW_LEFT * all.max(there).saturating_sub(found) <= all {
            true => format!(
                "no tensor of it has a name of the model, and it has the shapes of {found} of the model's {all} tensors: it \
                 seems to be the model under other names. Save it with the model's, which an export of any run of it has"
            ),
            false => {
                "no tensor of it has a name of the model: it is of another architecture".to_owned()
            }
        };
    };
    let names: Vec<String> = renamed
        .iter()
        .map(|(theirs, ours)| format!("{:?}: {ours:?}", format!("{prefix}{theirs}")))
        .collect();
    format!(
        "no tensor of it has a name of the model, and its layers have the model's shapes. Rename them in Python, with \
         names = {{{}}}: {{names[n[:n.rindex(\".\")]] + n[n.rindex(\".\"):]: v for n, v in state.items()}}",
        names.join(", ")
    )
}

/// How many tensors of the model have one of the same shape in the file, each of which counts once.
fn shapes_found(ours: &[PackedTensor], theirs: &BTreeMap<String, PackedTensor>) -> usize {
    let mut shapes = BTreeMap::<&[usize], usize>::new();
    for their in theirs.values() {
        *shapes.entry(&*their.shape).or_default() += 1;
    }
    let is_found = |own: &&PackedTensor| match shapes.get_mut(&*own.shape) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    };
    ours.iter().filter(is_found).count()
}

/// The layers of the file, each with that of the model that has its shapes. `None` if they are not the same, or several have
/// the same shapes: which is which is not known then.
fn renamed_layers(
    ours: &[PackedTensor],
    theirs: &BTreeMap<String, PackedTensor>,
) -> Option<Vec<(String, String)>> {
    let ours = layers(ours.iter())?;
    let theirs = layers(theirs.values())?;
    let mut by_shapes = BTreeMap::new();
    for (name, shapes) in &theirs {
        if by_shapes.insert(shapes, name).is_some() {
            return None;
        }
    }
    if ours.len() != theirs.len() {
        return None;
    }
    // Each is taken once: of two layers of the model with the same shapes, the second finds none.
    let pairs = ours.iter().map(|(name, shapes)| {
        let their = by_shapes.remove(shapes)?;
        Some((their.clone(), name.clone()))
    });
    pairs.collect()
}

/// The shapes of each layer; `None` if a tensor is in no layer.
fn layers<'a>(tensors: impl Iterator<Item = &'a PackedTensor>) -> Option<BTreeMap<String, Shapes>> {
    let mut layers = BTreeMap::<String, Shapes>::new();
    for tensor in tensors.filter(|tensor| !is_count(&tensor.name)) {
        let (layer, end) = tensor.name.rsplit_once('.')?;
        let shapes = layers.entry(layer.to_owned()).or_default();
        shapes.insert(end.to_owned(), tensor.shape.to_vec());
    }
    Some(layers)
}
