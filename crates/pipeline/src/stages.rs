//! Which blocks make which stage, and which rank has which parameters.

use std::ops::Range;

use burn::module::Module;
use everburn_nn::{BlockError, Blocks, parameter_paths};

/// The stages of a model over the ranks of a pipeline: stage `s` is on rank `s` modulo their number.
///
/// ```
/// # mod everburn { pub use everburn_pipeline as pipeline; }
/// use everburn::pipeline::Stages;
///
/// // Five blocks in four stages over two ranks: an interleaved pipeline.
/// let stages = Stages::even(5, 2, 2).unwrap();
/// assert_eq!(stages.blocks(0), 0..2);
/// assert_eq!(stages.rank_of(2), 0);
/// assert_eq!(stages.stages_of(1).collect::<Vec<_>>(), [1, 3]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stages {
    cuts: Vec<Range<usize>>,
    ranks: usize,
}

/// Why a model cannot be cut so.
///
/// ```
/// # mod everburn { pub use everburn_pipeline as pipeline; }
/// use everburn::pipeline::{Stages, StagesError};
///
/// let error = Stages::even(3, 2, 2).unwrap_err();
/// assert!(matches!(error, StagesError::TooMany { stages: 4, blocks: 3, .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StagesError {
    /// More stages than blocks.
    #[error(
        "{stages} stages ({ranks} ranks with {chunks} each) do not fit a model of {blocks} blocks; \
         use fewer ranks in the pipeline"
    )]
    TooMany {
        /// How many stages were asked for.
        stages: usize,
        /// Over how many ranks.
        ranks: usize,
        /// How many stages a rank has.
        chunks: usize,
        /// How many blocks there are.
        blocks: usize,
    },
    /// The ranges do not cover the blocks one after the other.
    #[error("the stages {cuts:?} do not cover the model's {blocks} blocks one after the other")]
    NotContiguous {
        /// The ranges of blocks.
        cuts: Vec<Range<usize>>,
        /// How many blocks there are.
        blocks: usize,
    },
    /// The stages do not fit the ranks.
    #[error("{stages} stages cannot be dealt to {ranks} ranks, as many to each")]
    Uneven {
        /// How many stages there are.
        stages: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// The model's blocks do not name its parameters.
    #[error(transparent)]
    Blocks(#[from] BlockError),
}

impl Stages {
    /// `chunks` stages on each of `ranks` ranks, each of about as many blocks.
    ///
    /// # Errors
    /// [`StagesError::TooMany`] if there are fewer blocks than stages.
    pub fn even(blocks: usize, ranks: usize, chunks: usize) -> Result<Self, StagesError> {
        let stages = ranks * chunks;
        if stages > blocks || stages == 0 {
            return Err(StagesError::TooMany {
                stages,
                ranks,
                chunks,
                blocks,
            });
        }
        let part = |stage: usize| everburn_distributed::share_of(blocks, stage, stages);
        Self::new((0..stages).map(part).collect(), blocks, ranks)
    }

    /// Stages of the blocks `cuts`, of a model of `blocks` blocks, over `ranks` ranks.
    ///
    /// # Errors
    /// [`StagesError`] if the ranges leave a block out, overlap or are empty, or cannot be dealt evenly.
    pub fn new(cuts: Vec<Range<usize>>, blocks: usize, ranks: usize) -> Result<Self, StagesError> {
        let mut next = 0;
        for cut in &cuts {
            if cut.start != next || cut.is_empty() {
                return Err(StagesError::NotContiguous { cuts, blocks });
            }
            next = cut.end;
        }
        if next != blocks {
            return Err(StagesError::NotContiguous { cuts, blocks });
        }
        if ranks == 0 || !cuts.len().is_multiple_of(ranks) {
            let stages = cuts.len();
            return Err(StagesError::Uneven { stages, ranks });
        }
        Ok(Self { cuts, ranks })
    }

    /// How many stages there are.
    #[allow(clippy::len_without_is_empty)] // there is always one
    pub fn len(&self) -> usize {
        self.cuts.len()
    }

    /// Over how many ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// How many stages a rank has.
    pub fn chunks(&self) -> usize {
        self.cuts.len() / self.ranks
    }

    /// The blocks of a stage.
    ///
    /// # Panics
    /// Panics if there is no such stage.
    pub fn blocks(&self, stage: usize) -> Range<usize> {
        self.cuts[stage].clone()
    }

    /// The rank of the pipeline that has `stage`.
    pub fn rank_of(&self, stage: usize) -> usize {
        stage % self.ranks
    }

    /// The stages of a rank of the pipeline.
    pub fn stages_of(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (rank..self.cuts.len()).step_by(self.ranks)
    }

    /// For each parameter of `model` in the order of its fields, its path and the ranks that hold it,
    /// in ascending order: the first of them counts as its owner.
    ///
    /// # Errors
    /// [`BlockError`] if the model's blocks do not name all its parameters.
    pub fn holders<M: Module, I, O>(
        &self,
        model: &M,
        blocks: &Blocks<M, I, O>,
    ) -> Result<Vec<(String, Vec<usize>)>, StagesError> {
        blocks.check(model)?;
        let stage_of = |block: &usize| {
            let stage = self.cuts.iter().position(|cut| cut.contains(block));
            self.rank_of(stage.unwrap_or(0))
        };
        let holders = parameter_paths(model).into_iter().map(|parameter| {
            let users = blocks.users_of(&parameter.path);
            let mut ranks = users.iter().map(stage_of).collect::<Vec<_>>();
            ranks.sort_unstable();
            ranks.dedup();
            (parameter.path, ranks)
        });
        Ok(holders.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_cover_the_blocks_and_are_dealt_in_turn() {
        let stages = Stages::even(7, 3, 1).unwrap();
        assert_eq!(
            [stages.blocks(0), stages.blocks(1), stages.blocks(2)],
            [0..3, 3..5, 5..7]
        );
        let error = Stages::even(3, 2, 2).unwrap_err().to_string();
        assert!(error.contains("4 stages (2 ranks with 2 each)"), "{error}");
        assert!(error.contains("3 blocks"), "{error}");
    }

    #[test]
    fn gaps_and_overlaps_are_refused() {
        for cuts in [
            vec![0..2, 3..4],
            vec![0..2, 1..4],
            vec![0..4, 4..4],
            vec![0..2, 2..3],
        ] {
            assert!(matches!(
                Stages::new(cuts, 4, 1),
                Err(StagesError::NotContiguous { .. })
            ));
        }
        let error = Stages::new(vec![0..1, 1..2, 2..4], 4, 2).unwrap_err();
        assert_eq!(
            error,
            StagesError::Uneven {
                stages: 3,
                ranks: 2
            }
        );
    }
}
