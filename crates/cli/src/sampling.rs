//! Sampling from a language model.

use burn::prelude::*;
use everburn_train::{AnyModel, ConfiguredTask, Generation, Language, Samples, TrainError};

use crate::error::CliError;

/// The number of tokens of a sample during training: a few lines.
const SAMPLE_TOKENS: usize = 160;

/// The sampling temperature of these samples.
const SAMPLE_TEMPERATURE: f64 = 0.8;

/// Generates text with a language model.
pub(crate) struct Writer {
    language: Language<AnyModel>,
    device: Device,
}

impl Writer {
    /// For the task's model on `device`, if it is a language model.
    pub(crate) fn of(task: &dyn ConfiguredTask, device: Device) -> Result<Option<Self>, CliError> {
        let language = task.language()?;
        Ok(language.map(|language| Self { language, device }))
    }

    /// What follows `prompt`.
    pub(crate) fn write(
        &self,
        model: &AnyModel,
        prompt: &[u32],
        generation: Generation,
    ) -> Result<String, TrainError> {
        let score = (self.language.scorer)(model);
        let drawn = generation.draw(prompt, self.language.context, score, &self.device)?;
        Ok((self.language.decode)(&drawn))
    }

    /// What follows `prompt`, shown piece by piece, up to the first of the texts `stop`; the number of its tokens.
    pub(crate) fn stream(
        &self,
        model: &AnyModel,
        prompt: &[u32],
        generation: Generation,
        stop: &[String],
        mut show: impl FnMut(&str),
    ) -> Result<usize, TrainError> {
        let score = (self.language.scorer)(model);
        let stream = generation.stream(prompt, self.language.context, score, &self.device)?;
        let (mut drawn, mut shown) = (Vec::new(), 0);
        for token in stream {
            drawn.push(token?);
            let text = (self.language.decode)(&drawn);
            let end = stop
                .iter()
                .filter_map(|stop| text.find(stop.as_str()))
                .min();
            let end = end.unwrap_or_else(|| certain(&text, stop));
            if let Some(new) = text.get(shown..end) {
                show(new);
                shown = end;
            }
            if end < text.len()
                && stop
                    .iter()
                    .any(|stop| text[end..].starts_with(stop.as_str()))
            {
                return Ok(drawn.len());
            }
        }
        let text = (self.language.decode)(&drawn);
        show(text.get(shown..).unwrap_or_default());
        Ok(drawn.len())
    }

    /// The tokens of a prompt. A new line alone, the usual one, stands for the beginning of a text: a
    /// model that knows no new line begins with its first token.
    pub(crate) fn prompt(&self, prompt: &str) -> Result<Vec<u32>, CliError> {
        match (self.language.encode)(prompt) {
            Err(_) if prompt == "\n" => Ok(vec![0]),
            tokens => Ok(tokens?),
        }
    }

    /// Samples to be shown while a model trains.
    pub(crate) fn samples(self, seed: u64) -> Result<Samples<AnyModel>, CliError> {
        let prompt = self.prompt("\n")?;
        Ok(Samples::new(
            self.language.sample_every,
            move |model, step| {
                let generation = Generation {
                    tokens: SAMPLE_TOKENS,
                    temperature: SAMPLE_TEMPERATURE,
                    seed: seed ^ step as u64,
                    ..Generation::default()
                };
                let written = self.write(model, &prompt, generation)?;
                let indented = written.trim_matches('\n').replace('\n', "\n    ");
                Ok(Some(format!("sample after step {step}:\n    {indented}")))
            },
        ))
    }
}

/// How much of a text later tokens leave as it is: not the beginning of a text to stop at, and not the signs that stand
/// for half a character.
fn certain(text: &str, stop: &[String]) -> usize {
    let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
    let ends_with = |stop: &String| {
        let starts = (1..stop.len())
            .rev()
            .filter(|&end| stop.is_char_boundary(end));
        let begun = starts
            .map(|end| &stop[..end])
            .find(|start| whole.ends_with(*start));
        begun.map_or(0, str::len)
    };
    whole.len() - stop.iter().map(ends_with).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_become_a_text_to_stop_at_waits() {
        let stop = ["END.".to_string(), "\n\n".to_string()];
        assert_eq!(certain("the", &stop), 3);
        assert_eq!(certain("the EN", &stop), 4);
        assert_eq!(certain("line\n", &stop), 4);
        assert_eq!(certain("half \u{fffd}", &stop), 5);
        assert_eq!(certain("the", &[]), 3);
    }
}
