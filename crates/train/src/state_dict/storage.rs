//! Tensors in files, and back: safetensors are only written here, for `burn-store` reads them.

use std::collections::BTreeMap;
use std::rc::Rc;

use burn::tensor::{BoolStore, Bytes, DType, Shape, TensorData};

use super::archive;
use super::pickle::{self, TensorView, Value};
use crate::tensor_file;

/// Entries of a checkpoint that are the model's state dict, in PyTorch's tutorials and elsewhere.
const IN_CHECKPOINTS: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// PyTorch's classes of storages of types of numbers.
const TYPES: [(DType, &str); 9] = [
    (DType::F32, "FloatStorage"),
    (DType::F64, "DoubleStorage"),
    (DType::F16, "HalfStorage"),
    (DType::BF16, "BFloat16Storage"),
    (DType::I64, "LongStorage"),
    (DType::I32, "IntStorage"),
    (DType::I16, "ShortStorage"),
    (DType::I8, "CharStorage"),
    (DType::U8, "ByteStorage"),
];

type Named = [(String, TensorData)];

fn storage_of(data: &TensorData) -> Result<&'static str, String> {
    let found = TYPES.iter().find(|(dtype, _)| *dtype == data.dtype());
    let (_, storage) =
        found.ok_or_else(|| format!("numbers of type {:?} have no place in it", data.dtype()))?;
    Ok(storage)
}

/// A safetensors file.
pub(super) fn safetensors(tensors: &Named) -> Result<Vec<u8>, String> {
    // By this, Hugging Face's libraries know whose names and layouts these are.
    let format = ("format".to_string(), "pt".to_string());
    tensor_file::write(tensors, &[format].into())
}

/// A file as `torch.save(state_dict)` writes it.
pub(super) fn pytorch(tensors: &Named) -> Result<Vec<u8>, String> {
    let mut files = vec![
        ("archive/data.pkl".to_string(), pickle_of(tensors)?),
        ("archive/byteorder".to_string(), b"little".to_vec()),
    ];
    for (key, (_, data)) in tensors.iter().enumerate() {
        files.push((format!("archive/data/{key}"), data.as_bytes().to_vec()));
    }
    files.push(("archive/version".to_string(), b"3\n".to_vec()));
    archive::write(&files)
}

/// An ordered dict of tensors, in protocol 2.
fn pickle_of(tensors: &Named) -> Result<Vec<u8>, String> {
    const ORDERED_DICT: &[u8] = b"ccollections\nOrderedDict\n)R";
    let text = |text: &str| {
        let mut bytes = vec![b'X'];
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    };
    let number = |number: usize| {
        let number =
            i32::try_from(number).map_err(|_| "a tensor is too large for it".to_string())?;
        Ok::<_, String>([&[b'J'][..], &number.to_le_bytes()].concat())
    };
    let tuple = |numbers: &[usize]| {
        let numbers = numbers
            .iter()
            .map(|n| number(*n))
            .collect::<Result<Vec<_>, _>>()?;
        Ok::<_, String>([&b"("[..], &numbers.concat(), b"t"].concat())
    };
    let mut bytes = [&[0x80, 2][..], ORDERED_DICT, b"("].concat();
    for (key, (name, data)) in tensors.iter().enumerate() {
        let shape = data.shape();
        let class = storage_of(data)?;
        bytes.extend(text(name));
        bytes.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        bytes.extend(text("storage"));
        bytes.extend(format!("ctorch\n{class}\n").as_bytes());
        bytes.extend(text(&key.to_string()));
        bytes.extend(text("cpu"));
        bytes.extend(number(shape.iter().product())?);
        bytes.extend(b"tQ");
        bytes.extend(number(0)?);
        bytes.extend(tuple(shape)?);
        bytes.extend(tuple(&contiguous(shape))?);
        bytes.push(0x89); // needs no gradient
        bytes.extend(ORDERED_DICT); // has no hooks
        bytes.extend(b"tR");
    }
    bytes.extend(b"u.");
    Ok(bytes)
}

/// The strides of numbers that lie in order.
fn contiguous(shape: &[usize]) -> Vec<usize> {
    let mut stride = 1_usize;
    let mut strides = shape.iter().rev().map(|size| {
        let this = stride;
        stride = stride.saturating_mul((*size).max(1));
        this
    });
    let mut strides = strides.by_ref().collect::<Vec<_>>();
    strides.reverse();
    strides
}

/// The tensors of a file that `torch.save` has written of a state dict, or of a checkpoint with one.
pub(super) fn read_pytorch(bytes: &[u8]) -> Result<BTreeMap<String, TensorData>, String> {
    let files = archive::read(bytes)?;
    let pickle = files.iter().find_map(|(name, content)| {
        let folder = name.strip_suffix("data.pkl")?;
        Some((folder, *content))
    });
    let (folder, pickle) =
        pickle.ok_or("there is no data.pkl in it; was it written by torch.save?")?;
    if files
        .get(&format!("{folder}byteorder"))
        .is_some_and(|order| *order != b"little")
    {
        return Err("it was written by a machine of the other byte order".to_string());
    }
    let dict = state_dict_in(pickle::load(pickle)?)?;
    let mut tensors = BTreeMap::new();
    for (name, view) in dict {
        let content = files.get(&format!("{folder}data/{}", view.storage.key));
        let content = content.ok_or_else(|| format!("the numbers of {name} are not in it"))?;
        let data = numbers(&view, content).map_err(|error| format!("{name}: {error}"))?;
        tensors.insert(name, data);
    }
    Ok(tensors)
}

/// The tensors by name, of a dict or of the entry of a dict that is one.
fn state_dict_in(value: Value) -> Result<Vec<(String, Rc<TensorView>)>, String> {
    let Value::Dict(dict) = value else {
        return Err("it holds no dict; save the model's state_dict()".to_string());
    };
    let named = |wanted: &str| {
        let is = |key: &Value| matches!(key, Value::Text(name) if &**name == wanted);
        dict.items
            .iter()
            .find(|(key, _)| is(key))
            .map(|(_, value)| value)
    };
    let inner = IN_CHECKPOINTS.iter().find_map(|name| named(name));
    let items = match inner {
        Some(Value::Dict(inner)) => &inner.items,
        _ => &dict.items,
    };
    let tensors = items.iter().filter_map(|(key, value)| match (key, value) {
        (Value::Text(name), Value::Tensor(tensor)) => Some((name.to_string(), Rc::clone(tensor))),
        _ => None,
    });
    let tensors = tensors.collect::<Vec<_>>();
    match tensors.is_empty() {
        true => Err("there is no tensor in its dict; save the model's state_dict()".to_string()),
        false => Ok(tensors),
    }
}

/// The numbers that a view shows of a storage, in order.
fn numbers(view: &TensorView, storage: &[u8]) -> Result<TensorData, String> {
    let class = &*view.storage.class;
    let found = TYPES.iter().find(|(_, name)| *name == class);
    let dtype = match found {
        Some((dtype, ..)) => *dtype,
        None if class == "BoolStorage" => DType::Bool(BoolStore::Native),
        None => return Err(format!("numbers in a {class} cannot be read")),
    };
    let wrong = || "its shape does not belong to the numbers that are there".to_string();
    let size = dtype.size();
    if view.shape.len() != view.strides.len() {
        return Err(wrong());
    }
    let count = view
        .shape
        .iter()
        .try_fold(1_usize, |count, n| count.checked_mul(*n));
    // One that repeats numbers could ask for any amount of memory.
    let count = count
        .filter(|count| *count <= storage.len() / size)
        .ok_or_else(wrong)?;
    let tensor = |bytes| {
        TensorData::try_from_bytes(bytes, Shape::from(view.shape.clone()), dtype)
            .map_err(|error| error.to_string())
    };
    if view.strides == contiguous(&view.shape) {
        let begin = view.offset.checked_mul(size).ok_or_else(wrong)?;
        let bytes = storage
            .get(begin..)
            .and_then(|rest| rest.get(..count * size));
        return tensor(Bytes::from_bytes_vec(bytes.ok_or_else(wrong)?.to_vec()));
    }
    let mut places = vec![view.offset; count.min(1)];
    for (length, stride) in view.shape.iter().zip(&view.strides) {
        let next = places.iter().flat_map(|place| {
            (0..*length).map(move |n| place.checked_add(n.checked_mul(*stride)?))
        });
        places = next.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    }
    let mut bytes = Vec::with_capacity(count * size);
    for place in places {
        let at = place.checked_mul(size).ok_or_else(wrong)?;
        let number = storage.get(at..).and_then(|rest| rest.get(..size));
        bytes.extend_from_slice(number.ok_or_else(wrong)?);
    }
    tensor(Bytes::from_bytes_vec(bytes))
}
