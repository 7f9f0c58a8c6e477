//! Models that write text.

use std::sync::Arc;

use burn::prelude::*;
use burn::tensor::Int;

use super::TaskError;

type Encode = Arc<dyn Fn(&str) -> Result<Vec<u32>, TaskError> + Send + Sync>;
type Decode = Arc<dyn Fn(&[u32]) -> String + Send + Sync>;
type Scores<M> = Arc<dyn Fn(&M, Tensor<2, Int>) -> Tensor<3> + Send + Sync>;

/// How a model writes text: its tokens, and how it scores the next one.
pub struct Language<M> {
    /// The longest text that the model sees at once, in tokens.
    pub context: usize,
    /// A sample is written every so many steps while the model trains, besides after each epoch.
    pub sample_every: Option<usize>,
    /// The tokens of a text.
    pub encode: Encode,
    /// The text of tokens.
    pub decode: Decode,
    /// The scores `[B, T, V]` of each next token of texts `[B, T]`.
    pub scores: Scores<M>,
}

impl<M> Clone for Language<M> {
    fn clone(&self) -> Self {
        Self {
            context: self.context,
            sample_every: self.sample_every,
            encode: Arc::clone(&self.encode),
            decode: Arc::clone(&self.decode),
            scores: Arc::clone(&self.scores),
        }
    }
}

impl<M: 'static> Language<M> {
    /// The same of a model that holds this one, in which `view` scores.
    pub(crate) fn of<N>(
        self,
        scores: impl Fn(&N, Tensor<2, Int>, &dyn Fn(&M, Tensor<2, Int>) -> Tensor<3>) -> Tensor<3>
        + Send
        + Sync
        + 'static,
    ) -> Language<N> {
        let Self {
            context,
            sample_every,
            encode,
            decode,
            scores: own,
        } = self;
        Language {
            context,
            sample_every,
            encode,
            decode,
            scores: Arc::new(move |model, tokens| scores(model, tokens, &*own)),
        }
    }
}
