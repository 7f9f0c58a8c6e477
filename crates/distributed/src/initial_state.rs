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
    config: &str,
) -> Result<(), DdpError> {
    if group.world_size() == 1 {
        return Ok(());
    }
    let mut text = tensors.iter().map(|t| format!("{t}\n")).collect::<String>();
    text.push_str(config);
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
    let mut values = Vec::with_capacity(state.len());
    let mut chunk = Vec::new();
    let mut waiting = Vec::new();
    let mut tensors = state.into_iter().map(|(_, data)| data).peekable();
    while let Some(data) = tensors.next() {
        chunk.extend_from_slice(data.as_bytes());
        waiting.push((data.as_bytes().len(), data.shape().clone(), data.dtype()));
        drop(data);
        if chunk.len() < bucket_bytes && tensors.peek().is_some() {
            continue;
        }
        group.broadcast_in_place(&mut chunk, 0)?;
        let mut rest = chunk.as_slice();
        for (bytes, shape, dtype) in waiting.drain(..) {
            let (own, others) = rest.split_at(bytes);
            rest = others;
            values.push(TensorData::from_bytes_vec(own.to_vec(), shape, dtype));
        }
        chunk.clear();
    }
    Ok(replicas::replace(model, values))
}
