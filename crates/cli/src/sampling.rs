//! What a language model writes.

use everburn::burn::prelude::*;
use everburn::train::{Generation, LanguageModel, Samples, TrainError};
use everburn_datasets::Tokenizer;
use everburn_models::registry::TextModel;

use crate::error::CliError;

/// How many tokens a sample has that is shown while a model trains: a few lines.
const SAMPLE_TOKENS: usize = 160;

/// How daring those samples are.
const SAMPLE_TEMPERATURE: f64 = 0.8;

/// How a model of text is asked to write.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) tokenizer: Tokenizer,
    /// The longest text that the model sees at once.
    pub(crate) context: usize,
    pub(crate) device: Device,
}

impl Writer {
    /// What follows `prompt`.
    pub(crate) fn write<M: TextModel>(
        &self,
        model: &LanguageModel<M>,
        prompt: &[u32],
        generation: Generation,
    ) -> Result<String, TrainError> {
        let score = |tokens| model.forward(tokens);
        let drawn = generation.draw(prompt, self.context, score, &self.device)?;
        Ok(self.tokenizer.decode(&drawn))
    }

    /// The tokens of a prompt. A new line alone, the usual one, stands for the beginning of a text: a
    /// model that knows no new line begins with its first token.
    pub(crate) fn prompt(&self, prompt: &str) -> Result<Vec<u32>, CliError> {
        match self.tokenizer.encode(prompt) {
            Err(_) if prompt == "\n" => Ok(vec![0]),
            tokens => Ok(tokens?),
        }
    }

    /// Samples to be shown while a model trains.
    pub(crate) fn samples<M: TextModel>(
        self,
        every: Option<usize>,
        seed: u64,
    ) -> Result<Samples<LanguageModel<M>>, CliError> {
        let prompt = self.prompt("\n")?;
        Ok(Samples::new(every, move |model, step| {
            let generation = Generation {
                tokens: SAMPLE_TOKENS,
                temperature: SAMPLE_TEMPERATURE,
                seed: seed ^ step as u64,
            };
            let written = self.write(model, &prompt, generation)?;
            let indented = written.trim_matches('\n').replace('\n', "\n    ");
            Ok(Some(format!("sample after step {step}:\n    {indented}")))
        }))
    }
}
