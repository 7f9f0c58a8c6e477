//! Fingerprints of all that is learnt, by which runs can be compared to the bit, as a chain of lines.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Bytes;
use burn_pack::Reader;
use data_encoding::HEXLOWER;
use everburn_auth::{ChainLink, Key, MAX_TOKEN_BYTES, MIN_TOKEN_BYTES};
use everburn_distributed::Fingerprint;
use everburn_record::file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checkpoint::tensor_file;
use crate::error::{TrainError, with_hint};
use crate::metrics::sums::MetricSums;
use crate::record::kept_lines::keep_lines;
use crate::record::run_directory::unread;

/// How much of a hash is written: 128 bits, for which nobody can find another state on purpose.
const BYTES: usize = 16;

/// How the names of what belongs to the optimizer's state begin.
const OPTIMIZER: &str = "optimizer/";

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
    /// The link of the chain of all lines up to this one, by [`link_after`](Self::link_after); absent before it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// The signature of the link, if the training has a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl StateHashes {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "hashes.jsonl";

    /// The link of the chain after `before`, which is that of the line before this one. Neither `chain` nor `signature` of
    /// this line is part of it.
    pub fn link_after(&self, before: ChainLink) -> ChainLink {
        let state = serde_json::to_vec(&(self.step, &self.loss, &self.tensors));
        before.then(&state.expect("a number and texts have a JSON"))
    }

    /// The key of signatures, from the secret in a file; white space around that does not count.
    ///
    /// # Errors
    /// [`TrainError::File`] if the file cannot be read, or its secret is too short or too long.
    pub fn read_key(path: &Path) -> Result<Key, TrainError> {
        let mut text = String::new();
        // One byte more shows that it is too long.
        let most = MAX_TOKEN_BYTES as u64 + 1;
        let read = File::open(path).and_then(|file| file.take(most).read_to_string(&mut text));
        read.map_err(|error| TrainError::file("reading", path, &error))?;
        let secret = text.trim();
        match (MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&secret.len()) {
            true => Ok(Key::from_secret(secret.as_bytes(), "hashes")),
            false => Err(unread(
                path,
                &format!(
                    "a key has {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} bytes; `openssl rand -hex 32` makes one"
                ),
            )),
        }
    }

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

    /// The first trained parameter that has other numbers in the safetensors file at `path`, or is not in it: `None` if the
    /// file has the trained parameters of this step. Buffers are not compared, because they may change after the step.
    ///
    /// # Errors
    /// [`TrainError::File`] if the file cannot be read.
    pub fn first_difference_in(&self, path: &Path) -> Result<Option<&str>, TrainError> {
        let found = tensor_file::fingerprints(path).map_err(|reason| unread(path, &reason))?;
        let of_states = self.tensors.iter().filter_map(|(name, _)| {
            let (parameter, _) = name.strip_prefix(OPTIMIZER)?.rsplit_once('/')?;
            Some(parameter)
        });
        let trained = of_states.collect::<HashSet<_>>();
        let is_trained = |name: &String| trained.contains(name.as_str());
        let hashes = self.tensors.iter().filter(|(name, _)| is_trained(name));
        let hashes = hashes.map(|(_, hash)| hash).collect::<HashSet<_>>();
        let differs = |(name, hash): &&(String, String)| {
            // A parameter at several places has a state at one of them.
            let is_compared = is_trained(name) || hashes.contains(hash);
            is_compared && found.get(name).is_none_or(|found| hex(found) != *hash)
        };
        let different = self.tensors.iter().find(differs);
        Ok(different.map(|(name, _)| name.as_str()))
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
            chain: None,
            signature: None,
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
            "{OPTIMIZER}{}/{rest}",
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
    file: Arc<File>,
    /// Lines were written that a power cut may take.
    is_unsynced: bool,
    newest: usize,
    /// The link of the newest line.
    head: ChainLink,
    key: Option<Key>,
}

impl HashesFile {
    /// Opens the file of a run that continues after `step`, without what came later. Lines are signed with the secret in
    /// the file `key`, if there is one.
    pub(crate) fn from(folder: &Path, step: usize, key: Option<&Path>) -> Result<Self, TrainError> {
        let key = key.map(StateHashes::read_key).transpose()?;
        let path = folder.join(StateHashes::FILE);
        let (mut newest, mut head) = (0, ChainLink::default());
        // All are looked at, for the newest.
        let is_earlier = |_: &StateHashes| false;
        keep_lines(&path, is_earlier, |line: &StateHashes| {
            let stays = line.step <= step;
            if stays {
                newest = newest.max(line.step);
                let link = line.chain.as_deref().and_then(ChainLink::from_hexadecimal);
                head = link.unwrap_or_default();
            }
            stays
        })?;
        let file = file::append_to(&path);
        let file = file.map_err(|error| TrainError::file("opening", &path, &error))?;
        Ok(Self {
            path,
            file: Arc::new(file),
            // A process that was killed may have written lines.
            is_unsynced: newest > 0,
            newest,
            head,
            key,
        })
    }

    /// The newest step that is in the file.
    pub(crate) fn newest(&self) -> usize {
        self.newest
    }

    /// The link of its newest line.
    pub(crate) fn head(&self) -> ChainLink {
        self.head
    }

    pub(crate) fn write(&mut self, hashes: &StateHashes) -> Result<(), TrainError> {
        self.newest = hashes.step;
        self.is_unsynced = true;
        let link = hashes.link_after(self.head);
        let line = serde_json::to_string(&StateHashes {
            chain: Some(link.to_string()),
            signature: self.key.as_ref().map(|key| link.sign(key)),
            ..hashes.clone()
        });
        let mut line = line.map_err(|error| TrainError::Config(error.to_string()))?;
        line.push('\n');
        // At once: who reads meanwhile, or after a kill, finds a whole line or none.
        let written = self.file.write_all(line.as_bytes());
        written.map_err(|error| TrainError::write(&self.path, with_hint(&error)))?;
        self.head = link;
        Ok(())
    }

    /// What syncs the lines so far to the disk, on any thread: before a checkpoint is there that has their link. Does nothing
    /// if there are no lines since the last call.
    pub(crate) fn begin_sync(
        &mut self,
    ) -> impl FnOnce() -> Result<(), TrainError> + Send + 'static + use<> {
        let is_unsynced = std::mem::take(&mut self.is_unsynced);
        let unsynced = is_unsynced.then(|| (Arc::clone(&self.file), self.path.clone()));
        move || match unsynced {
            None => Ok(()),
            Some((file, path)) => {
                let synced = file.sync_data();
                synced.map_err(|error| TrainError::write(&path, with_hint(&error)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig, LinearLayout};
    use burn::prelude::Device;

    use super::*;
    use crate::{RunDirectory, save_safetensors};

    fn state(step: usize) -> StateHashes {
        StateHashes {
            step,
            loss: format!("{step:016x}"),
            tensors: vec![("weight".to_owned(), "00ff".to_owned())],
            chain: None,
            signature: None,
        }
    }

    fn text(folder: &Path) -> String {
        std::fs::read_to_string(folder.join(StateHashes::FILE)).unwrap()
    }

    #[test]
    fn a_run_that_continues_has_the_chain_of_one_that_was_not_interrupted() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [whole, resumed] = folders.each_ref().map(tempfile::TempDir::path);
        let write = |folder: &Path, after: usize, steps: std::ops::RangeInclusive<usize>| {
            let mut file = HashesFile::from(folder, after, None).unwrap();
            steps.for_each(|step| file.write(&state(step)).unwrap());
            file.head()
        };
        let head = write(whole, 0, 1..=4);
        write(resumed, 0, 1..=3);
        assert_eq!(write(resumed, 2, 3..=4), head);
        assert_eq!(text(resumed), text(whole));
        assert!(text(whole).ends_with(&format!("\"chain\":\"{head}\"}}\n")));
    }

    #[test]
    fn lines_are_synced_once_before_a_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = HashesFile::from(folder.path(), 0, None).unwrap();
        assert!(!file.is_unsynced);
        file.write(&state(1)).unwrap();
        assert!(file.is_unsynced);
        file.begin_sync()().unwrap();
        assert!(!file.is_unsynced);
        let resumed = HashesFile::from(folder.path(), 1, None).unwrap();
        assert!(resumed.is_unsynced, "another process may not have synced");
    }

    #[test]
    fn a_line_is_signed_with_the_secret_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, " a secret of 24 bytes...\n").unwrap();
        let mut file = HashesFile::from(folder.path(), 0, Some(&path)).unwrap();
        file.write(&state(1)).unwrap();
        let line: StateHashes = serde_json::from_str(&text(folder.path())).unwrap();
        let link = line.link_after(ChainLink::default());
        let key = Key::from_secret(b"a secret of 24 bytes...", "hashes");
        assert_eq!(link.verify(&line.signature.unwrap(), &key), Ok(()));
        for length in [15, 1025] {
            std::fs::write(&path, "x".repeat(length)).unwrap();
            let error = StateHashes::read_key(&path).unwrap_err().to_string();
            assert!(error.contains("16 to 1024 bytes"), "{error}");
        }
        let missing = StateHashes::read_key(&folder.path().join("none"));
        assert!(missing.unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn the_trained_parameters_in_a_file_are_compared_whatever_layout_their_layer_has() {
        for layout in [LinearLayout::Row, LinearLayout::Col] {
            let config = LinearConfig::new(3, 2).with_layout(layout);
            let model = || config.init(&Device::flex());
            let folder = tempfile::tempdir().unwrap();
            let run = RunDirectory::create(folder.path().join("run")).unwrap();
            let trained = model();
            let hashes = Fingerprint::of_all(&trained).unwrap().into_iter();
            let hashes = hashes.map(|tensor| (tensor.path, hex(&tensor.hash)));
            let optimizer = ("optimizer/weight/rank".to_owned(), "00".to_owned());
            let state = StateHashes {
                tensors: hashes.chain([optimizer]).collect(),
                ..state(1)
            };
            let difference = |model: &Linear| {
                save_safetensors(model, &run).unwrap();
                let found = state.first_difference_in(&run.model_path()).unwrap();
                found.map(str::to_owned)
            };
            assert_eq!(difference(&trained), None);
            assert_eq!(difference(&model()).as_deref(), Some("weight"));
            let mut with_other_bias = trained.clone();
            with_other_bias.bias = model().bias;
            assert_eq!(difference(&with_other_bias), None, "it has no state");
            std::fs::write(run.model_path(), b"12345678").unwrap();
            let error = state.first_difference_in(&run.model_path()).unwrap_err();
            assert!(error.to_string().contains("too short"), "{error}");
        }
    }
}
