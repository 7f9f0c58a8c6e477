//! Every rank starts with the same model: the same structure, and rank 0's values.

use burn::module::Module;
use burn::tensor::TensorData;
use everburn_collectives::group::ProcessGroup;

use crate::error::DdpError;
use crate::replicas::{self, TensorDescription};

/// All ranks exchange what they have built, and all reach the same verdict.
pub(crate) fn check_equal_structure(
    group: &ProcessGroup,
    tensors: &[TensorDescription],
) -> Result<(), DdpError> {
    if group.world_size() == 1 {
        return Ok(());
    }
    let text = tensors.iter().map(|t| format!("{t}\n")).collect::<String>();
    let all = group.all_gather_varied(text.into_bytes()).wait()?;
    let all = all
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes))
        .collect::<Vec<_>>();
    for (rank, theirs) in all.iter().enumerate() {
        if *theirs == all[0] {
            continue;
        }
        let (mut ours, mut theirs) = (all[0].lines(), theirs.lines());
        let mut position = 0;
        loop {
            let pair = (ours.next(), theirs.next());
            if pair.0 != pair.1 || pair.0.is_none() {
                let name = |line: Option<&str>| line.unwrap_or("missing").to_string();
                return Err(DdpError::DifferentModels {
                    rank,
                    position,
                    ours: name(pair.0),
                    theirs: name(pair.1),
                });
            }
            position += 1;
        }
    }
    Ok(())
}

/// Rank 0's tensors replace everybody's, a bucket's worth of bytes at a time.
pub(crate) fn broadcast_state<M: Module>(
    model: M,
    group: &ProcessGroup,
    bucket_bytes: usize,
) -> Result<M, DdpError> {
    if group.world_size() == 1 {
        return Ok(model);
    }
    let state = replicas::read(&model)?;
    let mut works = Vec::new();
    let mut chunk = Vec::new();
    for (index, (_, data)) in state.iter().enumerate() {
        chunk.extend_from_slice(data.as_bytes());
        if chunk.len() >= bucket_bytes || index + 1 == state.len() {
            works.push(group.broadcast(std::mem::take(&mut chunk), 0));
        }
    }
    let mut bytes = Vec::new();
    for work in works {
        bytes.extend(work.wait()?);
    }
    let mut rest = bytes.as_slice();
    let values = state
        .into_iter()
        .map(|(_, data)| {
            let (own, others) = rest.split_at(data.as_bytes().len());
            rest = others;
            TensorData::from_bytes_vec(own.to_vec(), data.shape().clone(), data.dtype())
        })
        .collect();
    Ok(replicas::replace(model, values))
}
