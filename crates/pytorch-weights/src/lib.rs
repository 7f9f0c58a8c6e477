//! Weights in files of `torch.save`, read without PyTorch and without trust in the file.
//!
//! | | |
//! |---|---|
//! | [`WeightsFile`] | a file: its tensors by name, and the numbers of one at a time |
//! | [`TensorInfo`], [`DType`] | name, type and shape of a tensor |
//! | [`Tensor`] | its numbers |
//! | [`to_bytes`], [`NewTensor`] | a file that `torch.load` reads, `weights_only` or not |
//!
//! ```
//! use everburn_pytorch_weights::{DType, NewTensor, WeightsFile, to_bytes};
//!
//! let bytes = 1.5_f32.to_le_bytes();
//! let bias = NewTensor { name: "bias", dtype: DType::F32, shape: &[1], bytes: &bytes };
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("weights.pt");
//! std::fs::write(&path, to_bytes(&[bias])?)?;
//!
//! let mut file = WeightsFile::open(&path)?;
//! let tensor = file.tensors().next().unwrap();
//! assert_eq!((tensor.name(), tensor.dtype(), tensor.shape()), ("bias", DType::F32, &[1][..]));
//! assert_eq!(file.load("bias")?.bytes, bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which files
//!
//! Files that `torch.save` has written since PyTorch 1.6, with a state dict, that of a model in `DistributedDataParallel`,
//! or a checkpoint that has a state dict in an entry. Entries called `state_dict`, `model_state_dict` and `model` come before
//! others; if several dicts contain different weights, the error names them. Parameters, buffers, tied weights,
//! views in any order, and tensors of PyTorch's own classes are read. Older files, compressed archives, files of
//! `torch.jit.save` and of machines of the other byte order are refused with what to do.
//!
//! # What a stranger's file can do
//!
//! - **Nothing in it is called.** A pickle may use about the same names as `torch.load(weights_only=True)` accepts; any
//!   other name ends the reading, and is in the error.
//! - **Memory is in proportion to the file.** Opening a file takes its pickle, its directory, and at most
//!   8 MiB and 32 bytes for each byte of the pickle (what is built is counted). Loading a tensor takes its bytes in the
//!   file and its numbers, which take no more. Nothing is decompressed or repeated.
//! - **Time is in proportion too.** Containers are named by number and never copied, names and shapes that many tensors
//!   share are short, and nesting in the file does not deepen the stack.
//! - **Texts of the file** are escaped and truncated in errors. Names of tensors are returned as the file has them: escape
//!   them where you show them.
//!
//! If the file has a checksum of a part, it is compared when the part is read. It detects damage by a disk or a copy, but
//! no manipulation.
//!
//! # Why not the crate `pytorch-reader`
//!
//! It reads more kinds of files and has limits, but they are constants and come too late: release 0.22.1 takes 1.0 GiB to
//! refuse a pickle of 4 MB of empty dicts. Its memo holds copies: if a dict is saved under two names, the
//! second is empty, without an error. It skips unknown parts, although such a file should be refused.

mod archive;
mod choose;
mod dtype;
mod error;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod pickle;
mod view;
mod write;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

pub use choose::Entry;
pub use dtype::DType;
pub use error::WeightsError;
pub use write::{NewTensor, to_bytes};

use archive::Archive;
use error::{Shown, archive as refuse};
use pickle::{Budget, Built, Global, StorageClass, Value};
use view::View;

/// The longest pickle, that of more than a million tensors.
const LONGEST_PICKLE: u64 = 256 << 20;

/// A file of PyTorch. What it holds is known once it is open; numbers are read when they are asked for.
///
/// The crate's documentation has an example.
pub struct WeightsFile<R = File> {
    archive: Archive<R>,
    tensors: BTreeMap<String, View>,
    entry: Entry,
}

/// A tensor of a [`WeightsFile`].
#[derive(Debug, Clone, Copy)]
pub struct TensorInfo<'a> {
    name: &'a str,
    view: &'a View,
}

impl<'a> TensorInfo<'a> {
    /// Its name, as the file has it.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The type of its numbers.
    pub fn dtype(&self) -> DType {
        self.view.dtype
    }

    /// Its shape.
    pub fn shape(&self) -> &'a [usize] {
        &self.view.shape
    }
}

/// The numbers of a tensor, by [`WeightsFile::load`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The type of its numbers.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its numbers in order, little endian.
    pub bytes: Vec<u8>,
}

impl WeightsFile {
    /// Opens a file and reads what it holds, but no numbers.
    ///
    /// # Errors
    /// See [`WeightsError`].
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        // Opening a pipe would wait for its writer; what is opened is what is looked at.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(WeightsError::Io(io::Error::other("it is no regular file")));
        }
        Self::new(file)
    }
}

impl<R: Read + Seek> WeightsFile<R> {
    /// As [`WeightsFile::open`], of anything that can be read from any place.
    ///
    /// # Errors
    /// See [`WeightsError`].
    pub fn new(source: R) -> Result<Self, WeightsError> {
        let mut archive = Archive::open(source)?;
        let (folder, pickle) = pickle_in(&archive)?;
        let file = |name: &str| [&folder[..], name.as_bytes()].concat();
        if archive.find(&file("constants.pkl")).is_some() {
            return Err(refuse(
                "it is a file of torch.jit.save; load it with torch.jit.load and save its state_dict() with torch.save",
            ));
        }
        if let Some(order) = archive.find(&file("byteorder"))
            && archive.part(order, 0, archive.size(order)?.min(16))? != b"little"
        {
            return Err(refuse(
                "it was written by a machine of the other byte order; load it with torch.load on one of this order, and \
                 save it again with torch.save",
            ));
        }
        let size = archive.size(pickle)?;
        if size > LONGEST_PICKLE {
            return Err(WeightsError::TooLarge);
        }
        let program = archive.part(pickle, 0, size)?;
        let mut built = pickle::load(&program)?;
        let (chosen, entry) = choose::state_dict(&built)?;
        let mut tensors = BTreeMap::new();
        for (name, place) in chosen {
            // Texts of a pickle are UTF-8, or it was refused.
            let name = String::from_utf8_lossy(name).into_owned();
            let view = view(&archive, &mut built, &folder, place);
            let view = view.map_err(|refusal| match refusal {
                Refusal::Tensor(reason) => error::tensor(&name, reason),
                Refusal::File(error) => error,
            })?;
            built
                .budget
                .pay_bytes(size_of::<(String, View)>() + name.len())?;
            tensors.insert(name, view);
        }
        Ok(Self {
            archive,
            tensors,
            entry,
        })
    }

    /// The entry of a checkpoint that is read.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// All tensors, in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.tensors
            .iter()
            .map(|(name, view)| TensorInfo { name, view })
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'_>> {
        let (name, view) = self.tensors.get_key_value(name)?;
        Some(TensorInfo { name, view })
    }

    /// Reads the numbers of a tensor; with the first of a storage, all of that, for its checksum. Nothing is kept.
    ///
    /// # Errors
    /// [`WeightsError::NoTensor`], [`WeightsError::Checksum`], and what reading may fail with.
    pub fn load(&mut self, name: &str) -> Result<Tensor, WeightsError> {
        let view = self.tensors.get(name);
        let view =
            view.ok_or_else(|| WeightsError::NoTensor(Shown(name.as_bytes()).to_string()))?;
        let (begin, size) = view.range();
        let part = self.archive.part(view.file, begin, size);
        let bytes = part.map_err(|error| match error {
            WeightsError::Checksum {
                found, expected, ..
            } => WeightsError::Checksum {
                name: Shown(name.as_bytes()).to_string(),
                found,
                expected,
            },
            error => error,
        })?;
        Ok(Tensor {
            dtype: view.dtype,
            shape: view.shape.clone(),
            bytes: view.numbers(bytes),
        })
    }
}

impl<R> std::fmt::Debug for WeightsFile<R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("WeightsFile")
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

/// The folder in the archive, and its pickle.
fn pickle_in<R: Read + Seek>(archive: &Archive<R>) -> Result<(Vec<u8>, usize), WeightsError> {
    let mut pickles = archive.names().enumerate().filter_map(|(place, name)| {
        let folder = name.strip_suffix(b"data.pkl")?;
        let inner = folder.strip_suffix(b"/")?;
        (!inner.contains(&b'/') && inner.len() <= pickle::LONGEST_NAME)
            .then(|| (folder.to_vec(), place))
    });
    match (pickles.next(), pickles.next()) {
        (Some(found), None) => Ok(found),
        (Some(_), Some(_)) => Err(refuse(
            "there are several data.pkl in it; it is no file of torch.save",
        )),
        (None, _) => Err(refuse(
            "there is no data.pkl in it; was it written by torch.save?",
        )),
    }
}

/// What is wrong: with one tensor, or with all.
enum Refusal {
    Tensor(String),
    File(WeightsError),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Tensor(reason)
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Self {
        Self::Tensor(reason.to_string())
    }
}

/// What a tensor shows, checked against the file.
fn view<R: Read + Seek>(
    archive: &Archive<R>,
    built: &mut Built<'_>,
    folder: &[u8],
    place: u32,
) -> Result<View, Refusal> {
    let lazily = |key: &[u8]| key == b"conj" || key == b"neg";
    let tensor = *built.tensor(place);
    let storage = *built.storage(tensor.storage);
    if tensor
        .metadata
        .is_some_and(|id| built.named(id).any(|(key, _)| lazily(built.bytes(key))))
    {
        return Err("its numbers are to be changed when they are read; save tensor.resolve_conj().resolve_neg()".into());
    }
    let of_storage = match storage.class {
        StorageClass::Of(dtype) => Some(dtype),
        StorageClass::Untyped => Some(DType::U8),
        StorageClass::Unknown => None,
    };
    let dtype = match tensor.dtype {
        None => of_storage,
        Some(Global::Type(dtype)) => Some(dtype),
        Some(_) => None,
    };
    let unread = "numbers of its type (complex, quantised or of 8 bits with a fraction) cannot be read; convert it, as in v.float()";
    let (dtype, of_storage) = dtype.zip(of_storage).ok_or(unread)?;

    let key = built.bytes(storage.key);
    let file = archive.find(&[folder, b"data/", key].concat());
    let file = file.ok_or("its numbers are not in the file")?;
    let bytes = archive.size(file).map_err(Refusal::File)?;
    if storage.count.checked_mul(of_storage.size() as u64) != Some(bytes) {
        return Err("its numbers in the file are not as many as its storage has".into());
    }
    let sizes = [tensor.shape, tensor.strides].map(|id| sizes(built, id));
    let [Some(shape), Some(strides)] = sizes else {
        return Err("it has a shape that no tensor of PyTorch has".into());
    };
    pay_for(&mut built.budget, &shape).map_err(Refusal::File)?;
    Ok(View::new(
        dtype,
        (file, bytes / dtype.size() as u64),
        tensor.offset,
        (shape, strides),
    )?)
}

fn sizes(built: &Built<'_>, sizes: pickle::Tuple) -> Option<Vec<usize>> {
    let items = built.tuple(sizes);
    let size = |value: &Value| choose::size(value).and_then(|size| usize::try_from(size).ok());
    items.iter().map(size).collect()
}

/// Pays for a shape and as many strides.
fn pay_for(budget: &mut Budget, shape: &[usize]) -> Result<(), WeightsError> {
    budget.pay_bytes(2 * size_of_val(shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask() -> Vec<u8> {
        let mask = NewTensor {
            name: "mask",
            dtype: DType::Bool,
            shape: &[1],
            bytes: &[1],
        };
        to_bytes(&[mask]).unwrap()
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_told_from_one_of_something_else() {
        let sound = mask();
        let refused = |bytes: &[u8]| {
            let refused = WeightsFile::new(io::Cursor::new(bytes));
            refused.err().unwrap().to_string()
        };
        for end in [4, 100, sound.len() - 1] {
            let refused = refused(&sound[..end]);
            assert!(refused.contains("cut off"), "{end}: {refused}");
            assert!(refused.contains("download it again"), "{end}: {refused}");
        }
        assert!(refused(b"text").contains("it is no archive"));
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.pt");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let link = folder.path().join("link.pt");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for path in [&path, &link] {
            let refused = WeightsFile::open(path).err().unwrap().to_string();
            assert!(refused.contains("regular file"), "{refused}");
        }
        // A link to a file is followed.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, mask()).unwrap();
        assert_eq!(WeightsFile::open(&link).unwrap().tensors().count(), 1);
    }
}
