//! Text from a model: one token after the other.

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
/// use burn::prelude::*;
/// use burn::tensor::Int;
/// use everburn_train::Generation;
///
/// // A model that scores the token after the last one highest.
/// let counts = |tokens: Tensor<2, Int>| (tokens + 1).one_hot::<3>(10).float() * 5.0;
/// let greedy = Generation { tokens: 4, temperature: 0.0, seed: 0 };
/// let drawn = greedy.draw(&[3], 2, counts, &Device::flex()).unwrap();
/// assert_eq!(drawn, [4, 5, 6, 7]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Generation {
    /// How many tokens are drawn.
    pub tokens: usize,
    /// What scores are divided by: below 1 the likely tokens become more likely; at 0 the likeliest is
    /// always taken.
    pub temperature: f64,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Generation {
    /// Draws tokens that follow `prompt`. The model is shown at most the last `context` tokens.
    ///
    /// # Shapes
    /// - what `score` takes: tokens `[1, T]`
    /// - what `score` yields: logits `[1, T, V]`
    ///
    /// # Errors
    /// [`TrainError::Config`] if the prompt is empty, the context is 0 or the temperature is no
    /// number from 0 on; [`TrainError::Device`] if scores cannot be read or are not numbers.
    pub fn draw(
        &self,
        prompt: &[u32],
        context: usize,
        score: impl Fn(Tensor<2, Int>) -> Tensor<3>,
        device: &Device,
    ) -> Result<Vec<u32>, TrainError> {
        if prompt.is_empty() || context == 0 {
            let message = "a model needs at least one token to go on from";
            return Err(TrainError::Config(message.to_string()));
        }
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            let message = "the temperature must be a number from 0 on";
            return Err(TrainError::Config(message.to_string()));
        }
        let mut text = prompt.to_vec();
        for index in 0..self.tokens {
            let seen = &text[text.len().saturating_sub(context)..];
            let tokens = seen.iter().map(|&token| i64::from(token));
            let tokens = TensorData::new(tokens.collect::<Vec<_>>(), [1, seen.len()]);
            let logits = score(Tensor::from_data(tokens, device));
            let [_, length, vocabulary] = logits.dims();
            let last = logits.slice([0..1, length - 1..length, 0..vocabulary]);
            let last = last
                .try_into_data()
                .map_err(|error| TrainError::Device(error.to_string()))?;
            let scores = last.iter::<f64>().collect::<Vec<_>>();
            if scores.iter().any(|score| score.is_nan()) {
                let message = "the model's scores are not numbers: it has diverged";
                return Err(TrainError::Device(message.to_string()));
            }
            text.push(self.choose(&scores, index) as u32); // a vocabulary has fewer than 2^32
        }
        Ok(text.split_off(prompt.len()))
    }

    /// The token that stands where the random number falls, with each token as wide as it is likely.
    fn choose(&self, scores: &[f64], index: usize) -> usize {
        let best = (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        let best = best.unwrap_or_default();
        if self.temperature == 0.0 {
            return best;
        }
        let width = |score: f64| ((score - scores[best]) / self.temperature).exp();
        let total = scores.iter().map(|&score| width(score)).sum::<f64>();
        let mut left = self.uniform(index) * total;
        for (token, &score) in scores.iter().enumerate() {
            left -= width(score);
            if left < 0.0 {
                return token;
            }
        }
        best // rounding has left a crumb
    }

    /// A number from 0 to below 1, of the 53 bits that an `f64` holds.
    fn uniform(&self, index: usize) -> f64 {
        let bits = mix(mix(self.seed) ^ index as u64) >> 11;
        bits as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely_and_the_seed_repeats_them() {
        let shares = [0.1_f64, 0.6, 0.3];
        let scores = shares.map(f64::ln);
        for (temperature, expected) in [(1.0, shares), (0.5, [1.0 / 46.0, 36.0 / 46.0, 9.0 / 46.0])]
        {
            let generation = |seed| Generation {
                tokens: 0,
                temperature,
                seed,
            };
            let draw = |seed| {
                let draws = (0..20_000).map(|index| generation(seed).choose(&scores, index));
                draws.collect::<Vec<_>>()
            };
            let drawn = draw(1);
            for (token, share) in expected.into_iter().enumerate() {
                let count = drawn.iter().filter(|&&other| other == token).count();
                // Five standard deviations of 20,000 draws are below 0.02.
                assert!((count as f64 / 20_000.0 - share).abs() < 0.02, "{token}");
            }
            assert_eq!(drawn, draw(1));
            assert_ne!(drawn, draw(2));
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let score = |tokens: Tensor<2, Int>| tokens.one_hot::<3>(4).float();
        let draw = |prompt: &[u32], temperature| {
            let generation = Generation {
                tokens: 1,
                temperature,
                seed: 0,
            };
            let drawn = generation.draw(prompt, 8, score, &Device::flex());
            drawn.map_err(|error| error.to_string())
        };
        assert!(draw(&[], 1.0).unwrap_err().contains("at least one token"));
        assert!(draw(&[0], -1.0).unwrap_err().contains("temperature"));
        assert!(draw(&[0], f64::NAN).unwrap_err().contains("temperature"));
        assert_eq!(draw(&[2], 0.0), Ok(vec![2]));
    }
}
