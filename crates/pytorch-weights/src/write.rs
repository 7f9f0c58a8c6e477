//! Files for PyTorch.

use crate::archive;
use crate::dtype::DType;
use crate::error::{WeightsError, tensor as wrong};
use crate::view::in_order;

/// A tensor that is to be written.
///
/// ```
/// use everburn_pytorch_weights::{DType, NewTensor, to_bytes};
///
/// let weight = NewTensor { name: "weight", dtype: DType::U8, shape: &[2, 2], bytes: &[1, 2, 3, 4] };
/// assert!(to_bytes(&[weight]).is_ok());
///
/// let short = NewTensor { bytes: &[1, 2], ..weight };
/// assert!(to_bytes(&[short]).is_err());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct NewTensor<'a> {
    /// Its name in the state dict.
    pub name: &'a str,
    /// The type of its numbers.
    pub dtype: DType,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its numbers in order, little endian.
    pub bytes: &'a [u8],
}

/// A file as `torch.save(state_dict)` writes it. The same tensors make the same bytes.
///
/// # Errors
/// A tensor whose bytes do not belong to its shape, or whose type `torch.load` knows only in later versions; more than
/// 4 GiB, or 65,531 tensors, for which there are safetensors.
pub fn to_bytes(tensors: &[NewTensor<'_>]) -> Result<Vec<u8>, WeightsError> {
    let pickle = pickle_of(tensors)?;
    let mut files = vec![
        ("archive/data.pkl".to_string(), pickle.as_slice()),
        ("archive/byteorder".to_string(), b"little"),
    ];
    for (key, tensor) in tensors.iter().enumerate() {
        files.push((format!("archive/data/{key}"), tensor.bytes));
    }
    files.push(("archive/version".to_string(), b"3\n"));
    archive::write(&files)
}

/// An ordered dict of tensors, in protocol 2.
fn pickle_of(tensors: &[NewTensor<'_>]) -> Result<Vec<u8>, WeightsError> {
    const ORDERED_DICT: &[u8] = b"ccollections\nOrderedDict\n)R";
    let text = |text: &str| {
        [
            &b"X"[..],
            &(text.len() as u32).to_le_bytes(),
            text.as_bytes(),
        ]
        .concat()
    };
    let mut bytes = [&[0x80, 2][..], ORDERED_DICT, b"("].concat();
    for (key, tensor) in tensors.iter().enumerate() {
        let NewTensor {
            name,
            dtype,
            shape,
            bytes: numbers,
        } = *tensor;
        let refuse = |reason: &str| wrong(name, reason);
        let number = |number: usize| {
            let number = i32::try_from(number)
                .map_err(|_| refuse("is too large for it; use safetensors"))?;
            Ok::<_, WeightsError>([&b"J"[..], &number.to_le_bytes()].concat())
        };
        let tuple = |sizes: &[usize]| {
            let sizes = sizes
                .iter()
                .map(|size| number(*size))
                .collect::<Result<Vec<_>, _>>()?;
            Ok::<_, WeightsError>([&b"("[..], &sizes.concat(), b"t"].concat())
        };
        let class = dtype.storage_class();
        let class = class
            .ok_or_else(|| refuse("numbers of this type have no place in it; use safetensors"))?;
        let count = shape
            .iter()
            .try_fold(1_usize, |count, size| count.checked_mul(*size));
        let count = count.filter(|count| count.checked_mul(dtype.size()) == Some(numbers.len()));
        let count = count.ok_or_else(|| refuse("its numbers do not belong to its shape"))?;
        bytes.extend(text(name));
        bytes.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        bytes.extend(text("storage"));
        bytes.extend(format!("ctorch\n{class}\n").as_bytes());
        bytes.extend(text(&key.to_string()));
        bytes.extend(text("cpu"));
        bytes.extend(number(count)?);
        bytes.extend(b"tQ");
        bytes.extend(number(0)?);
        bytes.extend(tuple(shape)?);
        bytes.extend(tuple(&in_order(shape))?);
        bytes.push(0x89); // needs no gradient
        bytes.extend(ORDERED_DICT); // has no hooks
        bytes.extend(b"tR");
    }
    bytes.extend(b"u.");
    Ok(bytes)
}
