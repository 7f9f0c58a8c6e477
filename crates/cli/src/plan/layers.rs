//! Layers that ranks share along the tensor axis, as far as a plan looks at them.

use std::collections::HashMap;

use everburn_nn::{ParameterPath, ParameterShard};

/// Which parameters are cut over how many ranks.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedLayers {
    parts: usize,
    /// By path, along which dimension.
    dims: HashMap<String, usize>,
}

/// The all-reduces of a block's layers for a micro-batch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct AllReduces {
    /// Sums of what goes out, in the forward pass.
    pub(super) outputs: usize,
    /// Sums of the gradients of what comes in, in the backward pass.
    pub(super) inputs: usize,
}

impl SharedLayers {
    pub(super) fn new(shards: Vec<ParameterShard>) -> Self {
        Self {
            parts: shards.first().map_or(1, |shard| shard.parts),
            dims: shards.into_iter().map(|s| (s.path, s.dim)).collect(),
        }
    }

    /// How many ranks share a layer.
    pub(super) fn ranks(&self) -> usize {
        self.parts.max(1)
    }

    /// The shape that a rank has of `parameter`.
    pub(super) fn shape(&self, parameter: &ParameterPath) -> Vec<usize> {
        let mut shape = parameter.shape.clone();
        if let Some(dim) = self.dims.get(&parameter.path) {
            shape[*dim] /= self.ranks();
        }
        shape
    }

    /// What part of a block's work a rank has, by the numbers of the block's `parameters`: of what is cut
    /// its part, and all of the rest.
    pub(super) fn share_of_work<'a>(
        &self,
        parameters: impl Iterator<Item = &'a ParameterPath>,
    ) -> f64 {
        let (mut own, mut all) = (0, 0);
        for parameter in parameters {
            own += self.shape(parameter).into_iter().product::<usize>();
            all += parameter.shape.iter().product::<usize>();
        }
        match all {
            0 => 1.0,
            _ => own as f64 / all as f64,
        }
    }

    /// The all-reduces of a block with these `parameters`. Layers cut by what comes in follow layers cut by
    /// what goes out, several of which may share an input, as in an attention.
    pub(super) fn all_reduces<'a>(
        &self,
        parameters: impl Iterator<Item = &'a ParameterPath>,
    ) -> AllReduces {
        let (mut rows, mut columns) = (0, 0);
        for parameter in parameters.filter(|parameter| parameter.shape.len() > 1) {
            match self.dims.get(&parameter.path) {
                Some(0) => rows += 1,
                Some(_) => columns += 1,
                None => {}
            }
        }
        AllReduces {
            outputs: rows,
            inputs: if rows > 0 {
                rows.min(columns)
            } else {
                columns.min(1)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(path: &str, shape: &[usize]) -> ParameterPath {
        ParameterPath {
            path: path.into(),
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn a_rank_has_its_part_of_what_is_cut_and_all_of_the_rest() {
        let shard = |path: &str, dim| ParameterShard {
            path: path.into(),
            dim,
            part: 0,
            parts: 2,
        };
        let layers = SharedLayers::new(vec![
            shard("q.weight", 1),
            shard("k.weight", 1),
            shard("out.weight", 0),
        ]);
        let parameters = [
            parameter("norm.gamma", &[4]),
            parameter("q.weight", &[4, 4]),
            parameter("k.weight", &[4, 4]),
            parameter("out.weight", &[4, 3]),
        ];
        assert_eq!(layers.shape(&parameters[3]), [2, 3]);
        let share = layers.share_of_work(parameters.iter());
        assert!((share - 26.0 / 48.0).abs() < 1e-9, "{share}");
        let all_reduces = layers.all_reduces(parameters.iter());
        assert_eq!((all_reduces.outputs, all_reduces.inputs), (1, 1));
        let only = layers.all_reduces(parameters[..2].iter());
        assert_eq!((only.outputs, only.inputs), (0, 1));
        let none = SharedLayers::default();
        assert_eq!(none.share_of_work(parameters.iter()), 1.0);
    }
}
