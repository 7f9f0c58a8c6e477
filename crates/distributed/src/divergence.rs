//! Whose replica is no longer that of the others.

use burn::module::Module;
use everburn_collectives::group::ProcessGroup;
use sha2::{Digest, Sha256};

use crate::error::DdpError;
use crate::replicas::{FINGERPRINT_BYTES, fingerprint, read_trained};

/// Replicas that are not equal.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::Divergence;
///
/// let found = Divergence { ranks: vec![1], parameter: "fc1.weight".into(), trusted: Some(0) };
/// assert!(!found.ranks.contains(&found.trusted.unwrap()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The ranks whose parameters are not those of most ranks; where there is no majority, those that
    /// differ from rank 0.
    pub ranks: Vec<usize>,
    /// The path of the first parameter that differs.
    pub parameter: String,
    /// A rank of the majority; `None` where nobody can say who is right.
    pub trusted: Option<usize>,
}

/// Something besides the model's parameters that all ranks must have alike.
pub(crate) struct Extra<'a> {
    name: &'a str,
    hash: [u8; FINGERPRINT_BYTES],
}

impl<'a> Extra<'a> {
    /// Numbers, by what they are called.
    pub(crate) fn of(name: &'a str, values: &[f32]) -> Self {
        let mut hash = Sha256::new();
        for block in values.chunks(1024) {
            hash.update(
                block
                    .iter()
                    .flat_map(|v| v.to_le_bytes())
                    .collect::<Vec<_>>(),
            );
        }
        let hash = hash.finalize().into();
        Self { name, hash }
    }
}

/// The hash of the trained parameters of `model`, which is the same on ranks that have the same parameters.
///
/// # Errors
/// [`DdpError::Read`] if a device does not give the numbers.
pub fn hash_of_parameters<M: Module>(model: &M) -> Result<[u8; 32], DdpError> {
    let tensors = read_trained(model)?;
    let hashes = tensors.iter().flat_map(|(_, data)| fingerprint(data));
    Ok(Sha256::digest(hashes.collect::<Vec<u8>>()).into())
}

/// Compares the trained parameters of all ranks of `group` by hash, all of which call it, and returns whose are
/// others than those of most ranks; `None` where all are equal. Then 32 bytes per rank travel.
///
/// # Errors
/// [`DdpError::Collective`] if a collective fails; [`DdpError::Read`] if a device does not give the numbers.
pub fn find_divergence<M: Module>(
    model: &M,
    group: &ProcessGroup,
) -> Result<Option<Divergence>, DdpError> {
    find_divergence_with(model, &[], group)
}

/// The same, of `extras` too.
pub(crate) fn find_divergence_with<M: Module>(
    model: &M,
    extras: &[Extra<'_>],
    group: &ProcessGroup,
) -> Result<Option<Divergence>, DdpError> {
    let tensors = read_trained(model)?;
    let of_model = tensors.iter().flat_map(|(_, data)| fingerprint(data));
    let of_extras = extras.iter().flat_map(|extra| extra.hash);
    let hashes = of_model.chain(of_extras).collect::<Vec<u8>>();
    let all = group.all_gather(Sha256::digest(&hashes).to_vec()).wait()?;
    if all.iter().all(|theirs| *theirs == all[0]) {
        return Ok(None);
    }
    let every = group.all_gather(hashes).wait()?;
    let trusted = first_of_majority(&all);
    let reference = trusted.unwrap_or(0);
    let differs = |rank: &usize| all[*rank] != all[reference];
    let ranks = (0..all.len()).filter(differs).collect::<Vec<_>>();
    let pairs = |rank: usize| {
        let theirs = every[rank].chunks(FINGERPRINT_BYTES);
        every[reference].chunks(FINGERPRINT_BYTES).zip(theirs)
    };
    let first = ranks.iter();
    let first = first.filter_map(|rank| pairs(*rank).position(|(a, b)| a != b));
    let first = first.min().unwrap_or(0);
    let parameter = match tensors.get(first) {
        Some((tensor, _)) => tensor.path.clone(),
        None => extras[first - tensors.len()].name.to_string(),
    };
    Ok(Some(Divergence {
        parameter,
        ranks,
        trusted,
    }))
}

/// The first rank of the ranks that have the same and are more than half, in `all` by rank.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::first_of_majority;
///
/// assert_eq!(first_of_majority(&["b", "a", "a"]), Some(1));
/// assert_eq!(first_of_majority(&["a", "b"]), None);
/// ```
#[must_use]
pub fn first_of_majority<T: PartialEq>(all: &[T]) -> Option<usize> {
    let votes = |rank: &usize| all.iter().filter(|theirs| **theirs == all[*rank]).count();
    (0..all.len()).find(|rank| 2 * votes(rank) > all.len())
}

#[cfg(test)]
mod tests {
    use super::first_of_majority;

    #[test]
    fn more_than_half_must_agree() {
        assert_eq!(first_of_majority(b"baa"), Some(1));
        assert_eq!(first_of_majority(b"ab"), None);
        assert_eq!(first_of_majority(b"aabb"), None);
        assert_eq!(first_of_majority(b"abbb"), Some(1));
    }
}
