//! Fingerprints of all that is learnt, by which runs can be compared to the bit.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::Bytes;
use burn_pack::Reader;
use data_encoding::HEXLOWER;
use everburn_distributed::Fingerprint;
use everburn_record::file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{TrainError, with_hint};
use crate::metrics::sums::MetricSums;
use crate::record::kept_lines::keep_lines;

/// How much of a hash is written: 64 bits tell runs apart that differ by accident.
const BYTES: usize = 8;

/// The state of a training after a step: a line of `hashes.jsonl`.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::StateHashes;
///
/// let line = r#"{"step":1,"loss":"3ff0000000000000","tensors":[["conv1.weight","00ff"]]}"#;
/// let one: StateHashes = serde_json::from_str(line).unwrap();
/// let mut other = one.clone();
/// assert_eq!(one.first_difference(&other), None);
/// other.tensors[0].1 = "00fe".to_string();
/// assert_eq!(one.first_difference(&other), Some("conv1.weight"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHashes {
    /// The step, from 1.
    pub step: usize,
    /// The bits of the mean loss over all samples of the step.
    pub loss: String,
    /// Each tensor's path and hash, in the order of the model's fields; then those of the optimizer's
    /// state, by the paths of their parameters.
    pub tensors: Vec<(String, String)>,
}

impl StateHashes {
    /// What of the same step differs first in `other`: `loss`, or the path of a tensor.
    pub fn first_difference<'a>(&'a self, other: &'a Self) -> Option<&'a str> {
        if self.loss != other.loss {
            return Some("loss");
        }
        let pairs = self.tensors.iter().zip(&other.tensors);
        let different = pairs.clone().find(|(ours, theirs)| ours != theirs);
        match different {
            Some((ours, _)) => Some(&ours.0),
            None if self.tensors.len() != other.tensors.len() => Some("the number of tensors"),
            None => None,
        }
    }

    /// The state of `model` and of its optimizer, whose record is `optimizer`.
    pub(crate) fn of<M: Module>(
        step: usize,
        sums: &MetricSums,
        model: &M,
        optimizer: Vec<u8>,
    ) -> Result<Self, TrainError> {
        let model = Fingerprint::of_all(model)?;
        let paths = model.iter().map(|tensor| (tensor.id.val(), &tensor.path));
        let paths = paths.collect::<HashMap<_, _>>();
        let mut states = of_optimizer(optimizer, |id| paths.get(&id).map(|path| (*path).clone()))?;
        states.sort();
        let tensors = model.iter();
        let tensors = tensors.map(|tensor| (tensor.path.clone(), hex(&tensor.hash)));
        Ok(Self {
            step,
            loss: format!("{:016x}", sums.mean_loss().to_bits()),
            tensors: tensors.chain(states).collect(),
        })
    }
}

/// The tensors and numbers of an optimizer's record, whose names begin with a parameter's identity.
fn of_optimizer(
    record: Vec<u8>,
    path_of: impl Fn(u64) -> Option<String>,
) -> Result<Vec<(String, String)>, TrainError> {
    let wrong =
        |error: burn_pack::Error| TrainError::BurnTrain(format!("the optimizer's state: {error}"));
    let named = |name: &str| {
        let (id, rest) = name.split_once('.').unwrap_or((name, ""));
        let path = id.parse().ok().and_then(&path_of);
        format!(
            "optimizer/{}/{rest}",
            path.unwrap_or_else(|| id.to_string())
        )
    };
    let reader = Reader::from_bytes(Bytes::from_bytes_vec(record)).map_err(wrong)?;
    let scalars = reader.scalars().iter();
    let mut states = scalars
        .map(|(name, value)| (named(name), hex(&Sha256::digest(format!("{value:?}")))))
        .collect::<Vec<_>>();
    for tensor in reader.into_tensors().map_err(wrong)? {
        let (name, _, shape, _, bytes) = tensor.into_parts().map_err(wrong)?;
        let mut hash = Sha256::new();
        hash.update(format!("{shape:?}"));
        hash.update(&bytes[..]);
        states.push((named(&name), hex(&hash.finalize())));
    }
    Ok(states)
}

fn hex(hash: &[u8]) -> String {
    HEXLOWER.encode(&hash[..BYTES])
}

/// `hashes.jsonl`, open at its end.
#[derive(Debug)]
pub(crate) struct HashesFile {
    path: PathBuf,
    file: File,
    newest: usize,
}

impl HashesFile {
    pub(crate) const NAME: &str = "hashes.jsonl";

    /// Opens the file of a run that continues after `step`, without what came later.
    pub(crate) fn from(folder: &Path, step: usize) -> Result<Self, TrainError> {
        let path = folder.join(Self::NAME);
        let mut newest = 0;
        // All are looked at, for the newest.
        let is_earlier = |_: &StateHashes| false;
        keep_lines(&path, is_earlier, |line: &StateHashes| {
            let stays = line.step <= step;
            newest = newest.max(if stays { line.step } else { 0 });
            stays
        })?;
        let file = file::append_to(&path);
        let file = file.map_err(|error| TrainError::file("opening", &path, &error))?;
        Ok(Self { path, file, newest })
    }

    /// The newest step that is in the file.
    pub(crate) fn newest(&self) -> usize {
        self.newest
    }

    pub(crate) fn write(&mut self, hashes: &StateHashes) -> Result<(), TrainError> {
        self.newest = hashes.step;
        let line = serde_json::to_string(hashes);
        let line = line.map_err(|error| TrainError::Config(error.to_string()))?;
        let written = writeln!(self.file, "{line}");
        written.map_err(|error| TrainError::write(&self.path, with_hint(&error)))
    }
}
