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
        let score = |tokens| (self.language.scores)(model, tokens);
        let drawn = generation.draw(prompt, self.language.context, score, &self.device)?;
        Ok((self.language.decode)(&drawn))
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
                };
                let written = self.write(model, &prompt, generation)?;
                let indented = written.trim_matches('\n').replace('\n', "\n    ");
                Ok(Some(format!("sample after step {step}:\n    {indented}")))
            },
        ))
    }
}
