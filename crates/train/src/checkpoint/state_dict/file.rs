//! Files of state dicts, and what is wrong with one that cannot be read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use burn::store::burn_pack::Tensor as PackedTensor;
use burn::store::{ModuleStore, SafetensorsStore};
use everburn_record::{Settings, is_run};
use serde_json::Value;

use super::{PRETRAINED_CONFIG, folder, pytorch};
use crate::checkpoint::CheckpointFolder;
use crate::error::TrainError;
use crate::record::run_directory::unread;

/// The longest header of a safetensors file, in bytes: the format's own bound.
const LONGEST_HEADER: u64 = 100_000_000;

/// What the file begins with that git-lfs leaves in place of a large one.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// What an archive begins with, as `torch.save` writes one.
const ARCHIVE: &[u8] = b"PK\x03\x04";

/// What a state dict is that has low-rank factors beside the weights.
pub(super) const WRAPPED_BY_PEFT: &str = "it is the state dict of a model that PEFT wraps: merge the factors into the weights in Python, by \
     `model = model.merge_and_unload()`, and save the state dict of that";

const EMPTY: &str =
    "it is empty: nothing was copied or downloaded; do so again, with enough space on the disk";

const WEB_PAGE: &str = "it is a web page, not the weights: the server has answered the download with an error or a login, which a \
     browser shows; download the weights again";

const POINTER: &str = "it is a pointer of git-lfs, not the weights: `git lfs pull` fetches them";

/// The endings of names by which a [`StateDictFile`] is known. The first is safetensors', the others PyTorch's.
const ENDINGS: [&str; 6] = [".safetensors", ".pt", ".pth", ".pth.tar", ".ckpt", ".bin"];

/// The kind of file that a state dict is in.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::StateDictFile;
///
/// assert_eq!(StateDictFile::of("weights.pt".as_ref()), Some(StateDictFile::PyTorch));
/// assert_eq!(StateDictFile::of("model_best.pth.tar".as_ref()), Some(StateDictFile::PyTorch));
/// assert_eq!(StateDictFile::of("WEIGHTS.SAFETENSORS".as_ref()), Some(StateDictFile::Safetensors));
/// assert_eq!(StateDictFile::of("weights.onnx".as_ref()), None);
/// assert_eq!(StateDictFile::endings(), ".safetensors, .pt, .pth, .pth.tar, .ckpt or .bin");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateDictFile {
    /// `.safetensors`
    Safetensors,
    /// `.pt`, `.pth`, `.pth.tar` (PyTorch's example of ImageNet), `.ckpt` (Lightning) or `.bin` (transformers): what
    /// `torch.save` writes and `torch.load` reads, `weights_only` or not.
    PyTorch,
}

impl StateDictFile {
    /// The kind that the path's ending says, in letters of either case.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let ends_in = |ending: &&str| name.len() > ending.len() && name.ends_with(*ending);
        let [safetensors, pytorch @ ..] = &ENDINGS;
        match ends_in(safetensors) {
            true => Some(Self::Safetensors),
            false => pytorch.iter().any(ends_in).then_some(Self::PyTorch),
        }
    }

    /// Whether the path's ending says that a file is ONNX, which is neither read nor written.
    pub fn is_onnx(path: &Path) -> bool {
        let ending = path.extension();
        ending.is_some_and(|ending| ending.eq_ignore_ascii_case("onnx"))
    }

    /// The entry of PyTorch's checkpoint at `path` that is read, and the others with tensors; `None` if there are no others.
    pub fn entries(path: &Path) -> Option<(String, Vec<String>)> {
        let of_pytorch = Self::of(path) == Some(Self::PyTorch);
        let entry = of_pytorch.then(|| pytorch::entry(path).ok()).flatten()?;
        (!entry.others.is_empty()).then_some((entry.taken, entry.others))
    }

    /// The endings of all kinds, for a sentence.
    pub fn endings() -> String {
        let [first @ .., last] = ENDINGS;
        format!("{} or {last}", first.join(", "))
    }
}

pub(super) fn kind_of(path: &Path) -> Result<StateDictFile, String> {
    StateDictFile::of(path).ok_or_else(|| {
        format!(
            "its kind is known by its name, which must end in {}",
            StateDictFile::endings()
        )
    })
}

/// Whether a file is named as one of several: `model-00001-of-00003.safetensors`.
pub(super) fn is_part(file: &Path) -> bool {
    let name = file.file_stem().and_then(|name| name.to_str());
    let parts = name.and_then(|name| name.rsplit_once("-of-"));
    parts.is_some_and(|(before, count)| {
        let number = before.rsplit('-').next().unwrap_or_default();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        is_number(number) && is_number(count)
    })
}

/// Refuses what is not there, and a folder that is none of transformers, of a run, or of files with an index.
pub(super) fn refuse_plain_folder(path: &Path) -> Result<(), TrainError> {
    let has = |name: &str| path.join(name).is_file();
    if !path.exists() {
        let reason = "there is no such file or folder";
        return Err(unread(path, &reason));
    }
    if !path.is_dir() || has(PRETRAINED_CONFIG) || is_run(path) || folder::has_index(path) {
        return Ok(());
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|error| unread(path, &error))? {
        let file = entry.map_err(|error| unread(path, &error))?.path();
        if StateDictFile::of(&file).is_some() {
            files.push(file);
        }
    }
    if has("adapter_config.json") {
        let reason = "it is an adapter of PEFT, the factors alone: merge it into its pretrained model in Python, by \
                      `model.merge_and_unload().save_pretrained(\"merged\")`, with its tokenizer for a text model, and name the \
                      folder `merged`";
        return Err(unread(path, &reason));
    }
    let reason = match files.into_iter().min() {
        Some(file) if is_part(&file) => format!(
            "it has parts of a state dict, such as {}, and no index, which says what is in which: copy \
             model.safetensors.index.json, too",
            file.display().to_string().escape_debug()
        ),
        Some(file) => format!(
            "it is a folder, and no state dict: name a file in it, such as {}",
            file.display().to_string().escape_debug()
        ),
        None => format!(
            "it is a folder without a state dict: it has no {}, no {PRETRAINED_CONFIG} of transformers, and no config.toml of a \
             run",
            StateDictFile::endings()
        ),
    };
    Err(unread(path, &reason))
}

pub(super) fn read_file(path: &Path) -> Result<BTreeMap<String, PackedTensor>, TrainError> {
    let failed = |error: &dyn std::fmt::Display| unread(path, error);
    let kind = kind_of(path).map_err(|mut reason| {
        if StateDictFile::is_onnx(path) {
            reason += "; ONNX is none of these: save the weights in PyTorch by torch.save(model.state_dict(), \"model.pt\")";
        }
        failed(&reason)
    })?;
    match kind {
        StateDictFile::PyTorch => {
            pytorch::read(path).map_err(|error| match why_not_pytorch(path) {
                Some(reason) => failed(&reason),
                None => failed(&error),
            })
        }
        StateDictFile::Safetensors => {
            // Opened here first, for a better message than the store's.
            File::open(path).map_err(|error| failed(&error))?;
            let mut store = SafetensorsStore::from_file(path);
            let tensors = store.get_all_tensors();
            let tensors = tensors.map_err(|error| match why_not_safetensors(path) {
                Some(reason) => failed(&reason),
                None => failed(&error),
            })?;
            Ok(tensors.clone())
        }
    }
}

/// The first bytes of a file.
fn start(path: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    let file = File::open(path).ok()?;
    file.take(64).read_to_end(&mut start).ok()?;
    Some(start)
}

/// How long the header is that a safetensors file begins with.
fn header_length(start: &[u8]) -> Option<u64> {
    let (length, rest) = start.split_first_chunk()?;
    let length = u64::from_le_bytes(*length);
    let is_json = rest.first().is_none_or(|first| *first == b'{');
    (is_json && length <= LONGEST_HEADER).then_some(length)
}

/// What the metadata of a safetensors file say that has a model's tensors by their names and layouts in Burn, as runs
/// write it. The weights of a linear layer are PyTorch's with rows for columns: a square one would be taken for them.
pub(in crate::checkpoint) const BURNS_TERMS: (&str, &str) = ("layout", "burn");

/// Whether the tensors of a file have their names and layouts in Burn: by its metadata, or by its place in the folder of
/// a run or of a checkpoint: files that were written before there were metadata have none.
pub(super) fn is_in_burns_terms(path: &Path) -> bool {
    let metadata = metadata(path).unwrap_or_default();
    if let Some(layout) = metadata.get(BURNS_TERMS.0) {
        return layout == BURNS_TERMS.1;
    }
    let beside = |name: &str| path.with_file_name(name).is_file();
    let of_a_run = path.ends_with("model.safetensors") || path.ends_with("ema.safetensors");
    let is_ours =
        beside(Settings::FILE) || path.parent().is_some_and(CheckpointFolder::is_checkpoint);
    of_a_run && metadata.is_empty() && is_ours && !beside(PRETRAINED_CONFIG)
}

/// What a safetensors file says of itself.
fn metadata(path: &Path) -> Option<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Header {
        #[serde(rename = "__metadata__", default)]
        metadata: BTreeMap<String, String>,
    }
    let length = header_length(&start(path)?)?;
    let mut header = Vec::new();
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(8)).ok()?;
    file.take(length).read_to_end(&mut header).ok()?;
    let header: Header = serde_json::from_slice(&header).ok()?;
    Some(header.metadata)
}

/// What a file is that begins so and has no weights of any kind, if that is known.
fn why_no_weights(start: &[u8]) -> Option<&'static str> {
    match start.trim_ascii_start() {
        _ if start.is_empty() => Some(EMPTY),
        _ if start.starts_with(LFS_POINTER) => Some(POINTER),
        text if text.starts_with(b"<!")
            || text.starts_with(b"<html")
            || text.starts_with(b"<?xml") =>
        {
            Some(WEB_PAGE)
        }
        _ => None,
    }
}

/// What a `.pt` file seems to be that `torch.load` would not read either, if that is known.
fn why_not_pytorch(path: &Path) -> Option<&'static str> {
    let start = start(path)?;
    if let Some(reason) = why_no_weights(&start) {
        return Some(reason);
    }
    let is_safetensors = start.len() > 8 && header_length(&start).is_some();
    is_safetensors.then_some("it is a .safetensors file: give it a name that ends in .safetensors")
}

/// What is wrong with a file that cannot be read as safetensors, if that is known.
pub(in crate::checkpoint) fn why_not_safetensors(path: &Path) -> Option<String> {
    let start = start(path)?;
    if let Some(reason) = why_no_weights(&start) {
        return Some(reason.to_string());
    }
    if start.starts_with(ARCHIVE) {
        let reason = "it is a file of torch.save: give it a name that ends in .pt";
        return Some(reason.to_string());
    }
    let there = std::fs::metadata(path).ok()?.len();
    let cut_off = |meant: u64| {
        format!("it is cut off: it has {there} bytes of {meant}; was it copied whole?")
    };
    if there < 8 {
        return Some(format!(
            "it is cut off: it has {there} bytes; was it copied whole?"
        ));
    }
    let Some(length) = header_length(&start) else {
        let reason = "it is no .safetensors file: it does not begin with a header";
        return Some(reason.to_string());
    };
    let header = 8 + length;
    if header > there {
        return Some(format!(
            "it is cut off: it has {there} bytes, and its header alone {header}; was it copied whole?"
        ));
    }
    let mut json = Vec::new();
    let file = File::open(path).ok()?;
    file.take(header).read_to_end(&mut json).ok()?;
    let json: Value = serde_json::from_slice(json.get(8..)?).ok()?;
    let ends = json.as_object()?.values();
    let ends = ends.filter_map(|tensor| tensor["data_offsets"].get(1)?.as_u64());
    let meant = header.saturating_add(ends.max().unwrap_or(0));
    (meant > there).then(|| cut_off(meant))
}

#[cfg(test)]
mod tests;
