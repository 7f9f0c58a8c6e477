//! Tensors as bytes, between two stages.
//!
//! A message is the numbers of all tensors as they are in memory, one tensor after the other; then for each
//! of them a type, a number of dimensions and the dimensions; then the count of tensors, and the length of
//! what describes them. All of these are little-endian `u64`. A tensor that is not there (a gradient that
//! nobody has) has the type 0 and nothing else.
//!
//! The numbers come first so that who gets a message of one tensor need not copy them: it cuts the
//! description off. Nobody computes while a message is taken apart, so that this is time that a pipeline
//! is idle.

use burn::tensor::{BoolStore, Bytes, DType, TensorData};

/// More tensors, or more dimensions, than any activation has.
const MOST: u64 = 64;

const TYPES: [DType; 9] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I8,
    DType::U8,
    DType::Bool(BoolStore::Native),
];

/// What is at the end of a message: the count of tensors and the length of what describes them.
const END: usize = 16;

pub(crate) fn encode(tensors: &[Option<TensorData>]) -> Result<Vec<u8>, String> {
    let there = || tensors.iter().flatten();
    let numbers = there().map(|data| data.as_bytes().len()).sum::<usize>();
    let dimensions = there()
        .map(|data| data.shape().num_dims() + 1)
        .sum::<usize>();
    let described = 8 * (tensors.len() + dimensions);
    let mut message = Vec::with_capacity(numbers + described + END);
    for data in there() {
        message.extend_from_slice(data.as_bytes());
    }
    let number = |message: &mut Vec<u8>, n: usize| {
        message.extend_from_slice(&(n as u64).to_le_bytes());
    };
    for tensor in tensors {
        let Some(data) = tensor else {
            number(&mut message, 0);
            continue;
        };
        let code = TYPES.iter().position(|dtype| *dtype == data.dtype());
        let code = code.ok_or_else(|| format!("numbers of type {:?}", data.dtype()))?;
        number(&mut message, code + 1);
        number(&mut message, data.shape().num_dims());
        for dimension in data.shape().iter() {
            number(&mut message, *dimension);
        }
    }
    number(&mut message, tensors.len());
    number(&mut message, described);
    Ok(message)
}

pub(crate) fn decode(mut message: Vec<u8>) -> Result<Vec<Option<TensorData>>, String> {
    let (before, end) = message.split_at(message.len().saturating_sub(END));
    let mut end = end;
    let (count, described) = (number(&mut end)?, number(&mut end)?);
    if count > MOST {
        return Err(format!("it says that it holds {count} tensors"));
    }
    let numbers = (before.len() as u64).checked_sub(described);
    let numbers = numbers.ok_or("it ends in the middle")? as usize;
    let mut rest = &before[numbers..];
    let tensors = (0..count).map(|_| description(&mut rest));
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    if !rest.is_empty() {
        return Err(format!("{} bytes too many came", rest.len()));
    }
    message.truncate(numbers);
    // From the last to the first, which keeps the memory that the message came in.
    let mut data = Vec::with_capacity(tensors.len());
    for tensor in tensors.into_iter().rev() {
        data.push(match tensor {
            None => None,
            Some(described) => Some(described.take(&mut message)?),
        });
    }
    if !message.is_empty() {
        return Err(format!("{} bytes too many came", message.len()));
    }
    data.reverse();
    Ok(data)
}

/// A tensor without its numbers.
struct Description {
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
}

impl Description {
    /// The tensor, of the last numbers of a message.
    fn take(self, message: &mut Vec<u8>) -> Result<TensorData, String> {
        let Self {
            dtype,
            shape,
            bytes,
        } = self;
        let start = message.len().checked_sub(bytes);
        let start =
            start.ok_or_else(|| format!("too few bytes came for a tensor of shape {shape:?}"))?;
        let own = match start {
            0 => std::mem::take(message),
            _ => message.split_off(start),
        };
        // `from_bytes_vec` wants memory for any type of number, as no `Vec<u8>` is, and copies into such.
        let lies_well = (own.as_ptr() as usize).is_multiple_of(dtype.size().max(1));
        let own = match lies_well {
            true => Bytes::from_elems(own),
            false => Bytes::from_bytes_vec(own),
        };
        Ok(TensorData::from_bytes(own, shape, dtype))
    }
}

fn description(rest: &mut &[u8]) -> Result<Option<Description>, String> {
    let code = number(rest)? as usize;
    if code == 0 {
        return Ok(None);
    }
    let dtype = *TYPES.get(code - 1).ok_or("its type of number is unknown")?;
    let dimensions = number(rest)?;
    if dimensions > MOST {
        return Err(format!("a tensor of {dimensions} dimensions"));
    }
    let shape = (0..dimensions).map(|_| number(rest).map(|n| n as usize));
    let shape = shape.collect::<Result<Vec<_>, _>>()?;
    let elements = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    let bytes = elements.and_then(|n| n.checked_mul(dtype.size()));
    let bytes =
        bytes.ok_or_else(|| format!("too few bytes came for a tensor of shape {shape:?}"))?;
    Ok(Some(Description {
        dtype,
        shape,
        bytes,
    }))
}

fn number(rest: &mut &[u8]) -> Result<u64, String> {
    let (own, others) = rest.split_first_chunk().ok_or("it ends in the middle")?;
    *rest = others;
    Ok(u64::from_le_bytes(*own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_come_back_as_they_were() {
        let tensors = vec![
            Some(TensorData::from([[1.0f32, -2.0], [3.5, f32::INFINITY]])),
            None,
            Some(TensorData::from([7i64, -1, 3])),
            Some(TensorData::new(Vec::<f32>::new(), [0, 4])),
        ];
        let there_and_back = |tensors: &[_]| decode(encode(tensors).unwrap()).unwrap();
        assert_eq!(there_and_back(&tensors), tensors);
        assert_eq!(there_and_back(&[]), []);
        assert_eq!(there_and_back(&tensors[..1]), tensors[..1]);
        assert_eq!(there_and_back(&tensors[3..]), tensors[3..]);
    }

    #[test]
    fn one_tensor_stays_in_the_memory_that_it_came_in() {
        let message = encode(&[Some(TensorData::from([1.0f32; 1024]))]).unwrap();
        let place = message.as_ptr();
        let tensors = decode(message).unwrap();
        let data = tensors[0].as_ref().unwrap();
        // Memory that is not well for numbers is left; `malloc` gives none such.
        if (place as usize).is_multiple_of(size_of::<f32>()) {
            assert_eq!(data.as_bytes().as_ptr(), place);
        }
        assert_eq!(data.as_slice::<f32>().unwrap(), [1.0; 1024]);
    }

    #[test]
    fn what_is_cut_or_made_up_is_refused() {
        let whole = encode(&[Some(TensorData::from([1.0f32, 2.0]))]).unwrap();
        for length in 0..whole.len() {
            assert!(decode(whole[..length].to_vec()).is_err(), "{length} bytes");
            assert!(decode(whole[whole.len() - length..].to_vec()).is_err());
        }
        let longer = [&[0], &*whole].concat();
        assert!(decode(longer).unwrap_err().contains("1 bytes too many"));
        // After 8 bytes of numbers: type, dimensions, the only dimension, count, length.
        let with = |place: usize, number: u64| {
            let mut message = whole.clone();
            message[place..place + 8].copy_from_slice(&number.to_le_bytes());
            decode(message).unwrap_err()
        };
        assert!(with(24, u64::MAX).contains("too few bytes"));
        assert!(with(24, 3).contains("too few bytes"));
        assert!(with(8, 99).contains("type of number"));
        assert!(with(16, u64::MAX).contains("dimensions"));
        assert!(with(32, u64::MAX).contains("tensors"));
        assert!(with(40, u64::MAX).contains("in the middle"));
        assert!(with(40, 32).contains("type of number"));
    }
}
