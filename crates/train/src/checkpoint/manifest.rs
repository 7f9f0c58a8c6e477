//! What a checkpoint says of itself, and whether it is so.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use data_encoding::HEXLOWER;
use everburn_record::Versions;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Checkpoint, Progress};
use crate::checkpoint::tensor_file;

/// The version of the format that this program writes.
pub const FORMAT_VERSION: u32 = 3;

/// The oldest version that it reads.
const OLDEST_VERSION: u32 = 2;

pub(in crate::checkpoint) const MANIFEST: &str = "manifest.json";

/// The file with the manifest's own SHA-256.
pub(in crate::checkpoint) const SEAL: &str = "manifest.sha256";

/// How the names of files end that have tensors by name.
const SAFETENSORS: &str = ".safetensors";

/// A manifest is some hundred bytes a tensor: a longer one is none.
const LONGEST_MANIFEST: u64 = 1 << 28;

/// A file of a checkpoint, as its manifest describes it.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::checkpoint::Manifest;
///
/// fn bytes(manifest: &Manifest) -> u64 {
///     manifest.files.iter().map(|file| file.bytes).sum()
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The file's name in the checkpoint's folder.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

/// A tensor of a checkpoint, as its manifest describes it.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::checkpoint::TensorEntry;
///
/// fn elements(tensor: &TensorEntry) -> usize {
///     tensor.shape.iter().product()
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// The file that it is in.
    pub file: String,
    /// Its name: a path in the model, and in the optimizer's file what it is of that parameter's state.
    pub path: String,
    /// The type of its numbers, as safetensors call it.
    pub dtype: String,
    /// Its shape; empty for a single number.
    pub shape: Vec<usize>,
    /// The SHA-256 of its numbers, in hexadecimal.
    pub sha256: String,
}

/// `manifest.json`.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::checkpoint::Manifest;
///
/// fn show(manifest: &Manifest) {
///     println!("after step {}, {} tensors", manifest.progress.step, manifest.tensors.len());
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format.
    pub format_version: u32,
    /// Where the training stood.
    pub progress: Progress,
    /// The versions with which it was made.
    pub versions: Versions,
    /// The other files.
    pub files: Vec<FileEntry>,
    /// The tensors in them.
    pub tensors: Vec<TensorEntry>,
}

/// What every version has had.
#[derive(Deserialize)]
struct Origin {
    format_version: u32,
    versions: Option<Versions>,
}

impl Manifest {
    /// The description of `checkpoint`.
    ///
    /// # Errors
    /// If what calls itself safetensors is none.
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<Self, String> {
        let mut manifest = Self {
            format_version: FORMAT_VERSION,
            progress: checkpoint.progress.clone(),
            versions: Versions::default(),
            files: Vec::new(),
            tensors: Vec::new(),
        };
        for (name, bytes) in &checkpoint.files {
            manifest.files.push(FileEntry {
                name: name.clone(),
                bytes: bytes.len() as u64,
                sha256: hexadecimal_sha256(bytes),
            });
            if name.ends_with(SAFETENSORS) {
                let tensors =
                    tensors_in(name, bytes).map_err(|error| format!("{name}: {error}"))?;
                manifest.tensors.extend(tensors);
            }
        }
        Ok(manifest)
    }

    /// The manifest of the checkpoint in `folder`.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let text = read_at_most(folder, MANIFEST, LONGEST_MANIFEST)?;
        let damaged = |error: serde_json::Error| format!("{MANIFEST} is damaged: {error}");
        let origin = serde_json::from_slice::<Origin>(&text).map_err(damaged)?;
        if !(OLDEST_VERSION..=FORMAT_VERSION).contains(&origin.format_version) {
            let (version, writer) = (origin.format_version, origin.versions);
            let writer = writer.map_or(String::new(), |versions| {
                format!(", which Everburn {} wrote", versions.everburn)
            });
            let advice = match version > FORMAT_VERSION {
                true => "use that program or a newer one",
                false => "use that program, or start without `Trainer::resume`",
            };
            return Err(format!(
                "its format has version {version}{writer}, and this program reads versions \
                 {OLDEST_VERSION} to {FORMAT_VERSION}: {advice}"
            ));
        }
        let seal = read_at_most(folder, SEAL, 1024)?;
        let sha256 = hexadecimal_sha256(&text);
        if seal != seal_of(&sha256).as_bytes() {
            return Err(format!(
                "{MANIFEST} is damaged: its SHA-256 is {sha256}, and not the one in {SEAL}"
            ));
        }
        let manifest = serde_json::from_slice::<Self>(&text).map_err(damaged)?;
        let outside = |entry: &&FileEntry| Path::new(&entry.name).components().count() != 1;
        match manifest.files.iter().find(outside) {
            Some(entry) => Err(format!("{MANIFEST} names a file outside: {}", entry.name)),
            None => Ok(manifest),
        }
    }

    /// The text of `manifest.json` and that of `manifest.sha256`.
    pub(super) fn texts(&self) -> Result<[(&'static str, Vec<u8>); 2], String> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        let seal = seal_of(&hexadecimal_sha256(&text)).into_bytes();
        Ok([(MANIFEST, text), (SEAL, seal)])
    }

    /// Checks that all files are there in full length; their contents are not read.
    pub(super) fn check_lengths(&self, folder: &Path) -> Result<(), String> {
        self.files
            .iter()
            .try_for_each(|entry| entry.check_length(folder))
    }

    /// The contents of all files.
    ///
    /// # Errors
    /// What is damaged: the tensor, where it is one.
    pub(super) fn read_files(&self, folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
        let mut files = BTreeMap::new();
        for entry in &self.files {
            entry.check_length(folder)?;
            let bytes = read_at_most(folder, &entry.name, entry.bytes)?;
            let sha256 = hexadecimal_sha256(&bytes);
            if sha256 != entry.sha256 {
                let name = &entry.name;
                let tensor = self.damaged_tensor(name, &bytes);
                let what = tensor.map_or_else(
                    || format!("its SHA-256 is {sha256} and should be {}", entry.sha256),
                    |(path, why)| format!("the tensor {path} {why}"),
                );
                return Err(format!("{name} is damaged: {what}"));
            }
            files.insert(entry.name.clone(), bytes);
        }
        Ok(files)
    }

    /// The first tensor of a file that is not what it was, and how it differs.
    fn damaged_tensor(&self, file: &str, bytes: &[u8]) -> Option<(&str, String)> {
        let found = tensors_in(file, bytes).ok()?;
        let found = found
            .iter()
            .map(|entry| (&entry.path, entry))
            .collect::<BTreeMap<_, _>>();
        let expected = self.tensors.iter().filter(|entry| entry.file == file);
        expected.into_iter().find_map(|entry| {
            let why = match found.get(&entry.path) {
                None => "is not in it".to_string(),
                Some(found) if *found == entry => return None,
                Some(found) if found.sha256 == entry.sha256 => {
                    let (theirs, ours) = (&found.dtype, &entry.dtype);
                    let (was, is) = (&entry.shape, &found.shape);
                    format!("is {theirs} of shape {is:?} and should be {ours} of shape {was:?}")
                }
                Some(found) => {
                    format!(
                        "has the SHA-256 {} and should have {}",
                        found.sha256, entry.sha256
                    )
                }
            };
            Some((entry.path.as_str(), why))
        })
    }
}

impl FileEntry {
    fn check_length(&self, folder: &Path) -> Result<(), String> {
        let Self { name, bytes, .. } = self;
        let found = std::fs::metadata(folder.join(name));
        let found = found.map_err(|error| format!("{name}: {error}"))?.len();
        match found == *bytes {
            true => Ok(()),
            false => Err(format!(
                "{name} is damaged: it has {found} bytes and should have {bytes}"
            )),
        }
    }
}

fn tensors_in(file: &str, bytes: &[u8]) -> Result<Vec<TensorEntry>, String> {
    let tensors = tensor_file::read(bytes)?.into_iter();
    let entries = tensors.map(|tensor| TensorEntry {
        file: file.to_string(),
        path: tensor.name,
        dtype: tensor.dtype.to_string(),
        shape: tensor.shape,
        sha256: hexadecimal_sha256(tensor.bytes),
    });
    Ok(entries.collect())
}

fn read_at_most(folder: &Path, name: &str, limit: u64) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let file = File::open(folder.join(name)).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length > limit {
        return Err(format!("{name} is damaged: it has {length} bytes"));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A line as `sha256sum` writes it.
fn seal_of(sha256: &str) -> String {
    format!("{sha256}  {MANIFEST}\n")
}

fn hexadecimal_sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}
