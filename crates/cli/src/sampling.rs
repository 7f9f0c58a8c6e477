//! Sampling from a language model.

use burn::prelude::*;
use everburn_train::{
    AnyModel, ConfiguredTask, Conversation, GenerationConfig, Language, Samples, Scorer,
    TokenStream, TrainError,
};

use crate::arguments::{WritingFlags, for_terminal};
use crate::config::RunConfig;
use crate::error::CliError;
use crate::trained::load_parameters;
use crate::{devices, missing_run};

/// The number of tokens of a sample during training: a few lines.
const SAMPLE_TOKENS: usize = 160;

/// The sampling temperature of these samples.
const SAMPLE_TEMPERATURE: f64 = 0.8;

/// What writes for `command`, and the model of the run.
pub(crate) fn open(flags: &WritingFlags, command: &str) -> Result<(Writer, AnyModel), CliError> {
    let run = missing_run::open(&flags.run_dir)?;
    let config = RunConfig::of_run(&run)?;
    let names = [flags.device.clone()];
    devices::check(&names, 1)?;
    let device = devices::of_rank(&names, 0)?;
    let task = config.task()?;
    let Some(writer) = Writer::of(&*task, device.clone())? else {
        return Err(CliError::usage_with_help(
            format!("{} does not write text", config.model),
            format!(
                "{command} is for text models, such as gpt-nano; {} with this run",
                match task.predicts() {
                    true =>
                        "use `predict` for the predictions of single samples, or `eval` for the metrics of the test,",
                    false => "use `eval` for the metrics of the test",
                }
            ),
        ));
    };
    let checkpoint = flags.checkpoint.as_deref();
    let model = load_parameters(task.model(&device)?, &run, checkpoint, flags.ema)?;
    Ok((writer, model))
}

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
        generation: GenerationConfig,
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
        generation: GenerationConfig,
        stop: &[String],
        show: impl FnMut(&str),
    ) -> Result<usize, TrainError> {
        let score = (self.language.scorer)(model);
        let mut stream = self.begin(prompt, generation, score)?;
        self.follow(&mut stream, stop, show)
    }

    /// A text that begins with `prompt`.
    pub(crate) fn begin<'a>(
        &self,
        prompt: &[u32],
        generation: GenerationConfig,
        score: Scorer<'a>,
    ) -> Result<TokenStream<Scorer<'a>>, TrainError> {
        generation.stream(prompt, self.language.context, score, &self.device)
    }

    /// Shows how a text continues, piece by piece, up to the first of the texts `stop`; the number of tokens.
    pub(crate) fn follow(
        &self,
        stream: &mut TokenStream<Scorer<'_>>,
        stop: &[String],
        mut show: impl FnMut(&str),
    ) -> Result<usize, TrainError> {
        let (mut drawn, mut shown) = (Vec::new(), 0);
        for token in stream.by_ref() {
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

    /// What follows each of several prompts, up to the first of the texts `stop`, with the number of its tokens.
    pub(crate) fn write_all(
        &self,
        model: &AnyModel,
        prompts: &[Vec<u32>],
        generation: GenerationConfig,
        stop: &[String],
    ) -> Result<Vec<(String, usize)>, TrainError> {
        let score = (self.language.scorer)(model);
        let end_of = |drawn: &[u32]| {
            let text = (self.language.decode)(drawn);
            let ends = stop.iter().filter_map(|stop| text.find(stop.as_str()));
            (ends.min(), text)
        };
        let goes_on = |_, drawn: &[u32]| stop.is_empty() || end_of(drawn).0.is_none();
        let context = self.language.context;
        let drawn = generation.draw_batch(prompts, context, score, &self.device, goes_on)?;
        let texts = drawn.into_iter().map(|drawn| {
            let (end, mut text) = end_of(&drawn);
            text.truncate(end.unwrap_or(text.len()));
            (text, drawn.len())
        });
        Ok(texts.collect())
    }

    /// How the model answers, if it has learned to.
    pub(crate) fn conversation(&self) -> Option<&Conversation> {
        self.language.conversation.as_ref()
    }

    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, CliError> {
        Ok((self.language.encode)(text)?)
    }

    pub(crate) fn decode(&self, tokens: &[u32]) -> String {
        (self.language.decode)(tokens)
    }

    /// The most tokens that the model reads.
    pub(crate) fn context(&self) -> usize {
        self.language.context
    }

    pub(crate) fn scorer<'a>(&self, model: &'a AnyModel) -> Scorer<'a> {
        (self.language.scorer)(model)
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
                let generation = GenerationConfig {
                    tokens: SAMPLE_TOKENS,
                    temperature: SAMPLE_TEMPERATURE,
                    seed: seed ^ step as u64,
                    ..GenerationConfig::default()
                };
                let written = self.write(model, &prompt, generation)?;
                // The launcher passes it on to a terminal, which this rank does not see.
                let written = for_terminal(&written);
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
