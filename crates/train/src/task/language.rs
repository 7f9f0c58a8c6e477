//! Models that write text.

use std::sync::Arc;

use burn::prelude::*;
use burn::tensor::Int;

use super::TaskError;

type Encode = Arc<dyn Fn(&str) -> Result<Vec<u32>, TaskError> + Send + Sync>;
/// How a question becomes the text before its answer.
type Turn = Arc<dyn Fn(&str, bool) -> String + Send + Sync>;
type Decode = Arc<dyn Fn(&[u32]) -> String + Send + Sync>;

/// Scores the next token of one text: `[1, T]` tokens, and how many it has been shown before them, become logits
/// `[1, any, V]` (of several texts at once, `[B, T]` and `[B, any, V]`), of which the last row is about the next token. 0 begins a text. [`whole_text`](crate::whole_text) makes
/// one of any model; one with a cache of keys and values need not compute a token twice.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::Scorer;
///
/// fn first<'a>(scorer: &mut Scorer<'a>, prompt: Tensor<2, Int>) -> Tensor<3> {
///     scorer(prompt, 0)
/// }
/// ```
pub type Scorer<'a> = Box<dyn FnMut(Tensor<2, Int>, usize) -> Tensor<3> + 'a>;

/// How a model that has learned from instructions answers.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use std::sync::Arc;
/// use everburn::train::Conversation;
///
/// let turn = |question: &str, first: bool| format!("{}Q: {question}\nA: ", if first { "" } else { "\n" });
/// let conversation = Conversation { turn: Arc::new(turn), end: "\n".to_string(), remembers: true };
/// assert_eq!((conversation.turn)("How many?", true), "Q: How many?\nA: ");
/// ```
#[derive(Clone)]
pub struct Conversation {
    /// The text between the end of the answer before and the next answer, of a question and whether it is the first.
    pub turn: Turn,
    /// The text by which the model ends an answer.
    pub end: String,
    /// Whether it has learned from conversations of several turns; else each question is one by itself.
    pub remembers: bool,
}

/// How a model writes text: its tokens, and how it scores the next one.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Language;
///
/// fn context<M>(language: &Language<M>) -> usize {
///     language.context // the most tokens that the model reads
/// }
/// ```
pub struct Language<M> {
    /// The longest text that the model sees at once, in tokens.
    pub context: usize,
    /// A sample is written every N steps while the model trains, besides after each epoch.
    pub sample_every: Option<usize>,
    /// The tokens of a text.
    pub encode: Encode,
    /// The text of tokens.
    pub decode: Decode,
    /// How the model answers, if it has learned to.
    pub conversation: Option<Conversation>,
    /// Scores the next tokens of a text by a model.
    pub scorer: Arc<dyn for<'a> Fn(&'a M) -> Scorer<'a> + Send + Sync>,
}
