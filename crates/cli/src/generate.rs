//! `everburn generate`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use everburn_record::units::counted;
use serde_json::json;

use crate::arguments::{WritingFlags, show};
use crate::error::CliError;
use crate::read_given;
use crate::sampling::open;

/// The largest file of prompts that is read.
const LARGEST_FILE: u64 = 64 << 20;

#[derive(Debug, Clone, Args)]
pub(crate) struct GenerateArguments {
    #[command(flatten)]
    pub(crate) writing: WritingFlags,

    /// The beginning of the text; may be repeated, for several texts at once [default: a new line].
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Vec<String>,

    /// A file with a prompt in each line that is not empty.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) prompts: Option<PathBuf>,

    /// The number of texts to generate at once.
    #[arg(long, value_name = "TEXTS", default_value_t = 16)]
    pub(crate) batch_size: usize,

    /// Write a line of JSON for each text, with its prompt.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints what the model of a run writes after the prompts.
pub(crate) fn run(arguments: &GenerateArguments) -> Result<ExitCode, CliError> {
    let prompts = match &arguments.prompts {
        Some(file) => lines_of(file)?,
        None if arguments.prompt.is_empty() => vec!["\n".to_string()],
        None => arguments.prompt.clone(),
    };
    if arguments.batch_size == 0 {
        return Err(CliError::usage_with_help(
            "--batch-size 0 writes nothing",
            "use 1 or more",
        ));
    }
    let rate = match &prompts[..] {
        [prompt] if !arguments.json => one(arguments, prompt)?,
        _ => several(arguments, &prompts)?,
    };
    say_error!("{rate}");
    Ok(ExitCode::SUCCESS)
}

/// Shows a text as it is written; how many tokens it had.
fn one(arguments: &GenerateArguments, prompt: &str) -> Result<String, CliError> {
    let (writer, model) = open(&arguments.writing, "generate")?;
    let tokens = writer.prompt(prompt)?;
    // Once nothing is refused any more.
    let mut beginning = Some(prompt.trim_start_matches('\n'));
    let begin = Instant::now();
    let WritingFlags { stop, .. } = &arguments.writing;
    let generation = arguments.writing.generation();
    let drawn = writer.stream(&model, &tokens, generation, stop, &mut |text: &str| {
        show(beginning.take().unwrap_or_default());
        show(text);
    })?;
    show(beginning.unwrap_or_default());
    say!("");
    Ok(rate(drawn, begin))
}

/// Writes several texts at once, those with prompts of about the same length together, and shows them in the order of their
/// prompts.
fn several(arguments: &GenerateArguments, prompts: &[String]) -> Result<String, CliError> {
    let (writer, model) = open(&arguments.writing, "generate")?;
    let tokens = prompts.iter().map(|prompt| writer.prompt(prompt));
    let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    let mut order = (0..prompts.len()).collect::<Vec<_>>();
    order.sort_by_key(|&prompt| tokens[prompt].len());
    let begin = Instant::now();
    let (mut texts, mut drawn) = (vec![String::new(); prompts.len()], 0);
    let WritingFlags { stop, .. } = &arguments.writing;
    for together in order.chunks(arguments.batch_size) {
        let of = together.iter().map(|&prompt| tokens[prompt].clone());
        let of = of.collect::<Vec<_>>();
        let written = writer.write_all(&model, &of, arguments.writing.generation(), stop)?;
        for (&prompt, (text, count)) in together.iter().zip(written) {
            texts[prompt] = text;
            drawn += count;
        }
    }
    let rate = rate(drawn, begin);
    for (index, (prompt, text)) in prompts.iter().zip(&texts).enumerate() {
        if arguments.json {
            say!("{}", json!({ "prompt": prompt, "completion": text }));
            continue;
        }
        if index > 0 {
            say!("");
        }
        show(prompt.trim_start_matches('\n'));
        show(text);
        say!("");
    }
    Ok(rate)
}

/// The last line: how many tokens were drawn since then, and how fast.
pub(crate) fn rate(drawn: usize, begin: Instant) -> String {
    let rate = drawn as f64 / begin.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
    format!("{}, {rate:.0} a second", counted(drawn, "token"))
}

/// The prompts of a file.
fn lines_of(file: &Path) -> Result<Vec<String>, CliError> {
    let refused = |reason: String| {
        CliError::usage_with_help(
            format!("{}: {reason}", file.display()),
            "--prompts takes a text file with a prompt in each line",
        )
    };
    let text = read_given(file, LARGEST_FILE).map_err(|error| refused(error.to_string()))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines = lines.map(str::to_string).collect::<Vec<_>>();
    match lines.is_empty() {
        true => Err(refused("it has no prompt".to_string())),
        false => Ok(lines),
    }
}
