//! `everburn generate`

use std::process::ExitCode;

use everburn::burn::prelude::*;
use everburn::prelude::*;
use everburn::train::Generation;
use everburn_datasets::{Tokenizer, TokenizerKind};
use everburn_models::gpt::GptConfig;
use everburn_models::registry::{self, ImageModel, Init, ModelVisitor, PixelRange, TextModel};

use crate::arguments::GenerateArguments;
use crate::config::{RunConfig, TextConfig};
use crate::devices;
use crate::error::CliError;
use crate::eval::{Which, load_parameters};
use crate::sampling::Writer;

/// Lets the model of a run write, and prints it after the prompt.
pub(crate) fn run(arguments: &GenerateArguments) -> Result<ExitCode, CliError> {
    let run = RunDirectory::open(&arguments.run_dir)?;
    let config = run.read_config::<RunConfig>()?;
    let names = [arguments.device.clone()];
    devices::check(&names, 1)?;
    let visitor = Generate {
        arguments,
        run: &run,
        config: &config,
        device: devices::of_rank(&names, 0)?,
    };
    let written = registry::visit(&config.model, &config.model_options(), visitor)?;
    let written = written.ok_or(CliError::NoModel)??;
    let prompt = arguments.prompt.trim_start_matches('\n');
    say!("{prompt}{written}");
    Ok(ExitCode::SUCCESS)
}

/// The tokenizer that a run's model was trained with.
fn tokenizer(config: &TextConfig) -> Result<Tokenizer, CliError> {
    match (config.tokenizer, &config.alphabet) {
        (TokenizerKind::Byte, _) => Ok(Tokenizer::of_bytes()),
        (TokenizerKind::Char, Some(alphabet)) => Ok(Tokenizer::of_alphabet(alphabet)?),
        (TokenizerKind::Char, None) => Err(CliError::usage(
            "the run's config.toml does not say which characters its tokenizer knows",
        )),
    }
}

struct Generate<'a> {
    arguments: &'a GenerateArguments,
    run: &'a RunDirectory,
    config: &'a RunConfig,
    device: Device,
}

impl ModelVisitor for Generate<'_> {
    type Output = Result<String, CliError>;

    fn visit_images<M: ImageModel>(self, _pixels: PixelRange, _init: Init<M>) -> Self::Output {
        Err(CliError::usage_with_help(
            format!("{} reads images and writes nothing", self.config.model),
            "generate is for models of text, such as gpt-nano",
        ))
    }

    fn visit_text<M: TextModel>(self, config: GptConfig, init: Init<M>) -> Self::Output {
        let arguments = self.arguments;
        let which = Which {
            checkpoint: arguments.checkpoint.as_deref(),
            ema: arguments.ema,
        };
        let model = load_parameters(init(&self.device), self.run, which)?;
        let writer = Writer {
            tokenizer: tokenizer(&self.config.text)?,
            context: config.context,
            device: self.device,
        };
        let prompt = writer.prompt(&arguments.prompt)?;
        let generation = Generation {
            tokens: arguments.tokens,
            temperature: arguments.temperature,
            seed: arguments.seed,
        };
        Ok(writer.write(&LanguageModel::of_blocks(model), &prompt, generation)?)
    }
}
