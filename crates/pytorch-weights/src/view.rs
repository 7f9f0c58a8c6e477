//! What a tensor shows of its storage.

use crate::dtype::DType;

/// The numbers of a storage that a tensor shows, and in which order. Checked: they are there.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) dtype: DType,
    /// The file of the archive, by its place.
    pub(crate) file: usize,
    offset: usize,
    pub(crate) shape: Vec<usize>,
    strides: Vec<usize>,
    count: usize,
    /// How many numbers there are from the first that is shown to the last.
    extent: usize,
}

impl View {
    /// A view of a storage with `stored` numbers.
    pub(crate) fn new(
        dtype: DType,
        (file, stored): (usize, u64),
        offset: u64,
        (shape, strides): (Vec<usize>, Vec<usize>),
    ) -> Result<Self, String> {
        let wrong = || "its shape does not belong to the numbers that are there".to_string();
        if shape.len() != strides.len() {
            return Err(wrong());
        }
        let mut count = 1_usize;
        let mut last = 0_usize;
        for (length, stride) in shape.iter().zip(&strides) {
            count = count.checked_mul(*length).ok_or_else(wrong)?;
            let reach = length.saturating_sub(1).checked_mul(*stride);
            last = reach
                .and_then(|reach| last.checked_add(reach))
                .ok_or_else(wrong)?;
        }
        if count == 0 {
            return Ok(Self {
                dtype,
                file,
                offset: 0,
                shape,
                strides,
                count,
                extent: 0,
            });
        }
        if count as u64 > stored {
            return Err(
                "it repeats its numbers; save a copy without repetition, tensor.clone()"
                    .to_string(),
            );
        }
        let offset = usize::try_from(offset).map_err(|_| wrong())?;
        let extent = last.checked_add(1).ok_or_else(wrong)?;
        let end = offset.checked_add(extent).ok_or_else(wrong)?;
        // Bytes are counted in 64 bits elsewhere.
        if end as u64 > stored || end.checked_mul(dtype.size()).is_none() {
            return Err(wrong());
        }
        Ok(Self {
            dtype,
            file,
            offset,
            shape,
            strides,
            count,
            extent,
        })
    }

    /// Where the bytes begin that hold all numbers, and how many there are. No more than the file has.
    pub(crate) fn range(&self) -> (u64, u64) {
        let size = self.dtype.size();
        ((self.offset * size) as u64, (self.extent * size) as u64)
    }

    /// The numbers in order, of the bytes of [`Self::range`].
    pub(crate) fn numbers(&self, bytes: Vec<u8>) -> Vec<u8> {
        let mut numbers = match self.count == 0 || self.strides_are_in_order() {
            true => bytes,
            false => self.gather(&bytes),
        };
        if self.dtype == DType::Bool {
            // A byte of another value is no boolean.
            for byte in &mut numbers {
                *byte = u8::from(*byte != 0);
            }
        }
        numbers
    }

    /// Whether the numbers are one after the other. The stride of a dimension of length 1 says nothing.
    fn strides_are_in_order(&self) -> bool {
        let mut expected = 1;
        let mut dimensions = self.shape.iter().zip(&self.strides).rev();
        dimensions.all(|(length, stride)| {
            let fits = *length == 1 || *stride == expected;
            expected *= length;
            fits
        })
    }

    fn gather(&self, bytes: &[u8]) -> Vec<u8> {
        let size = self.dtype.size();
        let mut numbers = Vec::with_capacity(self.count * size);
        let mut index = vec![0; self.shape.len()];
        let mut place = 0;
        for _ in 0..self.count {
            numbers.extend_from_slice(&bytes[place * size..][..size]);
            // The next index, as an odometer counts.
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                place += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                place -= self.shape[axis] * self.strides[axis];
                index[axis] = 0;
            }
        }
        numbers
    }
}

/// The strides of numbers that are in order.
pub(crate) fn in_order(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1_usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    strides
}
