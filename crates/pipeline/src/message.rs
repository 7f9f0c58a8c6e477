//! Tensors as bytes, between two stages.
//!
//! A message is a count of tensors, then for each of them a type, a number of dimensions, the
//! dimensions and the numbers as they lie in memory, all lengths little-endian `u64`. A tensor that is
//! not there (a gradient that nobody has) has the type 0 and nothing else.

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

pub(crate) fn encode(tensors: &[Option<TensorData>]) -> Result<Vec<u8>, String> {
    let bytes = |data: &TensorData| 8 * (data.shape().num_dims() + 2) + data.as_bytes().len();
    let length = 8 + tensors
        .iter()
        .map(|t| t.as_ref().map_or(8, bytes))
        .sum::<usize>();
    let mut message = Vec::with_capacity(length);
    let number = |message: &mut Vec<u8>, n: usize| {
        message.extend_from_slice(&(n as u64).to_le_bytes());
    };
    number(&mut message, tensors.len());
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
        message.extend_from_slice(data.as_bytes());
    }
    Ok(message)
}

pub(crate) fn decode(message: &[u8]) -> Result<Vec<Option<TensorData>>, String> {
    let mut rest = message;
    let count = number(&mut rest)?;
    if count > MOST {
        return Err(format!("it says that it holds {count} tensors"));
    }
    let tensors = (0..count).map(|_| tensor(&mut rest));
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    if !rest.is_empty() {
        return Err(format!("{} bytes too many came", rest.len()));
    }
    Ok(tensors)
}

fn tensor(rest: &mut &[u8]) -> Result<Option<TensorData>, String> {
    let code = number(rest)? as usize;
    if code == 0 {
        return Ok(None);
    }
    let dtype = TYPES.get(code - 1).ok_or("its type of number is unknown")?;
    let dimensions = number(rest)?;
    if dimensions > MOST {
        return Err(format!("a tensor of {dimensions} dimensions"));
    }
    let shape = (0..dimensions).map(|_| number(rest).map(|n| n as usize));
    let shape = shape.collect::<Result<Vec<_>, _>>()?;
    let elements = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    let bytes = elements.and_then(|n| n.checked_mul(dtype.size()));
    let bytes = bytes.filter(|bytes| *bytes <= rest.len());
    let bytes =
        bytes.ok_or_else(|| format!("too few bytes came for a tensor of shape {shape:?}"))?;
    let (own, others) = rest.split_at(bytes);
    *rest = others;
    let data = TensorData::from_bytes(Bytes::from_bytes_vec(own.to_vec()), shape, *dtype);
    Ok(Some(data))
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
        assert_eq!(decode(&encode(&tensors).unwrap()).unwrap(), tensors);
        assert_eq!(decode(&encode(&[]).unwrap()).unwrap(), []);
    }

    #[test]
    fn what_is_cut_or_made_up_is_refused() {
        let whole = encode(&[Some(TensorData::from([1.0f32, 2.0]))]).unwrap();
        for length in 0..whole.len() {
            assert!(decode(&whole[..length]).is_err(), "{length} bytes");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(decode(&longer).is_err());
        let mut huge = whole;
        huge[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(decode(&huge).unwrap_err().contains("too few bytes"));
    }
}
