//! The state of an optimizer by the paths of the parameters, as a checkpoint has it.
//!
//! Burn's record names what belongs to a parameter by the parameter's identity, which is random in each
//! process: `7.momentum.moment_1`. Here it is `conv1.weight.momentum.moment_1`. A number that is no tensor
//! becomes a tensor without dimensions, which Burn does not have.

use std::collections::{BTreeMap, HashMap};

use burn::tensor::TensorData;
use burn_pack::Scalar;

use super::{States, tensor_of};
use crate::checkpoint::tensor_file::{NamedTensor, TensorView};

/// The tensors and numbers of a record, by path.
///
/// # Errors
/// If it has the state of a parameter that has no path in `paths`, or one that has no place in a file.
pub(crate) fn by_path(
    record: Vec<u8>,
    paths: &HashMap<u64, String>,
) -> Result<Vec<NamedTensor>, String> {
    let states = States::of(record).map_err(|error| error.to_string())?;
    let path_of = |name: &str| {
        let (id, rest) = name.split_once('.').unwrap_or((name, ""));
        let path = id.parse().ok().and_then(|id: u64| paths.get(&id));
        let path = path.ok_or_else(|| {
            format!("the optimizer has the state `{name}` of a parameter that the model has not")
        })?;
        Ok::<_, String>(format!("{path}.{rest}"))
    };
    let mut tensors = Vec::new();
    for (name, tensor) in states.tensors {
        let (_, dtype, shape, _, bytes) = tensor.into_parts().map_err(|error| error.to_string())?;
        let path = path_of(&name)?;
        if shape.is_empty() {
            return Err(format!(
                "`{path}` of the optimizer's state has no dimensions"
            ));
        }
        tensors.push((path, TensorData::from_bytes(bytes, shape, dtype)));
    }
    for (name, scalar) in &states.scalars {
        tensors.push((path_of(name)?, number(*scalar)));
    }
    // Burn keeps states in no order; equal states make equal files.
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(tensors)
}

/// The record of the tensors and numbers by path, for a model whose parameters have the identities `ids`.
///
/// # Errors
/// If something belongs to a parameter that the model has not.
pub(crate) fn of_paths(
    tensors: &[TensorView<'_>],
    ids: &BTreeMap<String, u64>,
) -> Result<Vec<u8>, String> {
    let mut states = States::default();
    for view in tensors {
        let (path, id, rest) = parameter_of(&view.name, ids).ok_or_else(|| {
            format!(
                "the optimizer's state `{}` is of a parameter that the model has not",
                view.name
            )
        })?;
        states.paths.insert(id.to_string(), path.to_string());
        let name = format!("{id}.{rest}");
        if view.shape.is_empty() {
            states.scalars.insert(name, scalar(view)?);
            continue;
        }
        let tensor = tensor_of(&name, Some(id), view.to_data());
        states.tensors.insert(name, tensor);
    }
    states.into_bytes().map_err(|error| error.to_string())
}

/// The parameter with whose path `name` begins, and what follows. No parameter's path is the beginning of
/// another's, for it is a leaf.
fn parameter_of<'a, 'b>(
    name: &'b str,
    ids: &'a BTreeMap<String, u64>,
) -> Option<(&'a str, u64, &'b str)> {
    // The longest: beside a weight stand factors of it, whose paths continue from its own.
    let mut dots = name.rmatch_indices('.').map(|(at, _)| at);
    dots.find_map(|at| {
        let (path, id) = ids.get_key_value(&name[..at])?;
        Some((path.as_str(), *id, &name[at + 1..]))
    })
}

fn number(scalar: Scalar) -> TensorData {
    match scalar {
        Scalar::Int(value) => TensorData::new(vec![value], [0; 0]),
        Scalar::UInt(value) => TensorData::new(vec![value], [0; 0]),
        Scalar::Float(value) => TensorData::new(vec![value], [0; 0]),
        Scalar::Bool(value) => TensorData::new(vec![value], [0; 0]),
    }
}

fn scalar(view: &TensorView<'_>) -> Result<Scalar, String> {
    let bytes = || <[u8; 8]>::try_from(view.bytes);
    let scalar = match view.dtype {
        "I64" => bytes().map(|bytes| Scalar::Int(i64::from_le_bytes(bytes))),
        "U64" => bytes().map(|bytes| Scalar::UInt(u64::from_le_bytes(bytes))),
        "F64" => bytes().map(|bytes| Scalar::Float(f64::from_le_bytes(bytes))),
        "BOOL" => {
            return Ok(Scalar::Bool(
                view.bytes.first().is_some_and(|byte| *byte != 0),
            ));
        }
        other => return Err(format!("`{}` is a number of type {other}", view.name)),
    };
    scalar.map_err(|_| format!("`{}` is cut off", view.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tensor_file;

    fn record() -> Vec<u8> {
        let tensors = [
            tensor_of(
                "7.momentum.moment_1",
                Some(7),
                TensorData::from([1.5f32, f32::MIN_POSITIVE]),
            ),
            tensor_of("70.steps.0", Some(70), TensorData::from([3i64])),
        ];
        let named = tensors.map(|tensor| (tensor.name.clone(), tensor));
        let scalars = [
            ("7.__rank", Scalar::UInt(1)),
            ("7.momentum.time", Scalar::Int(-12)),
            (
                "70.rate",
                Scalar::Float(f64::from_bits(0x3fb9_9999_9999_999b)),
            ),
            ("70.warm", Scalar::Bool(true)),
        ];
        let states = States {
            tensors: named.into(),
            scalars: scalars
                .map(|(name, value)| (name.to_string(), value))
                .into(),
            paths: [("7", "a.weight"), ("70", "a.weights")]
                .map(|(id, path)| (id.to_string(), path.to_string()))
                .into(),
        };
        states.into_bytes().unwrap()
    }

    fn paths() -> HashMap<u64, String> {
        HashMap::from([(7, "a.weight".to_string()), (70, "a.weights".to_string())])
    }

    #[test]
    fn a_record_comes_back_to_the_bit_from_a_file_by_path() {
        let tensors = by_path(record(), &paths()).unwrap();
        assert_eq!(tensors[1].0, "a.weight.momentum.moment_1");
        let file = tensor_file::write(&tensors, &BTreeMap::new()).unwrap();
        let ids = paths().into_iter().map(|(id, path)| (path, id)).collect();
        let back = of_paths(&tensor_file::read(&file).unwrap(), &ids).unwrap();
        assert_eq!(back, record());
    }

    #[test]
    fn state_of_a_parameter_that_is_not_there_is_an_error() {
        let mut fewer = paths();
        fewer.remove(&70);
        let error = by_path(record(), &fewer).unwrap_err();
        assert!(error.contains("`70."), "{error}");
        let file = by_path(record(), &paths()).unwrap();
        let file = tensor_file::write(&file, &BTreeMap::new()).unwrap();
        let ids = fewer.into_iter().map(|(id, path)| (path, id)).collect();
        let error = of_paths(&tensor_file::read(&file).unwrap(), &ids).unwrap_err();
        assert!(error.contains("`a.weights."), "{error}");
    }
}
