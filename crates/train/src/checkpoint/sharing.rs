//! A checkpoint that one rank has, given to all.

use std::collections::BTreeMap;

use everburn_collectives::group::{ProcessGroup, Work};
use everburn_distributed::all_gather_object;

use crate::checkpoint::{Checkpoint, CheckpointFolder, Progress};
use crate::error::TrainError;

/// Rank 0 reads and verifies the newest good checkpoint of its folder; all ranks are given its
/// bytes, so that it needs to be on one machine only, or all are given its error.
pub(crate) fn agree_on_newest(
    group: &ProcessGroup,
    folder: Option<&CheckpointFolder>,
) -> Result<Checkpoint, TrainError> {
    let found = match (folder, group.rank()) {
        (Some(folder), 0) => folder
            .load_newest()
            .map(|loaded| {
                for refused in &loaded.refused {
                    tracing::warn!("{refused}");
                }
                tracing::info!("resuming from {}", loaded.path.display());
                loaded.checkpoint
            })
            .map_err(|error| error.to_string()),
        (None, 0) => Err("`Trainer::resume` needs a run directory".to_string()),
        _ => Ok(Checkpoint::default()),
    };
    let others = (1..group.world_size()).collect::<Vec<_>>();
    let shared = share(group, 0, &others, found)?;
    shared.ok_or_else(|| TrainError::Config("no checkpoint was given to this rank".to_string()))
}

/// The tag of a checkpoint's bytes.
const TAG: u64 = u64::from_be_bytes(*b"checkpnt");

/// How many of its bytes are passed on at once.
const PART: usize = 16 << 20;

/// The ranks `takers` are given the checkpoint that rank `source` has `found`, or all ranks its error; what the others say
/// that they found does not count. `None` where this rank is neither.
pub(crate) fn share(
    group: &ProcessGroup,
    source: usize,
    takers: &[usize],
    found: Result<Checkpoint, String>,
) -> Result<Option<Checkpoint>, TrainError> {
    let lengths = found.as_ref().map(|checkpoint| {
        let files = checkpoint
            .files
            .iter()
            .map(|(name, bytes)| (name.clone(), bytes.len()));
        (checkpoint.progress.clone(), files.collect::<Vec<_>>())
    });
    type Head = Result<(Progress, Vec<(String, usize)>), String>;
    let own = (group.rank() == source).then_some(&lengths);
    let mut heads = all_gather_object::<Option<Head>>(group, &own)?;
    let head = heads.swap_remove(source);
    let head = head.unwrap_or_else(|| Err(format!("rank {source} has no checkpoint to give")));
    let (progress, lengths) = head.map_err(TrainError::Config)?;
    let body = found.map(|checkpoint| checkpoint.files.into_values().flatten().collect());
    let ranks = [&[source], takers].concat();
    let contradiction = || {
        let problem = "gave a checkpoint whose bytes are not as many as its files have";
        TrainError::Config(format!(
            "rank {source} {problem}: start every rank with the same program"
        ))
    };
    let mut of_files = lengths.iter().map(|(_, length)| *length);
    let length = of_files.try_fold(0_usize, usize::checked_add);
    let length = length.ok_or_else(contradiction)?;
    let Some(body) = pass_on(group, &ranks, body.unwrap_or_default(), length)? else {
        return Ok(None);
    };
    let files = files_of(lengths, &body).ok_or_else(contradiction)?;
    Ok(Some(Checkpoint { progress, files }))
}

/// Gives the `length` bytes of the first of `ranks` to the rest of them, each of which passes them on to two others: a
/// binary tree.
fn pass_on(
    group: &ProcessGroup,
    ranks: &[usize],
    mut bytes: Vec<u8>,
    length: usize,
) -> Result<Option<Vec<u8>>, TrainError> {
    let Some(place) = ranks.iter().position(|rank| *rank == group.rank()) else {
        return Ok(None);
    };
    let mut sent: Vec<Work<()>> = Vec::new();
    for begin in (0..length).step_by(PART) {
        if place > 0 {
            bytes.extend(group.recv::<u8>(ranks[(place - 1) / 2], TAG).wait()?);
        }
        // Not more than a part waits to be sent.
        sent.drain(..).try_for_each(Work::wait)?;
        let part = bytes[begin.min(bytes.len())..].iter().take(PART);
        let part = part.copied().collect::<Vec<u8>>();
        let below = ranks.iter().skip(2 * place + 1).take(2);
        sent.extend(below.map(|rank| group.send(part.clone(), *rank, TAG)));
    }
    sent.into_iter().try_for_each(Work::wait)?;
    Ok(Some(bytes))
}

/// The files of a checkpoint, whose contents follow each other in `bytes`; `None` if they are not as long as `lengths` say.
fn files_of(lengths: Vec<(String, usize)>, bytes: &[u8]) -> Option<BTreeMap<String, Vec<u8>>> {
    let mut rest = bytes;
    let mut files = BTreeMap::new();
    for (name, length) in lengths {
        let (own, others) = rest.split_at_checked(length)?;
        files.insert(name, own.to_vec());
        rest = others;
    }
    rest.is_empty().then_some(files)
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;
    use everburn_tests::in_parallel;

    use super::*;

    /// What each of four ranks is given of what rank 1 has `found` and rank 2 takes.
    fn shared(found: &Result<Checkpoint, String>) -> Vec<Result<Option<Checkpoint>, String>> {
        let groups = ProcessGroup::over_threads(4, GroupOptions::default());
        in_parallel(groups, |group| {
            let own = match group.rank() {
                1 => found.clone(),
                _ => Ok(Checkpoint::default()),
            };
            share(&group, 1, &[2], own).map_err(|error| error.to_string())
        })
    }

    #[test]
    fn a_checkpoint_without_bytes_reaches_its_taker_and_nobody_else() {
        let checkpoint = Checkpoint {
            progress: Progress {
                step: 7,
                ..Progress::default()
            },
            files: [("empty".to_owned(), Vec::new())].into(),
        };
        let given = shared(&Ok(checkpoint.clone()));
        for (rank, given) in given.into_iter().enumerate() {
            let expected = [1, 2].contains(&rank).then(|| checkpoint.clone());
            assert_eq!(given, Ok(expected), "rank {rank}");
        }
    }

    #[test]
    fn an_error_of_the_rank_that_gives_is_that_of_all() {
        let why = "the checkpoint is damaged";
        for (rank, given) in shared(&Err(why.to_owned())).into_iter().enumerate() {
            assert_eq!(given, Err(why.to_owned()), "rank {rank}");
        }
    }

    #[test]
    fn bytes_reach_every_taker_in_parts_and_nobody_else() {
        let bytes: Vec<u8> = (0..PART + 7).map(|place| (place % 251) as u8).collect();
        let ranks = [2, 0, 1, 5, 6, 3];
        let groups = ProcessGroup::over_threads(7, GroupOptions::default());
        let given = in_parallel(groups, |group| {
            let own = match group.rank() == ranks[0] {
                true => bytes.clone(),
                false => Vec::new(),
            };
            pass_on(&group, &ranks, own, bytes.len()).unwrap()
        });
        for (rank, given) in given.into_iter().enumerate() {
            let expected = ranks.contains(&rank).then(|| bytes.clone());
            assert!(given == expected, "rank {rank}");
        }
    }

    #[test]
    fn lengths_that_contradict_the_bytes_give_no_files() {
        let files = |lengths: [usize; 2]| {
            let named = ["a", "b"].map(str::to_owned).into_iter().zip(lengths);
            files_of(named.collect(), &[1, 2, 3])
        };
        let expected = [("a".to_owned(), vec![1]), ("b".to_owned(), vec![2, 3])];
        assert_eq!(files([1, 2]), Some(expected.into()));
        for wrong in [[1, 3], [4, 0], [1, usize::MAX], [1, 1]] {
            assert_eq!(files(wrong), None, "{wrong:?}");
        }
    }
}
