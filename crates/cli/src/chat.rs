//! `everburn chat`: a conversation in the terminal.

use std::io::{BufRead, IsTerminal, Read, stdin};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use everburn_train::{GenerationConfig, Scorer, TokenStream};

use crate::arguments::{WritingFlags, show};
use crate::error::CliError;
use crate::generate::rate;
use crate::sampling::{Writer, open};

/// The longest line that is read, in bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// Forgets the conversation.
const RESET: &str = "/reset";

/// Ends it.
const EXIT: &str = "/exit";

/// Shows these.
const HELP: &str = "/help";

#[derive(Debug, Clone, Args)]
pub(crate) struct ChatArguments {
    #[command(flatten)]
    pub(crate) writing: WritingFlags,
}

/// Answers the lines of standard input, one after the other, until it ends.
pub(crate) fn run(arguments: &ChatArguments) -> Result<ExitCode, CliError> {
    let (writer, model) = open(&arguments.writing, "chat")?;
    let mut chat = Chat {
        writer: &writer,
        generation: arguments.writing.generation(),
        stop: arguments.writing.stop.clone(),
        stream: None,
        unfinished: false,
        has_warned: false,
    };
    let end = writer.conversation().map(|conversation| &conversation.end);
    chat.stop.extend(end.cloned());
    let is_terminal = stdin().is_terminal();
    if is_terminal {
        show_commands();
    }
    let (mut lines, begin, mut drawn) = (stdin().lock(), Instant::now(), 0);
    let mut writing = std::time::Duration::ZERO;
    loop {
        if is_terminal {
            show("> ");
        }
        let Some(line) = next_line(&mut lines)? else {
            break;
        };
        match line.trim() {
            "" => continue,
            RESET => chat.stream = None,
            EXIT => break,
            HELP => show_commands(),
            // A path has more.
            command
                if command.starts_with('/') && command[1..].chars().all(char::is_alphabetic) =>
            {
                say_error!("there is no {command}");
                show_commands();
            }
            question => {
                let asked = Instant::now();
                match chat.answer(question, || writer.scorer(&model)) {
                    Ok(tokens) => drawn += tokens,
                    // Such as a character that is not in the alphabet: the next line may be better.
                    Err(error @ CliError::Usage { .. }) => error.print(),
                    Err(error) => return Err(error),
                }
                writing += asked.elapsed();
                show("\n");
            }
        }
    }
    if is_terminal {
        show("\n");
    }
    say_error!("{}", rate(drawn, begin + (begin.elapsed() - writing)));
    Ok(ExitCode::SUCCESS)
}

fn show_commands() {
    say_error!("{RESET} begins a new conversation, {EXIT} or Ctrl-D ends this one");
}

/// The next line of standard input, without its end.
fn next_line(lines: &mut impl BufRead) -> Result<Option<String>, CliError> {
    let refused = |reason: String| {
        CliError::usage_with_help(
            format!("standard input: {reason}"),
            "chat reads one question per line, as UTF-8",
        )
    };
    let mut line = String::new();
    let read = lines.take(LONGEST_LINE).read_line(&mut line);
    match read.map_err(|error| refused(error.to_string()))? as u64 {
        0 => Ok(None),
        LONGEST_LINE if !line.ends_with('\n') => {
            Err(refused(format!("a line of more than {LONGEST_LINE} bytes")))
        }
        _ => Ok(Some(line)),
    }
}

/// A conversation, with the keys and values of all that was said.
struct Chat<'a> {
    writer: &'a Writer,
    generation: GenerationConfig,
    /// Where an answer ends.
    stop: Vec<String>,
    stream: Option<TokenStream<Scorer<'a>>>,
    /// The newest answer has no end: it was cut off, or stopped by another text.
    unfinished: bool,
    /// The user was warned that the conversation is longer than the context.
    has_warned: bool,
}

impl<'a> Chat<'a> {
    /// Shows the answer to a question; how many tokens it had.
    fn answer(
        &mut self,
        question: &str,
        scorer: impl FnOnce() -> Scorer<'a>,
    ) -> Result<usize, CliError> {
        let conversation = self.writer.conversation();
        if conversation.is_some_and(|conversation| !conversation.remembers) {
            self.stream = None;
        }
        let first = self.stream.is_none();
        let mut asked = Vec::new();
        let text = match conversation {
            None => question.to_string(),
            Some(conversation) => {
                if self.unfinished && !first {
                    asked = self.writer.encode(&conversation.end)?;
                }
                (conversation.turn)(question, first)
            }
        };
        asked.extend(self.writer.encode(&text)?);
        let stream = match &mut self.stream {
            Some(stream) => {
                stream.extend(&asked);
                stream
            }
            none => {
                self.has_warned = false;
                none.insert(self.writer.begin(&asked, self.generation, scorer())?)
            }
        };
        let drawn = self.writer.follow(stream, &self.stop, show)?;
        let answer = &stream.text()[stream.text().len() - drawn..];
        self.unfinished = conversation.is_some_and(|conversation| {
            let answer = self.writer.decode(answer);
            !answer.contains(&conversation.end)
        });
        let context = self.writer.context();
        if stream.text().len() > context && !self.has_warned {
            self.has_warned = true;
            say_error!(
                "the conversation is longer than the model's context of {context} tokens: the model no longer reads \
                 its beginning"
            );
        }
        Ok(drawn)
    }
}
