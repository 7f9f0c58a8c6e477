//! The running statistics of every rank, for a checkpoint in which ranks differ.

use std::collections::HashMap;

use burn::module::Module;
use burn::tensor::TensorData;
use everburn_collectives::sync::lock;

use crate::ddp::Ddp;
use crate::error::DdpError;
use crate::replicas::{self, TensorDescription};

/// The running statistics of every rank, as far as they are not the same on all.
///
/// A checkpoint within an epoch has the mean of all ranks in the model, and these besides: as many ranks continue from
/// them with the bits of a training that was not interrupted.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::RankBuffers;
///
/// fn describe(buffers: &RankBuffers) -> String {
///     format!("{} tensors of {} ranks", buffers.tensors.len(), buffers.samples.len())
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RankBuffers {
    /// By path, with a first dimension more: the ranks.
    pub tensors: Vec<(String, TensorData)>,
    /// How many samples each rank has had since all had the same; the mean is weighted by it.
    pub samples: Vec<u64>,
}

impl Ddp {
    /// The running statistics of all ranks, as far as they differ; `None` if all are the same. All ranks call it.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if a collective fails, [`DdpError::Read`] if a device does not give the numbers.
    pub fn rank_buffers<M: Module>(&self, model: &M) -> Result<Option<RankBuffers>, DdpError> {
        let different = self.different_buffers(model)?;
        if different.is_empty() {
            return Ok(None);
        }
        let numbers = different.iter().flat_map(|(_, data)| data.iter::<f64>());
        let own_samples = lock(&self.shared().plan).samples;
        let numbers = self.group().all_gather(numbers.collect::<Vec<f64>>());
        let samples = self.group().all_gather(vec![own_samples as i64]);
        let (numbers, samples) = (numbers.wait()?, samples.wait()?);
        let mut start = 0;
        let stacked = |(tensor, data): (TensorDescription, TensorData)| {
            let range = start..start + data.num_elements();
            start = range.end;
            let rows = numbers.iter().flat_map(|rank| &rank[range.clone()]);
            let shape = [&[numbers.len()][..], tensor.shape.as_slice()].concat();
            let rows = TensorData::new(rows.copied().collect::<Vec<f64>>(), shape);
            (tensor.path, rows.convert_dtype(data.dtype()))
        };
        Ok(Some(RankBuffers {
            tensors: different.into_iter().map(stacked).collect(),
            samples: samples.iter().map(|own| own[0] as u64).collect(),
        }))
    }

    /// `model` with this rank's own of `all`, in all its clones, and the weight that it has for the next mean.
    ///
    /// # Errors
    /// [`DdpError::OtherBuffers`] if `all` are of another number of ranks, or of another model.
    pub fn with_rank_buffers<M: Module>(&self, model: M, all: &RankBuffers) -> Result<M, DdpError> {
        let (rank, ranks) = (self.group().rank(), self.group().world_size());
        let other = |reason: String| DdpError::OtherBuffers { reason };
        let Some(samples) = all.samples.get(rank).filter(|_| all.samples.len() == ranks) else {
            let saved = all.samples.len();
            return Err(other(format!("they are of {saved} ranks, not of {ranks}")));
        };
        let tensors = replicas::describe(&model);
        let mut own = HashMap::new();
        for (path, data) in &all.tensors {
            let tensor = tensors.iter().find(|tensor| tensor.path == *path);
            let tensor = tensor.ok_or_else(|| other(format!("the model has no `{path}`")))?;
            let (shape, saved) = (tensor.shape.as_slice(), data.shape().to_vec());
            if saved != [&[ranks][..], shape].concat() {
                let shape = format!("`{path}` has the shape {shape:?} on each of {ranks} ranks");
                return Err(other(format!("{shape}, and is saved as {saved:?}")));
            }
            let length = shape.iter().product();
            let row = data.iter::<f64>().skip(rank * length).take(length);
            let row = TensorData::new(row.collect::<Vec<_>>(), shape);
            own.insert(tensor.position, row.convert_dtype(tensor.dtype));
        }
        lock(&self.shared().plan).samples = *samples;
        Ok(replicas::replace_some(model, own))
    }
}
