//! Folders of Hugging Face's transformers: `config.json`, and weights in one file or in several with an index. Such files
//! and their index are read without a `config.json`, too.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::store::burn_pack::Tensor as PackedTensor;
use serde::Deserialize;
use serde_json::json;

use super::file::read_file;
use super::layout::StateDictLayout;
use super::prefix::without_wrappers;
use super::{named_tensors, safetensors};
use crate::checkpoint::tensor_file::NamedTensor;
use crate::error::TrainError;
use crate::record::run_directory::{not_output, unread, write_output};

/// The weights of such a folder, and of older ones.
const WEIGHTS: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// What the name of an index of several files adds to theirs.
const INDEX: &str = ".index.json";

/// The largest index that is read, in bytes: the names of a million tensors.
const LARGEST_INDEX: u64 = 64 << 20;

/// The name of the file by which such a folder says what its model is.
pub const PRETRAINED_CONFIG: &str = "config.json";

/// Writes `model` as a folder of Hugging Face's transformers, which is made: its tensors as `layout` says, in files of at
/// most `max_shard_size` bytes of numbers (a tensor is in one file, whatever its size), and `files`: their names, and
/// what is in them. One of these is [`PRETRAINED_CONFIG`].
///
/// # Errors
/// [`TrainError::File`] if there is something at `folder`, [`TrainError::Write`] if it cannot be written.
pub fn save_pretrained<M: Module>(
    model: &M,
    layout: &StateDictLayout,
    files: &[(String, Vec<u8>)],
    folder: &Path,
    max_shard_size: u64,
) -> Result<(), TrainError> {
    write_folder(folder, |written| {
        let tensors = named_tensors(model, 0, folder)?;
        let tensors = layout
            .restore(tensors)
            .map_err(|error| TrainError::write(folder, error))?;
        write_weights(tensors, written, max_shard_size)?;
        for (name, bytes) in files {
            write_output(&written.join(name), bytes)?;
        }
        Ok(())
    })
}

/// Makes a folder with what `write` puts into it. It has its name only when it is complete.
///
/// # Errors
/// [`TrainError::File`] if there is something at `folder`, [`TrainError::Write`] if it cannot be written.
pub(crate) fn write_folder(
    folder: &Path,
    write: impl FnOnce(&Path) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let failed = |error: &dyn std::fmt::Display| TrainError::File {
        action: "making the folder",
        path: folder.to_path_buf(),
        reason: error.to_string(),
    };
    if folder.exists() {
        return Err(failed(
            &"there is something already; name another folder, or remove it",
        ));
    }
    let folder = std::path::absolute(folder).map_err(|error| failed(&error))?;
    let beside = folder.parent().unwrap_or(Path::new("/"));
    // Of the kind alone: the other error has the random name.
    let written =
        tempfile::tempdir_in(beside).map_err(|error| not_output(&folder, &error.kind().into()))?;
    write(written.path()).map_err(|error| match error {
        TrainError::Write { path, reason } => match path.strip_prefix(written.path()) {
            Ok(name) => TrainError::write(&folder.join(name), reason),
            Err(_) => TrainError::Write { path, reason },
        },
        error => error,
    })?;
    fs::set_permissions(written.path(), fs::Permissions::from_mode(0o755))
        .and_then(|()| fs::rename(written.path(), &folder))
        .map_err(|error| not_output(&folder, &error))?;
    let _ = written.keep(); // it is elsewhere now
    Ok(())
}

/// Writes the weights into one file, or into several and an index.
fn write_weights(
    tensors: Vec<NamedTensor>,
    folder: &Path,
    max_shard_size: u64,
) -> Result<(), TrainError> {
    let shards = shards(tensors, max_shard_size);
    let [single, _] = WEIGHTS;
    let count = shards.len();
    let mut weight_map = BTreeMap::new();
    let mut total_size = 0;
    for (number, shard) in shards.into_iter().enumerate() {
        let name = match count {
            1 => single.to_string(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let path = folder.join(&name);
        let bytes = safetensors(&shard).map_err(|error| TrainError::write(&path, error))?;
        write_output(&path, &bytes)?;
        for (tensor, data) in shard {
            total_size += data.as_bytes().len();
            weight_map.insert(tensor, name.clone());
        }
    }
    if count == 1 {
        return Ok(());
    }
    let index = json!({"metadata": {"total_size": total_size}, "weight_map": weight_map});
    write_output(
        &folder.join(format!("{single}{INDEX}")),
        format!("{index:#}\n").as_bytes(),
    )
}

/// The tensors in order, divided so that each part but one of a single tensor has at most this many bytes; one part at
/// least.
fn shards(tensors: Vec<NamedTensor>, most: u64) -> Vec<Vec<NamedTensor>> {
    let (mut shards, mut shard, mut size) = (Vec::new(), Vec::new(), 0_u64);
    for (name, data) in tensors {
        let bytes = data.as_bytes().len() as u64;
        if !shard.is_empty() && size.saturating_add(bytes) > most {
            shards.push(std::mem::take(&mut shard));
            size = 0;
        }
        size = size.saturating_add(bytes);
        shard.push((name, data));
    }
    shards.push(shard);
    shards
}

/// The file of weights in a folder of Hugging Face's transformers, or the index of several.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::weights_of;
///
/// let folder = tempfile::tempdir().unwrap();
/// let file = folder.path().join("model.safetensors");
/// assert_eq!(weights_of(folder.path()), None);
/// std::fs::write(&file, []).unwrap();
/// assert_eq!(weights_of(folder.path()), Some(file));
/// ```
pub fn weights_of(folder: &Path) -> Option<PathBuf> {
    let names = WEIGHTS.into_iter();
    let mut paths =
        names.flat_map(|name| [folder.join(format!("{name}{INDEX}")), folder.join(name)]);
    paths.find(|path| path.exists())
}

pub(super) fn is_index(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(INDEX))
}

pub(super) fn has_index(folder: &Path) -> bool {
    weights_of(folder).is_some_and(|weights| is_index(&weights))
}

/// The tensors of a file, of the files that an index names, or of a folder's files of weights.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, PackedTensor>, TrainError> {
    let weights = match path.is_dir() {
        true => weights_of(path).ok_or_else(|| without_weights(path))?,
        false => path.to_path_buf(),
    };
    Ok(without_wrappers(match is_index(&weights) {
        true => read_shards(&weights)?,
        false => read_file(&weights)?,
    }))
}

/// The index that names `file` as one of several in its folder.
pub(super) fn index_of(file: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(file).ok()?;
    let entries = fs::read_dir(folder.parent()?).ok()?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    paths.find_map(|name| {
        let path = file.with_file_name(name);
        let named = is_index(&path).then(|| read_index(&path).ok())??;
        let is_file = |name: &String| file.file_name() == Some(name.as_ref());
        named.values().any(is_file).then_some(path)
    })
}

fn without_weights(folder: &Path) -> TrainError {
    let [single, older] = WEIGHTS;
    let part = fs::read_dir(folder).ok().and_then(|entries| {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.contains("-of-")).min()
    });
    let reason = match part {
        Some(part) => format!(
            "it has parts of the weights, such as {}, and no {single}{INDEX}, which says what is in which: copy that file, too",
            part.escape_debug()
        ),
        None => format!("there is no {single} in it, and no {older}, nor an index of several"),
    };
    unread(folder, &reason)
}

/// Which file has which tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn read_index(index: &Path) -> Result<BTreeMap<String, String>, TrainError> {
    let failed = |reason: &dyn std::fmt::Display| unread(index, reason);
    if !index.is_file() {
        return Err(failed(&"it is not a file"));
    }
    let file = File::open(index).map_err(|error| failed(&error))?;
    let mut text = Vec::new();
    let read = file.take(LARGEST_INDEX + 1).read_to_end(&mut text);
    read.map_err(|error| failed(&error))?;
    if text.len() as u64 > LARGEST_INDEX {
        let reason = format!("an index has at most {LARGEST_INDEX} bytes, and it has more");
        return Err(failed(&reason));
    }
    let Index { weight_map } = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
    Ok(weight_map)
}

/// The tensors that an index names.
fn read_shards(index: &Path) -> Result<BTreeMap<String, PackedTensor>, TrainError> {
    let failed = |reason: &dyn std::fmt::Display| unread(index, reason);
    let mut files: BTreeMap<PathBuf, BTreeMap<String, PackedTensor>> = BTreeMap::new();
    let mut tensors = BTreeMap::new();
    for (name, file) in read_index(index)? {
        // Only files of this folder are read, whatever the index says.
        if Path::new(&file).file_name() != Some(file.as_ref()) {
            let reason =
                format!("weight_map has {file:?}, which does not name a file in this folder");
            return Err(failed(&reason));
        }
        let path = index.with_file_name(&file);
        if !path.exists() {
            let file = file.escape_debug();
            let reason =
                format!("it names {file}, which is not there: copy or download that file, too");
            return Err(failed(&reason));
        }
        let found = match files.entry(path.clone()) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(read_file(&path)?),
        };
        let Some(tensor) = found.remove(&name) else {
            let name = name.escape_debug();
            let reason = format!(
                "weight_map says that {} has {name}, and it has not",
                path.display()
            );
            return Err(failed(&reason));
        };
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;
    use burn::prelude::Device;
    use burn::tensor::TensorData;
    use everburn_tests::AssertContains;

    use super::*;
    use crate::checkpoint::state_dict::save_state_dict;
    use crate::load_state_dict;

    fn tensor(name: &str, numbers: usize) -> NamedTensor {
        (name.to_string(), TensorData::zeros::<f32, _>([numbers]))
    }

    #[test]
    fn tensors_are_divided_in_order_and_none_is_cut() {
        let divided = |most| {
            let tensors = vec![
                tensor("a", 2),
                tensor("b", 3),
                tensor("c", 9),
                tensor("d", 1),
            ];
            let shards = shards(tensors, most).into_iter();
            let names = shards.map(|shard| shard.into_iter().map(|(name, _)| name).collect());
            names.collect::<Vec<String>>()
        };
        assert_eq!(divided(60), ["abcd"]);
        assert_eq!(divided(20), ["ab", "c", "d"]);
        assert_eq!(divided(1), ["a", "b", "c", "d"]);
        assert_eq!(shards(Vec::new(), 1).len(), 1);
    }

    #[test]
    fn several_files_without_a_config_are_one_state_dict_by_folder_or_index() {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::flex();
        let config = LinearConfig::new(3, 2);
        let saved = config.init(&device);
        let tensors = named_tensors(&saved, 0, folder.path()).unwrap();
        write_weights(tensors, folder.path(), 8).unwrap();
        let index = folder.path().join("model.safetensors.index.json");
        for path in [folder.path(), &index] {
            let loaded = load_state_dict(config.init(&device), path).unwrap();
            assert_eq!(loaded.weight.to_data(), saved.weight.to_data());
        }
        let refused = |path: &Path| {
            let error = load_state_dict(config.init(&device), path).unwrap_err();
            error.to_string()
        };
        let part = folder.path().join("model-00002-of-00002.safetensors");
        let told = refused(&part);
        told.assert_contains(["it is one of several files", "model.safetensors.index.json"]);
        fs::remove_file(&part).unwrap();
        let told = refused(folder.path());
        let expected =
            "index.json failed: it names model-00002-of-00002.safetensors, which is not there";
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn several_files_are_read_as_one_of_either_kind() {
        let folder = tempfile::tempdir().unwrap();
        let tensors = vec![tensor("net.a", 2), tensor("net.b", 3)];
        write_weights(tensors.clone(), folder.path(), 8).unwrap();
        let names = || read(folder.path()).unwrap().into_keys().collect::<Vec<_>>();
        assert_eq!(names(), ["net.a", "net.b"]);
        let listed = fs::read_dir(folder.path()).unwrap();
        assert_eq!(listed.count(), 3);

        // As older releases wrote them.
        let older = tempfile::tempdir().unwrap();
        for (number, tensor) in tensors.iter().enumerate() {
            let bytes = super::super::pytorch::to_bytes(std::slice::from_ref(tensor)).unwrap();
            fs::write(older.path().join(format!("{number}.bin")), bytes).unwrap();
        }
        let index = json!({"weight_map": {"net.a": "0.bin", "net.b": "1.bin"}});
        let path = older.path().join("pytorch_model.bin.index.json");
        fs::write(&path, index.to_string()).unwrap();
        let found = read(older.path()).unwrap();
        assert_eq!(*found["net.b"].shape, [3]);
        let wrong = json!({"weight_map": {"net.a": "1.bin"}});
        fs::write(&path, wrong.to_string()).unwrap();
        let error = read(older.path()).unwrap_err().to_string();
        error.assert_contains(["index.json", "1.bin has net.a"]);
    }

    #[test]
    fn what_cannot_be_written_is_named_by_its_own_path_and_has_help() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        let full = |written: &Path| Err(TrainError::write(&written.join("a.json"), "it is full"));
        let error = write_folder(&target, full).unwrap_err();
        let told = format!("writing {}/a.json failed: it is full", target.display());
        assert_eq!(error.to_string(), told);

        fs::write(folder.path().join("file"), "").unwrap();
        let (inside, help) = (
            folder.path().join("file/a"),
            "a file is in the way: choose another `output`",
        );
        let model = LinearConfig::new(3, 2).init(&Device::flex());
        let of_file = save_state_dict(&model, 0, &inside.with_extension("pt")).unwrap_err();
        let of_folder = write_folder(&inside, |_| Ok(())).unwrap_err();
        for error in [of_file, of_folder] {
            assert!(matches!(error, TrainError::Write { .. }), "{error:?}");
            assert!(error.to_string().ends_with(help), "{error}");
        }
    }
}
