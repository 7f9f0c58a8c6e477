//! Text from a model: one token after the other.

mod batch;

use burn::prelude::*;
use burn::tensor::{Int, TensorData};

use crate::error::TrainError;
use crate::seeds::mix;

/// How tokens are drawn from a model's scores.
///
/// Random numbers come from `seed` alone and never from a device's generator: drawing a sample while a
/// model trains does not change the training.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use burn::tensor::Int;
/// use everburn::train::{GenerationConfig, whole_text};
///
/// // A model that scores the token after the last one highest.
/// let counts = |tokens: Tensor<2, Int>| (tokens + 1).one_hot::<3>(10).float() * 5.0;
/// let greedy = GenerationConfig { tokens: 4, temperature: 0.0, ..GenerationConfig::default() };
/// let drawn = greedy.draw(&[3], 2, whole_text(counts), &Device::flex()).unwrap();
/// assert_eq!(drawn, [4, 5, 6, 7]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerationConfig {
    /// How many tokens are drawn.
    pub tokens: usize,
    /// What scores are divided by: below 1 the likely tokens become more likely; at 0 the likeliest is
    /// always taken.
    pub temperature: f64,
    /// Only this many tokens, the likeliest, are drawn from (Fan et al. 2018, section 5.4).
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together have this probability are drawn from (nucleus sampling, Holtzman et
    /// al. 2020, section 3.1).
    pub top_p: Option<f64>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        Self {
            tokens: 200,
            temperature: 0.8,
            top_k: None,
            top_p: None,
            seed: 42,
        }
    }
}

/// A scorer for [`GenerationConfig`] of a function that takes a whole text: it is shown all tokens again for each new one.
///
/// # Shapes
/// - what `forward` takes: tokens `[B, T]`
/// - what it yields: logits `[B, T, V]`
pub fn whole_text<'a>(
    forward: impl Fn(Tensor<2, Int>) -> Tensor<3> + 'a,
) -> impl FnMut(Tensor<2, Int>, usize) -> Tensor<3> + 'a {
    let mut seen: Option<Tensor<2, Int>> = None;
    move |tokens, start| {
        let before = seen.take().filter(|_| start > 0);
        let all = match before {
            None => tokens,
            Some(before) => Tensor::cat(vec![before, tokens], 1),
        };
        forward(seen.insert(all).clone())
    }
}

impl GenerationConfig {
    /// Draws tokens that follow `prompt`. The model is shown at most the last `context` tokens.
    ///
    /// `score` takes tokens and how many it has been shown of the same text before them; 0 begins a text.
    ///
    /// # Shapes
    /// - what `score` takes: tokens `[1, T]`
    /// - what `score` yields: logits `[1, any, V]`, of which the last row counts
    ///
    /// # Errors
    /// [`TrainError::Config`] if the prompt is empty, the context or `top_k` is 0, the temperature is no
    /// number from 0 on, or `top_p` is none above 0 and up to 1; [`TrainError::Device`] if scores cannot be read or are
    /// not numbers.
    pub fn draw(
        &self,
        prompt: &[u32],
        context: usize,
        score: impl FnMut(Tensor<2, Int>, usize) -> Tensor<3>,
        device: &Device,
    ) -> Result<Vec<u32>, TrainError> {
        self.stream(prompt, context, score, device)?.collect()
    }

    /// As [`draw`](Self::draw), one token at a time.
    ///
    /// # Errors
    /// As [`draw`](Self::draw).
    pub fn stream<S: FnMut(Tensor<2, Int>, usize) -> Tensor<3>>(
        &self,
        prompt: &[u32],
        context: usize,
        score: S,
        device: &Device,
    ) -> Result<TokenStream<S>, TrainError> {
        self.check(prompt, context)?;
        Ok(TokenStream {
            generation: *self,
            text: prompt.to_vec(),
            shown: 0,
            drawn: 0,
            end: self.tokens,
            context,
            score,
            device: device.clone(),
        })
    }

    fn check(&self, prompt: &[u32], context: usize) -> Result<(), TrainError> {
        let sound = |temperature: f64| temperature.is_finite() && temperature >= 0.0;
        let refused = [
            (
                prompt.is_empty() || context == 0,
                "a model needs at least one token to continue from",
            ),
            (
                !sound(self.temperature),
                "the temperature must be a number from 0 on",
            ),
            (
                self.top_k == Some(0),
                "top-k must leave at least one token to draw",
            ),
            (
                self.top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)),
                "top-p must be a number above 0 and up to 1",
            ),
        ];
        match refused.into_iter().find(|(refused, _)| *refused) {
            Some((_, message)) => Err(TrainError::Config(message.to_string())),
            None => Ok(()),
        }
    }

    /// The token that stands where the random number falls, with each token as wide as it is likely.
    fn choose(&self, scores: &[f64], index: usize) -> usize {
        let best = (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        let best = best.unwrap_or_default();
        if self.temperature == 0.0 {
            return best;
        }
        let width = |score: f64| ((score - scores[best]) / self.temperature).exp();
        let mut widths = scores
            .iter()
            .map(|&score| width(score))
            .collect::<Vec<f64>>();
        if self.top_k.is_some() || self.top_p.is_some() {
            self.leave_out_unlikely(&mut widths);
        }
        let total = widths.iter().sum::<f64>();
        let mut left = self.uniform(index) * total;
        for (token, width) in widths.iter().enumerate() {
            left -= width;
            if left < 0.0 {
                return token;
            }
        }
        best // rounding has left a crumb
    }

    /// Sets the widths of tokens to zero that are beyond `top_k` and `top_p`.
    fn leave_out_unlikely(&self, widths: &mut [f64]) {
        let mut order = (0..widths.len()).collect::<Vec<_>>();
        order.sort_by(|&a, &b| widths[b].total_cmp(&widths[a])); // stable: of equal ones the first stay
        let kept = self.top_k.unwrap_or(usize::MAX).min(order.len());
        let total = order[..kept]
            .iter()
            .map(|&token| widths[token])
            .sum::<f64>();
        let enough = self.top_p.unwrap_or(1.0) * total;
        let mut sum = 0.0;
        for (place, token) in order.into_iter().enumerate() {
            if place >= kept || (place > 0 && sum >= enough) {
                widths[token] = 0.0;
            } else {
                sum += widths[token];
            }
        }
    }

    /// A number from 0 to below 1, of the 53 bits that an `f64` holds.
    fn uniform(&self, index: usize) -> f64 {
        let bits = mix(mix(self.seed) ^ index as u64) >> 11;
        bits as f64 / (1_u64 << 53) as f64
    }
}

/// Tokens as they are drawn: see [`GenerationConfig::stream`]. It ends after the last one, or an error.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::TokenStream;
///
/// fn collect<S: FnMut(Tensor<2, Int>, usize) -> Tensor<3>>(stream: TokenStream<S>) -> Vec<u32> {
///     stream.map_while(Result::ok).collect()
/// }
/// ```
pub struct TokenStream<S> {
    generation: GenerationConfig,
    /// The prompt and what has been drawn.
    text: Vec<u32>,
    /// How many tokens of the text the model has been shown.
    shown: usize,
    drawn: usize,
    /// How many are drawn before it ends.
    end: usize,
    context: usize,
    score: S,
    device: Device,
}

impl<S: FnMut(Tensor<2, Int>, usize) -> Tensor<3>> Iterator for TokenStream<S> {
    type Item = Result<u32, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.drawn >= self.end {
            return None;
        }
        let token = self.next_token();
        if token.is_err() {
            self.end = self.drawn;
        }
        Some(token)
    }
}

impl<S: FnMut(Tensor<2, Int>, usize) -> Tensor<3>> TokenStream<S> {
    /// Adds tokens to the text, behind which as many more are drawn as at first. What the model has been shown it is not
    /// shown again.
    ///
    /// ```
    /// # mod everburn { pub use everburn_train as train; }
    /// use burn::prelude::*;
    /// use burn::tensor::Int;
    /// use everburn::train::{GenerationConfig, whole_text};
    ///
    /// let counts = |tokens: Tensor<2, Int>| (tokens + 1).one_hot::<3>(10).float();
    /// let greedy = GenerationConfig { tokens: 2, temperature: 0.0, ..GenerationConfig::default() };
    /// let mut stream = greedy.stream(&[1], 8, whole_text(counts), &Device::flex()).unwrap();
    /// assert_eq!(stream.by_ref().map(Result::unwrap).collect::<Vec<_>>(), [2, 3]);
    /// stream.extend(&[6, 5]);
    /// assert_eq!(stream.by_ref().map(Result::unwrap).collect::<Vec<_>>(), [6, 7]);
    /// assert_eq!(stream.text(), [1, 2, 3, 6, 5, 6, 7]);
    /// ```
    pub fn extend(&mut self, tokens: &[u32]) {
        self.text.extend(tokens);
        self.end = self.drawn + self.generation.tokens;
    }

    /// The prompt, and all that has been drawn and added.
    pub fn text(&self) -> &[u32] {
        &self.text
    }

    fn next_token(&mut self) -> Result<u32, TrainError> {
        // A text that has outgrown the context begins anew with each token.
        let first = self.text.len().saturating_sub(self.context);
        let shown = if first > 0 { 0 } else { self.shown };
        let new = &self.text[first.max(shown)..];
        let scores = scores_behind(&mut self.score, &[new], shown, &self.device)?;
        self.shown = self.text.len();
        let token = self.generation.choose(&scores, self.drawn) as u32; // a vocabulary has fewer than 2^32
        self.drawn += 1;
        self.text.push(token);
        Ok(token)
    }
}

/// How many tokens a model is shown at a time: it scores what follows each, and of long prompts these scores would fill the
/// memory.
const SHOWN_AT_ONCE: usize = 4096;

/// The scores of the token behind each of some texts of the same length, one text after the other. The model has been shown
/// `start` tokens of each before these.
fn scores_behind(
    score: &mut impl FnMut(Tensor<2, Int>, usize) -> Tensor<3>,
    texts: &[&[u32]],
    start: usize,
    device: &Device,
) -> Result<Vec<f64>, TrainError> {
    let (rows, length) = (texts.len(), texts[0].len());
    let piece = (SHOWN_AT_ONCE / rows).max(1);
    let mut logits = None;
    for from in (0..length).step_by(piece) {
        let part = from..length.min(from + piece);
        let tokens = texts.iter().flat_map(|text| &text[part.clone()]);
        let tokens = tokens.map(|&token| i64::from(token)).collect::<Vec<_>>();
        let tokens = TensorData::new(tokens, [rows, part.len()]);
        logits = Some(score(Tensor::from_data(tokens, device), start + from));
    }
    let logits = logits.expect("each text has a token that the model has not been shown");
    let [_, length, vocabulary] = logits.dims();
    let last = logits.slice([0..rows, length - 1..length, 0..vocabulary]);
    let last = last
        .try_into_data()
        .map_err(|error| TrainError::Device(error.to_string()))?;
    let scores = last.iter::<f64>().collect::<Vec<_>>();
    if scores.iter().any(|score| score.is_nan()) {
        let message = "the model's scores are NaN or infinite: it has diverged";
        return Err(TrainError::Device(message.to_string()));
    }
    Ok(scores)
}

#[cfg(test)]
mod tests;
