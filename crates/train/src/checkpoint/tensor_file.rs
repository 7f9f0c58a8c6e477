//! Tensors by name in a safetensors file.
//!
//! The format (<https://huggingface.co/docs/safetensors>): 8 bytes with the length of a JSON header, little
//! endian; the header, which has type, shape and place of each tensor; the numbers, without gaps. Numbers
//! are written as they are: what is read has the same bits.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use burn::tensor::{BoolStore, DType, TensorData};
use everburn_distributed::Fingerprint;
use everburn_record::file;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

pub(crate) type NamedTensor = (String, TensorData);

/// How safetensors call types of numbers.
const TYPES: [(DType, &str); 13] = [
    (DType::F64, "F64"),
    (DType::F32, "F32"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::I64, "I64"),
    (DType::I32, "I32"),
    (DType::I16, "I16"),
    (DType::I8, "I8"),
    (DType::U64, "U64"),
    (DType::U32, "U32"),
    (DType::U16, "U16"),
    (DType::U8, "U8"),
    (DType::Bool(BoolStore::Native), "BOOL"),
];

/// The name under which the header has what is no tensor.
const METADATA: &str = "__metadata__";

/// The longest header that is read from a file: that of some million tensors.
const LONGEST_HEADER: u64 = 1 << 28;

const TOO_SHORT: &str = "it is too short for its header";

fn name_of(dtype: DType) -> Result<&'static str, String> {
    let dtype = match dtype {
        // A byte each, 0 or 1, as the native ones.
        DType::Bool(BoolStore::U8) => DType::Bool(BoolStore::Native),
        other => other,
    };
    let found = TYPES.iter().find(|(known, _)| *known == dtype);
    found
        .map(|(_, name)| *name)
        .ok_or_else(|| format!("numbers of type {dtype:?} have no place in a safetensors file"))
}

/// A file of `tensors`, and of texts that say something about them.
///
/// # Errors
/// What cannot be written, with the tensor's name.
pub(crate) fn write(
    tensors: &[NamedTensor],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, String> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert(METADATA.to_string(), json!(metadata));
    }
    // Wide numbers first, so that each begins at a multiple of its width.
    let mut order = tensors.iter().collect::<Vec<_>>();
    order.sort_by_key(|(_, data)| std::cmp::Reverse(data.dtype().size()));
    let mut end = 0;
    for (name, data) in &order {
        let kind = name_of(data.dtype()).map_err(|error| format!("{name}: {error}"))?;
        let begin = end;
        end += data.as_bytes().len();
        let entry =
            json!({ "dtype": kind, "shape": &**data.shape(), "data_offsets": [begin, end] });
        if name == METADATA || header.insert(name.clone(), entry).is_some() {
            return Err(format!("{name}: there are two of that name"));
        }
    }
    let mut header = Json::Object(header).to_string();
    // The numbers begin at a multiple of 8 bytes.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = Vec::with_capacity(8 + header.len() + end);
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header.as_bytes());
    for (_, data) in order {
        file.extend(data.as_bytes());
    }
    Ok(file)
}

/// A tensor of a file that has been read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TensorView<'a> {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: &'a [u8],
}

impl TensorView<'_> {
    pub(crate) fn to_data(&self) -> TensorData {
        let known = TYPES.iter().find(|(_, name)| *name == self.dtype);
        let (dtype, _) = known.expect("only known types are read");
        TensorData::from_bytes_vec(self.bytes.to_vec(), self.shape.clone(), *dtype)
    }
}

/// A tensor in the header.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl Entry {
    /// The type of the numbers, and how safetensors call it.
    fn kind(&self) -> Result<(DType, &'static str), String> {
        let known = TYPES.iter().find(|(_, known)| *known == self.dtype);
        let unknown = || format!("numbers of type {} are not known", self.dtype);
        known.copied().ok_or_else(unknown)
    }
}

/// The tensors in a header, by name.
fn entries(header: &[u8]) -> Result<Vec<(String, Entry)>, String> {
    let header = serde_json::from_slice::<BTreeMap<String, Json>>(header);
    let mut header = header.map_err(|error| format!("its header is no JSON: {error}"))?;
    header.remove(METADATA);
    let entries = header.into_iter().map(|(name, entry)| {
        let entry =
            serde_json::from_value::<Entry>(entry).map_err(|error| format!("{name}: {error}"));
        entry.map(|entry| (name, entry))
    });
    entries.collect()
}

/// The tensors of a file, by name.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn read(file: &[u8]) -> Result<Vec<TensorView<'_>>, String> {
    let too_short = || TOO_SHORT.to_string();
    let (length, rest) = file.split_first_chunk::<8>().ok_or_else(too_short)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| too_short())?;
    let (header, numbers) = rest.split_at_checked(length).ok_or_else(too_short)?;
    let mut tensors = Vec::new();
    for (name, entry) in entries(header)? {
        let wrong = |what: &str| format!("{name}: {what}");
        let (dtype, kind) = entry.kind().map_err(|what| wrong(&what))?;
        let (begin, end) = entry.data_offsets;
        let bytes = numbers
            .get(begin..end)
            .ok_or_else(|| wrong("it is outside the file"))?;
        let count = entry
            .shape
            .iter()
            .try_fold(dtype.size(), |all, n| all.checked_mul(*n));
        if count != Some(bytes.len()) {
            return Err(wrong("its shape does not belong to its numbers"));
        }
        let shape = entry.shape;
        tensors.push(TensorView {
            name,
            dtype: kind,
            shape,
            bytes,
        });
    }
    Ok(tensors)
}

/// The fingerprints of the tensors of the file at `path`, by name. Its numbers are read block by block.
///
/// # Errors
/// What is wrong with the file, or why it cannot be read.
pub(crate) fn fingerprints(path: &Path) -> Result<BTreeMap<String, [u8; 32]>, String> {
    let failed = |error: io::Error| error.to_string();
    let mut file = file::open(path).map_err(failed)?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(failed)?;
    let length = u64::from_le_bytes(length);
    let mut header = Vec::new();
    let mut beginning = file.by_ref().take(length.min(LONGEST_HEADER));
    beginning.read_to_end(&mut header).map_err(failed)?;
    if header.len() as u64 != length {
        return Err(TOO_SHORT.to_string());
    }
    let mut found = BTreeMap::new();
    for (name, entry) in entries(&header)? {
        let wrong = |what: &str| format!("{name}: {what}");
        let (dtype, _) = entry.kind().map_err(|what| wrong(&what))?;
        let (begin, end) = entry.data_offsets;
        let begins_at = (8 + length).saturating_add(begin as u64);
        file.seek(SeekFrom::Start(begins_at)).map_err(failed)?;
        let mut numbers = file.by_ref().take(end.saturating_sub(begin) as u64);
        let hash = Fingerprint::hash_of(dtype, &entry.shape.into(), &mut numbers);
        let hash = hash.map_err(failed)?;
        if numbers.limit() > 0 {
            return Err(wrong("it is outside the file"));
        }
        found.insert(name, hash);
    }
    Ok(found)
}

/// Where in a file each tensor's numbers are; for tests and messages.
#[cfg(test)]
pub(crate) fn place_of(file: &[u8], name: &str) -> Option<std::ops::Range<usize>> {
    let tensors = read(file).ok()?;
    let tensor = tensors.into_iter().find(|tensor| tensor.name == name)?;
    let begin = tensor.bytes.as_ptr().addr() - file.as_ptr().addr();
    Some(begin..begin + tensor.bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> Vec<NamedTensor> {
        vec![
            ("mask".to_string(), TensorData::from([true, false, true])),
            (
                "a.weight".to_string(),
                TensorData::from([[1.5f32, f32::NAN], [-0.0, 2.0]]),
            ),
            (
                "a.steps".to_string(),
                TensorData::new(vec![u64::MAX], [0; 0]),
            ),
        ]
    }

    #[test]
    fn what_is_written_is_read_to_the_bit() {
        let file = write(&tensors(), &BTreeMap::new()).unwrap();
        let read = read(&file).unwrap();
        assert_eq!(read.len(), 3);
        for (name, data) in tensors() {
            let view = read.iter().find(|view| view.name == name).unwrap();
            assert_eq!(view.bytes, data.as_bytes(), "{name}");
            assert_eq!(view.to_data().shape(), data.shape(), "{name}");
            assert_eq!(view.to_data().dtype(), data.dtype(), "{name}");
        }
    }

    #[test]
    fn burn_store_reads_it_too() {
        use burn::store::{ModuleStore, SafetensorsStore};
        let file = write(&tensors()[..2], &BTreeMap::new()).unwrap();
        let mut store = SafetensorsStore::from_bytes(Some(file));
        assert_eq!(*store.get_all_tensors().unwrap()["a.weight"].shape, [2, 2]);
    }

    #[test]
    fn a_file_that_is_cut_off_or_lies_is_refused() {
        let file = write(&tensors(), &BTreeMap::new()).unwrap();
        for length in [0, 7, 20, file.len() - 1] {
            assert!(read(&file[..length]).is_err(), "{length} bytes");
        }
        let lie = String::from_utf8_lossy(&file).replace("[2,2]", "[2,9]");
        let error = read(lie.as_bytes()).unwrap_err();
        assert!(!error.is_empty());
        let huge = u64::MAX.to_le_bytes();
        assert_eq!(read(&huge).unwrap_err(), "it is too short for its header");
    }

    #[test]
    fn two_of_a_name_are_refused() {
        let twice = [tensors(), tensors()].concat();
        let error = write(&twice, &BTreeMap::new()).unwrap_err();
        assert!(error.contains("two of that name"), "{error}");
    }
}
