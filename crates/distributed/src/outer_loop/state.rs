//! What an outer loop remembers, to and from a checkpoint.

use burn::tensor::TensorData;
use everburn_collectives::group::{CollectiveError, ReduceOp};

use super::OuterLoop;
use super::sum::CHUNK;

/// What the outer optimizer remembers of a parameter, after its path.
const VELOCITY: &str = "momentum";

/// What was rounded away of a parameter's differences, after its path.
const RESIDUAL: &str = "residual";

impl OuterLoop {
    /// What a checkpoint needs besides the parameters: by the path of each parameter, what the optimizer
    /// remembers (`conv1.weight.momentum`) and what this rank still owes (`conv1.weight.residual`), each
    /// where there is such a thing.
    pub fn state(&self) -> Vec<(String, TensorData)> {
        let rows = [(VELOCITY, &self.velocity), (RESIDUAL, &self.residual)];
        let rows = rows.into_iter().filter(|(_, row)| !row.is_empty());
        let tensors = rows.flat_map(|(name, row)| {
            self.parameters.slots().iter().map(move |slot| {
                let own = row[slot.range.clone()].to_vec();
                let data = TensorData::new(own, slot.shape.as_slice());
                (format!("{}.{name}", slot.path), data)
            })
        });
        tensors.collect()
    }

    /// Takes over what [`state`](Self::state) gave. What is missing there begins at zero, and what this loop
    /// does not need is passed over: another configuration may have made it.
    ///
    /// # Errors
    /// The path of the first parameter whose state has another shape or type.
    pub fn load_state(&mut self, tensors: &[(String, TensorData)]) -> Result<(), String> {
        let rows = [
            (VELOCITY, &mut self.velocity),
            (RESIDUAL, &mut self.residual),
        ];
        for (name, row) in rows.into_iter().filter(|(_, row)| !row.is_empty()) {
            row.fill(0.0);
            for slot in self.parameters.slots() {
                let path = format!("{}.{name}", slot.path);
                let Some((_, data)) = tensors.iter().find(|(found, _)| *found == path) else {
                    continue;
                };
                let fits = **data.shape() == *slot.shape;
                let Some(values) = data.as_slice::<f32>().ok().filter(|_| fits) else {
                    return Err(format!(
                        "`{path}` has shape {:?} and type {:?}, and not {:?} of f32",
                        data.shape(),
                        data.dtype(),
                        slot.shape
                    ));
                };
                row[slot.range.clone()].copy_from_slice(values);
            }
        }
        Ok(())
    }

    /// Rank 0 takes over what all ranks still owe, so that one rank's state is that of all: what each of them
    /// adds to its next difference is only ever added up. Every rank calls it. Returns how many bytes this rank handed to
    /// the exchange.
    ///
    /// # Errors
    /// [`CollectiveError`] if a collective fails.
    pub fn gather_residuals(&mut self) -> Result<u64, CollectiveError> {
        if self.group.world_size() == 1 {
            return Ok(0);
        }
        let bytes = size_of_val(self.residual.as_slice());
        let mut all = Vec::with_capacity(self.residual.len());
        for chunk in self.residual.chunks(CHUNK) {
            let sum = self.group.reduce(chunk.to_vec(), ReduceOp::Sum, 0);
            all.extend(sum.wait()?);
        }
        match self.group.rank() {
            0 => self.residual = all,
            _ => self.forget_residual(),
        }
        Ok(bytes as u64)
    }

    /// This rank owes nothing any more: others have taken it over.
    pub fn forget_residual(&mut self) {
        self.residual.fill(0.0);
    }
}
