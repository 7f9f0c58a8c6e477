//! Several texts at once.
//!
//! All texts grow in step, from the length of the shortest prompt on: in each step the model is shown the next token of each
//! text, which is that of its prompt as long as there is one, and else the one that was drawn. So all texts have the same
//! length, there is no padding, and no text sees another: each text is that of its prompt alone. It costs as many steps as the longest prompt is longer than the shortest.

use burn::prelude::*;
use burn::tensor::Int;

use super::{GenerationConfig, scores_behind};
use crate::error::TrainError;

impl GenerationConfig {
    /// As [`draw`](Self::draw), for several prompts of any lengths: what follows each of them. `goes_on` is asked after
    /// each token whether that text continues, with the number of the prompt and the tokens drawn after it.
    ///
    /// # Shapes
    /// - what `score` takes: tokens `[B, T]`, a row a prompt
    /// - what `score` yields: logits `[B, any, V]`, of which the last of each row counts
    ///
    /// ```
    /// # mod everburn { pub use everburn_train as train; }
    /// use burn::prelude::*;
    /// use burn::tensor::Int;
    /// use everburn::train::{GenerationConfig, whole_text};
    ///
    /// let counts = |tokens: Tensor<2, Int>| (tokens + 1).one_hot::<3>(10).float();
    /// let greedy = GenerationConfig { tokens: 3, temperature: 0.0, ..GenerationConfig::default() };
    /// let prompts = [vec![1], vec![7, 3, 4]];
    /// let up_to_six = |_, drawn: &[u32]| drawn.last() != Some(&6);
    /// let drawn = greedy.draw_batch(&prompts, 8, whole_text(counts), &Device::flex(), up_to_six);
    /// assert_eq!(drawn.unwrap(), [vec![2, 3, 4], vec![5, 6]]);
    /// ```
    ///
    /// # Errors
    /// As [`draw`](Self::draw), of any of the prompts.
    pub fn draw_batch(
        &self,
        prompts: &[Vec<u32>],
        context: usize,
        mut score: impl FnMut(Tensor<2, Int>, usize) -> Tensor<3>,
        device: &Device,
        mut goes_on: impl FnMut(usize, &[u32]) -> bool,
    ) -> Result<Vec<Vec<u32>>, TrainError> {
        for prompt in prompts {
            self.check(prompt, context)?;
        }
        let mut texts = prompts.to_vec();
        let mut drawn = vec![Vec::new(); prompts.len()];
        let mut ended = vec![self.tokens == 0; prompts.len()];
        let mut length = prompts.iter().map(Vec::len).min().unwrap_or_default();
        let mut shown = 0;
        while ended.contains(&false) {
            // Texts that have outgrown the context begin anew with each token.
            let first = length.saturating_sub(context);
            let start = if first > 0 { 0 } else { shown };
            let new = first.max(start)..length;
            let rows = texts.iter().map(|text| &text[new.clone()]);
            let rows = rows.collect::<Vec<_>>();
            let scores = scores_behind(&mut score, &rows, start, device)?;
            shown = length;
            let vocabulary = scores.len() / texts.len();
            for (row, text) in texts.iter_mut().enumerate() {
                if text.len() > length {
                    continue; // its prompt goes on
                }
                if ended[row] {
                    text.push(0); // never read
                    continue;
                }
                let own = &scores[row * vocabulary..][..vocabulary];
                let token = self.choose(own, drawn[row].len()) as u32; // a vocabulary has fewer than 2^32
                text.push(token);
                drawn[row].push(token);
                ended[row] = drawn[row].len() >= self.tokens || !goes_on(row, &drawn[row]);
            }
            length += 1;
        }
        Ok(drawn)
    }
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::super::whole_text;
    use super::*;

    #[test]
    fn texts_are_those_of_each_prompt_alone_with_any_temperature_and_beyond_the_context() {
        // What follows depends on the whole text that the model sees, and on nothing else.
        let score = || {
            whole_text(|tokens: Tensor<2, Int>| {
                let [rows, length] = tokens.dims();
                let sums = tokens.sum_dim(1).expand([rows, length]);
                let near = (sums.clone() % 17).one_hot::<3>(17).float() * 2.0;
                near + (sums * 5 % 17).one_hot::<3>(17).float()
            })
        };
        let prompts = [vec![3], vec![1, 2, 3, 4, 5], vec![16, 16], vec![9; 7]];
        for temperature in [0.0, 0.7] {
            let generation = GenerationConfig {
                tokens: 6,
                temperature,
                ..GenerationConfig::default()
            };
            for context in [4, 100] {
                let device = Device::flex();
                let alone = prompts.each_ref().map(|prompt| {
                    let drawn = generation.draw(prompt, context, score(), &device);
                    drawn.unwrap()
                });
                let go = |_: usize, _: &[u32]| true;
                let together = generation.draw_batch(&prompts, context, score(), &device, go);
                assert_eq!(together.unwrap(), alone, "{temperature} {context}");
            }
        }
        let none =
            GenerationConfig::default().draw_batch(&[], 4, score(), &Device::flex(), |_, _| true);
        assert!(none.unwrap().is_empty());
        let prompts = [vec![1], vec![]];
        let empty = GenerationConfig::default().draw_batch(
            &prompts,
            4,
            score(),
            &Device::flex(),
            |_, _| true,
        );
        empty
            .unwrap_err()
            .to_string()
            .assert_contains(["at least one token"]);
    }
}
