//! Weights that are damaged, NaN or infinite are refused when they are read. Otherwise the training that begins with them
//! would be reported as diverged, and not the training that wrote them. What a training computes itself is checked in
//! `model/finite.rs`.

use std::sync::{Arc, Mutex};

use burn::store::bridge;
use burn::store::burn_pack::{Error as PackError, Tensor as PackedTensor};
use burn::tensor::{DType, TensorData};
use everburn_record::sync::lock;

/// What was wrong with the numbers of tensors that have been read, by their names in PyTorch.
pub(super) type WrongNumbers = Arc<Mutex<Vec<String>>>;

/// The same tensor. Reading it fails if it is damaged, or one of its numbers is NaN or infinite, or too large for `f32`;
/// what is wrong is also in `wrong_numbers` then.
pub(super) fn checked(tensor: PackedTensor, wrong_numbers: &WrongNumbers) -> PackedTensor {
    let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
    let wrong_numbers = wrong_numbers.clone();
    bridge::deferred(name.clone(), dtype, shape, tensor.param_id, move || {
        let data = bridge::to_data(&tensor);
        let data = data.and_then(|data| require_finite(&data, &name).map(|()| data));
        data.inspect_err(|error| {
            lock(&wrong_numbers).push(match error {
                PackError::ValidationError(reason) => reason.clone(),
                error => format!("{name}: {error}"),
            });
        })
    })
}

/// Refuses the numbers of the tensor `name` if one of them is none in `f32`.
pub(super) fn require_finite(data: &TensorData, name: &str) -> Result<(), PackError> {
    let (wrong, all) = (not_finite(data), data.num_elements());
    if wrong == 0 {
        return Ok(());
    }
    let is_large = data.dtype() == DType::F64 && data.iter::<f64>().all(f64::is_finite);
    let why = match is_large {
        true => "above the range of f32, in which the model computes",
        false => "NaN or infinite: the training that wrote the file had diverged",
    };
    let reason = format!("{wrong} of the {all} numbers of {name} are {why}");
    Err(PackError::ValidationError(reason))
}

/// How many numbers are NaN or infinite.
fn not_finite(data: &TensorData) -> usize {
    if !data.dtype().is_float() {
        return 0;
    }
    match (data.dtype(), data.as_slice::<f32>()) {
        (DType::F32, Ok(numbers)) => numbers.iter().filter(|it| !it.is_finite()).count(),
        _ => data.iter::<f32>().filter(|it| !it.is_finite()).count(),
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;
    use burn::prelude::*;
    use everburn_tests::AssertContains;

    use crate::{
        Patterns, StateDictLayout, load_state_dict, open_state_dict_except, save_state_dict,
    };

    #[test]
    fn weights_that_are_no_numbers_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::flex();
        let config = LinearConfig::new(3, 2);
        for (ending, wrong) in [("safetensors", f32::NAN), ("pt", f32::INFINITY)] {
            let path = folder.path().join(format!("weights.{ending}"));
            let mut model = config.init(&device);
            let numbers = TensorData::new(vec![1f32, wrong, 2., 3., wrong, 4.], [3, 2]);
            model.weight = model.weight.map(|_| Tensor::from_data(numbers, &device));
            save_state_dict(&model, 0, &path).unwrap();
            let error = load_state_dict(config.init(&device), &path).unwrap_err();
            let told = error.to_string();
            told.assert_contains(["2 of the 6 numbers of weight are NaN or infinite"]);
            assert!(told.starts_with("reading "), "{told}");

            let skip = Patterns::from("weight");
            let layout = StateDictLayout::default();
            let nothing = Patterns::default();
            let (_, values) =
                open_state_dict_except(config.init(&device), &path, &nothing, &layout, false)
                    .unwrap();
            let told = values.value("weight").unwrap_err();
            assert!(told.contains("NaN or infinite"), "{told}");
            values.value("bias").unwrap();
            crate::load_state_dict_except(config.init(&device), &path, &skip, &layout).unwrap();
        }
    }

    #[test]
    fn numbers_above_the_range_of_f32_are_no_diverged_training() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let header = r#"{"weight": {"dtype": "F64", "shape": [2, 3], "data_offsets": [0, 48]},
            "bias": {"dtype": "F64", "shape": [2], "data_offsets": [48, 64]}}"#;
        let size = header.len().next_multiple_of(8);
        let header = format!("{header:<size$}");
        let length = (size as u64).to_le_bytes();
        let device = Device::flex();
        let told = |number: f64| {
            let numbers = [number, 1., 2., 3., 4., 5., 6., 7.].map(f64::to_le_bytes);
            let file = [&length[..], header.as_bytes(), &numbers.concat()].concat();
            std::fs::write(&path, file).unwrap();
            let loaded = load_state_dict(LinearConfig::new(3, 2).init(&device), &path);
            loaded.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(told(1.5), Ok(()));
        let large = told(1e300).unwrap_err();
        large.assert_contains(["1 of the 6 numbers of weight are above the range of f32"]);
        assert!(!large.contains("diverged"), "{large}");
        told(f64::NAN).unwrap_err().assert_contains(["diverged"]);
    }

    #[test]
    fn a_damaged_file_of_pytorch_is_refused_by_the_tensors_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.pt");
        let device = Device::flex();
        let config = LinearConfig::new(3, 2);
        let mut model = config.init(&device);
        model.weight = model.weight.map(|_| Tensor::full([3, 2], 1.5, &device));
        save_state_dict(&model, 0, &path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let numbers = 1.5_f32.to_le_bytes().repeat(6);
        let place = bytes.windows(numbers.len()).position(|it| it == numbers);
        bytes[place.unwrap()] ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
        let told = load_state_dict(config.init(&device), &path).unwrap_err();
        let told = told.to_string();
        assert!(told.starts_with("reading "), "{told}");
        told.assert_contains(["weights.pt failed: weight in it is damaged: its checksum is"]);
    }
}
