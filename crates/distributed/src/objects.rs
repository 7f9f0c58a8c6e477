//! Objects of any type between ranks.

use everburn_collectives::group::ProcessGroup;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::error::DdpError;

/// Gives every rank of `group` the objects of all ranks, in rank order; `own` is this rank's. They travel as JSON, and may
/// be read as another type than they were written as. All ranks call it.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::all_gather_object;
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let names = all_gather_object::<Vec<String>>(&group, &["weight", "bias"])?;
/// assert_eq!(names, [["weight", "bias"]]);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
///
/// # Errors
/// [`DdpError::Object`] if `own` cannot be written as JSON, or the object of a rank cannot be read as a `T`;
/// [`DdpError::Collective`] if a collective fails.
pub fn all_gather_object<T: DeserializeOwned>(
    group: &ProcessGroup,
    own: &impl Serialize,
) -> Result<Vec<T>, DdpError> {
    let wrong = |rank, error: serde_json::Error| DdpError::Object {
        rank,
        reason: error.to_string(),
    };
    let job_ranks = group.job_ranks();
    let own = serde_json::to_vec(own).map_err(|error| wrong(job_ranks[group.rank()], error))?;
    let all = group.all_gather_varied(own).wait()?;
    let all = all.iter().zip(job_ranks);
    let read = |(json, rank): (&Vec<u8>, &usize)| {
        serde_json::from_slice(json).map_err(|error| wrong(*rank, error))
    };
    all.map(read).collect()
}

/// The first rank whose text is not rank 0's, with both texts; `None` where all ranks have the same. All ranks call it. They
/// compare hashes, and exchange the texts only where these differ.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::find_different_text;
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// assert_eq!(find_different_text(&group, "learning_rate = 0.1")?, None);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
///
/// # Errors
/// [`DdpError::Collective`] if a collective fails.
pub fn find_different_text(
    group: &ProcessGroup,
    own: &str,
) -> Result<Option<(usize, [String; 2])>, DdpError> {
    let hashes = group.all_gather(Sha256::digest(own).to_vec()).wait()?;
    let Some(rank) = hashes.iter().position(|hash| *hash != hashes[0]) else {
        return Ok(None);
    };
    let mut texts = all_gather_object::<String>(group, &own)?;
    let texts = [
        std::mem::take(&mut texts[0]),
        std::mem::take(&mut texts[rank]),
    ];
    Ok(Some((rank, texts)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_ranks::on_ranks;

    #[test]
    fn objects_come_in_rank_order_and_an_unreadable_one_names_its_rank_everywhere() {
        let gathered = on_ranks(3, |group| {
            let own = (group.rank(), "x".repeat(group.rank()));
            let objects = all_gather_object::<(usize, String)>(&group, &own).unwrap();
            let own = match group.rank() {
                2 => Some("text"),
                _ => None,
            };
            let error = all_gather_object::<Option<u32>>(&group, &own).unwrap_err();
            (objects, error.to_string())
        });
        let expected = [0, 1, 2].map(|rank| (rank, "x".repeat(rank)));
        for (objects, error) in gathered {
            assert_eq!(objects, expected);
            assert!(
                error.starts_with("the object of rank 2 cannot be exchanged"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_first_text_that_is_not_that_of_rank_0_is_found_by_all() {
        let found = on_ranks(3, |group| {
            let same = find_different_text(&group, "same").unwrap();
            let own = ["a", "a", "b"][group.rank()];
            (same, find_different_text(&group, own).unwrap())
        });
        for (same, different) in found {
            assert_eq!(same, None);
            assert_eq!(different, Some((2, ["a", "b"].map(str::to_owned))));
        }
    }
}
