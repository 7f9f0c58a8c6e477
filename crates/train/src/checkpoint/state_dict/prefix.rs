//! What is before the names of all tensors of a file.

use std::collections::BTreeMap;

use burn::store::burn_pack::Tensor as PackedTensor;

use crate::config::parameter_groups::Patterns;

/// What `DistributedDataParallel` and `torch.compile` put before all names of the model that they wrap.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// The tensors without [`WRAPPERS`] before all their names.
pub(super) fn without_wrappers(
    mut tensors: BTreeMap<String, PackedTensor>,
) -> BTreeMap<String, PackedTensor> {
    while let Some(prefix) = common_prefix(&tensors).filter(|it| WRAPPERS.contains(&it.as_str())) {
        tensors = strip(tensors, &prefix);
    }
    tensors
}

/// The tensors without a first part of the path that all names have, and that is not the model's; and that part. A
/// Lightning module calls the model `model` or `net`, and its checkpoint has that before each name. Without it, `skip` may name
/// a tensor, and those left may share a further part: `model.head` next to `model.backbone`. `forms` gains all names met.
pub(super) fn without_prefix(
    mut tensors: BTreeMap<String, PackedTensor>,
    skip: &Patterns,
    forms: &mut Vec<String>,
    is_of_model: impl Fn(&str, &BTreeMap<String, PackedTensor>) -> bool,
) -> (String, BTreeMap<String, PackedTensor>) {
    let mut shared = String::new();
    while let Some(prefix) = common_prefix(&tensors).filter(|prefix| !is_of_model(prefix, &tensors))
    {
        tensors = strip(tensors, &prefix);
        shared.push_str(&prefix);
        forms.extend(tensors.keys().cloned());
        tensors.retain(|name, _| !skip.fit(name));
    }
    (shared, tensors)
}

/// The first part of the path, with its dot, if all names have the same and something after it.
fn common_prefix(tensors: &BTreeMap<String, PackedTensor>) -> Option<String> {
    let (first, _) = tensors.first_key_value()?;
    let prefix = &first[..=first.find('.')?];
    let all = tensors
        .keys()
        .all(|name| name.len() > prefix.len() && name.starts_with(prefix));
    all.then(|| prefix.to_string())
}

fn strip(tensors: BTreeMap<String, PackedTensor>, prefix: &str) -> BTreeMap<String, PackedTensor> {
    let stripped = tensors.into_iter().map(|(name, mut tensor)| {
        let name = name[prefix.len()..].to_string();
        tensor.name.clone_from(&name);
        (name, tensor)
    });
    stripped.collect()
}
