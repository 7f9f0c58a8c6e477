//! `everburn tokenize`: files of tokens from text of any size, and tokenizers.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use everburn_datasets::{
    DatasetError, Documents, EndOfDocument, TokenizeRequest, Tokenized, TokenizerKind,
    TokenizerRequest, tokenize, train_tokenizer,
};
use everburn_launch::Children;
use everburn_record::plain::word;
use everburn_record::{file, invocation, units};
use everburn_train::AnyTask;

use super::{ToolError, failed};
use crate::tasks;

/// How often a terminal is told how far the text has been read.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Tokenize text of any size into files that `train` reads without loading them, or train a tokenizer.
///
/// Writes train_000000.bin, val_000000.bin and so on into a folder, with the tokenizer beside them: `train MODEL --data
/// FOLDER` needs no more. Memory is bounded, whatever the size of the input.
///
/// A token of the tokenizer, such as <|endoftext|>, is after each document, as in nanoGPT and Megatron-LM.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tokenize --train --vocabulary 8192 corpus/ --output tokenizer.json\n  \
    tokenize corpus/ --tokenizer tokenizer.json --output tokens\n  \
    tokenize web.jsonl.gz --jsonl text --tokenizer gpt2/ --output tokens --validation 0.001\n  \
    tokenize stories.txt --document-separator '<|endoftext|>' --tokenizer gpt2/ --output tokens")]
pub(crate) struct TokenizeArguments {
    /// UTF-8 text files, or folders of these. Files that end in .gz are unpacked.
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,

    /// The folder to make; with --train, the file.
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,

    /// The tokenizer: byte, or a file: a tokenizer.json, or a folder with GPT-2's vocab.json and merges.txt.
    #[arg(
        long,
        value_name = "byte|FILE",
        required_unless_present = "train",
        conflicts_with = "train"
    )]
    tokenizer: Option<TokenizerKind>,

    /// The text between two documents; \n is a new line [default: each file is a document].
    #[arg(long, value_name = "TEXT")]
    document_separator: Option<String>,

    /// The input has one JSON object per line; this field is the document.
    #[arg(long, value_name = "FIELD", conflicts_with = "document_separator")]
    jsonl: Option<String>,

    /// The token after each document, or none [default: the tokenizer's <|endoftext|>, <|end_of_text|>, </s>, <eos> or
    /// <|eos|>].
    #[arg(long, value_name = "TOKEN|none", conflicts_with = "train")]
    end_of_document: Option<EndOfDocument>,

    /// The fraction of the tokens to hold out in val_*.bin, in whole documents from all over the text. Without it,
    /// `train` tests on the last tenth.
    #[arg(
        long,
        value_name = "FRACTION",
        default_value_t = 0.0,
        conflicts_with = "train"
    )]
    validation: f64,

    /// The maximum number of tokens per file.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000_000,
        conflicts_with = "train"
    )]
    shard_tokens: u64,

    /// Replace an existing folder of tokens or tokenizer.
    #[arg(long)]
    force: bool,

    /// Train a tokenizer like GPT-2's on the input (at most 1 GiB of it), and write it as a tokenizer.json.
    #[arg(long, requires = "vocabulary")]
    train: bool,

    /// With --train, the number of tokens, from 257.
    #[arg(long, value_name = "N", requires = "train")]
    vocabulary: Option<usize>,
}

impl TokenizeArguments {
    fn documents(&self) -> Result<Documents, ToolError> {
        match (&self.jsonl, &self.document_separator) {
            (Some(field), _) => Ok(Documents::JsonLines(field.clone())),
            (None, Some(text)) if text.is_empty() => Err(ToolError::Usage(
                "--document-separator is empty; leave it away where each file is a document"
                    .to_owned(),
            )),
            (None, Some(text)) => Ok(Documents::Separated(unescaped(text))),
            (None, None) => Ok(Documents::Files),
        }
    }
}

/// The text with `\n`, `\r`, `\t` and `\\` as what they stand for; other backslashes stay.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let meant = match (character, characters.peek()) {
            ('\\', Some('n')) => Some('\n'),
            ('\\', Some('r')) => Some('\r'),
            ('\\', Some('t')) => Some('\t'),
            ('\\', Some('\\')) => Some('\\'),
            _ => None,
        };
        if meant.is_some() {
            characters.next();
        }
        plain.push(meant.unwrap_or(character));
    }
    plain
}

/// Writes tokens or a tokenizer, and says what came of it.
pub(crate) fn run(arguments: &TokenizeArguments) -> Result<ExitCode, ToolError> {
    match (arguments.train, arguments.vocabulary) {
        (true, Some(vocabulary)) => write_tokenizer(arguments, vocabulary),
        // Clap asks for no flag that another one excludes.
        (false, Some(_)) => Err(ToolError::Usage("--vocabulary is for --train".to_owned())),
        (_, None) => write_tokens(arguments),
    }
}

fn write_tokenizer(arguments: &TokenizeArguments, asked: usize) -> Result<ExitCode, ToolError> {
    let path = match arguments.output.is_dir() {
        true => arguments.output.join("tokenizer.json"),
        false => arguments.output.clone(),
    };
    if path.exists() && !arguments.force {
        return Err(ToolError::Usage(format!(
            "{} is there already; --force replaces it",
            path.display()
        )));
    }
    let request = TokenizerRequest {
        inputs: arguments.inputs.clone(),
        documents: arguments.documents()?,
        vocabulary: asked,
    };
    let (json, vocabulary) = train_tokenizer(&request).map_err(told)?;
    file::write(&path, json.as_bytes())
        .map_err(|error| failed(format!("cannot write {}: {error}", path.display())))?;
    let fewer = match vocabulary < asked {
        true => ": the text has no more pairs that occur twice",
        false => "",
    };
    say!(
        "{} has {} tokens{fewer}",
        path.display(),
        units::count(vocabulary as u64)
    );
    Ok(ExitCode::SUCCESS)
}

fn write_tokens(arguments: &TokenizeArguments) -> Result<ExitCode, ToolError> {
    let request = TokenizeRequest {
        inputs: arguments.inputs.clone(),
        documents: arguments.documents()?,
        tokenizer: arguments.tokenizer.clone().unwrap_or_default(),
        end_of_document: arguments.end_of_document.clone().unwrap_or_default(),
        output: arguments.output.clone(),
        replace: arguments.force,
        shard_tokens: arguments.shard_tokens,
        validation: arguments.validation,
    };
    let children = Children::listen()?;
    let begun = Instant::now();
    let mut told_at = begun;
    let is_watched = std::io::stderr().is_terminal();
    let tell = &mut |bytes: u64| {
        if is_watched && told_at.elapsed() >= TELL_EVERY {
            told_at = Instant::now();
            let rate = bytes as f64 / begun.elapsed().as_secs_f64();
            let (read, rate) = (units::bytes(bytes), units::bytes(rate as u64));
            say_error!("{read} of text read, {rate} per second");
        }
        match children.check_interrupted() {
            Err(_) => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
        }
    };
    let done = tokenize(&request, tell);
    if done.is_err() {
        children.check_interrupted()?;
    }
    say!("{}", summary(&done.map_err(told)?, arguments));
    Ok(ExitCode::SUCCESS)
}

/// What is told of the tokens that were written.
fn summary(done: &Tokenized, arguments: &TokenizeArguments) -> String {
    let Tokenized {
        tokens,
        documents,
        files,
        vocabulary,
        ..
    } = done;
    let of = |part: usize| {
        let plural = |count: u64, noun: &str| match count {
            1 => format!("1 {noun}"),
            count => format!("{} {noun}s", units::count(count)),
        };
        format!(
            "{} in {} and {}",
            plural(tokens[part], "token"),
            plural(documents[part], "document"),
            plural(files[part] as u64, "file"),
        )
    };
    let mut lines = vec![format!("to train on: {}", of(0))];
    if files[1] > 0 {
        lines.push(format!("held out: {}", of(1)));
    }
    let end = match &done.end_of_document {
        Some((name, number)) => format!("{name} ({number}) after each document"),
        None => "no token after a document".to_owned(),
    };
    lines.push(format!(
        "{:.2} bytes per token, a vocabulary of {}, {end}",
        done.bytes_per_token(),
        units::count(*vocabulary as u64),
    ));
    lines.push(format!(
        "to train on it: {} train {} --data {}",
        invocation::name(),
        tasks::find("gpt-nano").map_or("MODEL", AnyTask::name),
        word(&arguments.output)
    ));
    lines.join("\n")
}

/// The failure of a text, a tokenizer or a disk.
fn told(error: DatasetError) -> ToolError {
    match error {
        DatasetError::Write { .. } => failed(error),
        error => ToolError::Usage(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        tokenize: TokenizeArguments,
    }

    fn parsed(line: &str) -> Result<TokenizeArguments, String> {
        let words = std::iter::once("tokenize").chain(line.split(' '));
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(line.tokenize)
    }

    #[test]
    fn separators_are_written_as_in_a_program() {
        for (written, meant) in [
            ("\\n\\n", "\n\n"),
            ("<|endoftext|>\\r\\n", "<|endoftext|>\r\n"),
            ("a\\\\nb", "a\\nb"),
            ("\\x", "\\x"),
            ("\\", "\\"),
        ] {
            assert_eq!(unescaped(written), meant);
        }
    }

    #[test]
    fn what_belongs_together_is_asked_for() {
        let good = parsed("a.txt b --tokenizer byte --output out").unwrap();
        assert_eq!(good.inputs.len(), 2);
        assert_eq!((good.shard_tokens, good.validation), (100_000_000, 0.0));
        assert_eq!(good.documents().unwrap(), Documents::Files);
        parsed("a --train --vocabulary 300 --output out").unwrap();
        for (line, expected) in [
            ("a --output out", "--tokenizer"),
            ("--tokenizer byte --output out", "INPUT"),
            ("a --tokenizer byte", "--output"),
            ("a --train --output out", "--vocabulary"),
            ("a --vocabulary 300 --output out", "--train"),
            (
                "a --train --vocabulary 300 --tokenizer byte --output out",
                "cannot be used with",
            ),
            (
                "a --train --vocabulary 300 --validation 0.1 --output out",
                "cannot be used with",
            ),
            (
                "a --tokenizer byte --output out --jsonl t --document-separator x",
                "cannot be used with",
            ),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
        let other = parsed("a --vocabulary 300 --tokenizer byte --output out").unwrap();
        let error = run(&other).unwrap_err().to_string();
        assert!(error.contains("--vocabulary is for --train"), "{error}");
        let line = "a --tokenizer byte --output out --document-separator=";
        let error = parsed(line).unwrap().documents().unwrap_err();
        assert!(error.to_string().contains("is empty"), "{error}");
    }

    #[test]
    fn a_person_is_told_what_there_is_and_what_to_do_with_it() {
        let arguments = parsed("a --tokenizer byte --output out").unwrap();
        let done = Tokenized {
            bytes: 4_000,
            tokens: [1_500, 100],
            documents: [2, 1],
            files: [1, 1],
            vocabulary: 50_257,
            end_of_document: Some(("<|endoftext|>".to_owned(), 50_256)),
        };
        let text = summary(&done, &arguments);
        for line in [
            "to train on: 1,500 tokens in 2 documents and 1 file",
            "held out: 100 tokens in 1 document and 1 file",
            "2.50 bytes per token, a vocabulary of 50,257, <|endoftext|> (50256) after each document",
            "train gpt-nano --data out",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
