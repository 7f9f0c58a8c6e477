//! Instructions: prompts with the answers that a model is to learn.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::source::LARGEST_FILE;
use super::{LoadedText, TextDataset, TextItem, TextRequest, Tokenizer};
use crate::error::wrong_at;
use crate::files::read_at_most;
use crate::{DatasetDescription, DatasetError};

/// How many samples are tokenized at a time: enough for all threads, and little beside the file.
const TOKENIZED_AT_ONCE: usize = 1024;

/// How many bytes the name of a role may have.
const LONGEST_ROLE: usize = 32;

/// The role of the messages that a model learns to write.
const ASSISTANT: &str = "assistant";

/// The names of tokens that end an answer in published tokenizers. The first that a tokenizer has is taken.
const ENDS: [&str; 7] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "</s>",
    "<eos>",
];

/// How a conversation becomes text: ChatML, unless its texts are others.
///
/// A message is `start`, its role, a new line, its content and `end`; between two messages is a new line. A prompt
/// without roles is followed by its completion and `end`.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{ChatTemplate, Tokenizer};
///
/// let template = ChatTemplate::of(&Tokenizer::of_bytes(), true);
/// let asked = "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n";
/// assert_eq!(template.turn("How many?", true), asked);
/// assert_eq!(template.end, "<|im_end|>");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatTemplate {
    /// Whether the model has learned from messages with roles; else from prompts with completions.
    pub messages: bool,
    /// The text before the role of a message.
    pub start: String,
    /// The text behind an answer, and behind each message.
    pub end: String,
}

/// A message of a conversation.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::ChatMessage;
///
/// let message = ChatMessage { role: "user".into(), content: "How many?".into() };
/// assert_ne!(message.role, "assistant");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who has written it: `system`, `user`, `assistant`, ...
    pub role: String,
    /// What was written.
    pub content: String,
}

impl ChatTemplate {
    /// The usual one for a tokenizer: with the token by which its texts end, if it has one.
    pub fn of(tokenizer: &Tokenizer, messages: bool) -> Self {
        let known = ENDS.iter().find(|name| tokenizer.token(name).is_some());
        Self {
            messages,
            start: "<|im_start|>".to_owned(),
            end: (*known.unwrap_or(&ENDS[0])).to_owned(),
        }
    }

    /// The text between the end of the answer before, if this is not the `first` turn, and the answer to `question`.
    pub fn turn(&self, question: &str, first: bool) -> String {
        if !self.messages {
            return question.to_owned();
        }
        let message = |role: &str| ChatMessage {
            role: role.to_owned(),
            content: question.to_owned(),
        };
        let asked = self.message(&message("user"), first);
        format!("{asked}{}", self.head(ASSISTANT, false))
    }

    /// The text before the content of a message.
    fn head(&self, role: &str, first: bool) -> String {
        let line = if first { "" } else { "\n" };
        format!("{line}{}{role}\n", self.start)
    }

    fn message(&self, message: &ChatMessage, first: bool) -> String {
        let head = self.head(&message.role, first);
        format!("{head}{}{}", message.content, self.end)
    }

    /// The text of a sample in pieces, each with whether it is learned. Each piece is tokenized by itself, as it is in
    /// a conversation.
    fn pieces(&self, sample: &Sample) -> Vec<(String, bool)> {
        let messages = match sample {
            Sample::Completion { prompt, completion } => {
                let answer = format!("{completion}{}", self.end);
                return vec![(prompt.clone(), false), (answer, true)];
            }
            Sample::Messages(messages) => messages,
        };
        let (mut pieces, mut before) = (Vec::new(), String::new());
        for (place, (message, is_learned)) in messages.iter().enumerate() {
            if !is_learned {
                before += &self.message(message, place == 0);
                continue;
            }
            before += &self.head(&message.role, place == 0);
            pieces.push((std::mem::take(&mut before), false));
            pieces.push((format!("{}{}", message.content, self.end), true));
        }
        pieces // a question without an answer is left out
    }
}

/// A line of a file of instructions.
enum Sample {
    Completion {
        prompt: String,
        completion: String,
    },
    /// Each with whether it is learned.
    Messages(Vec<(ChatMessage, bool)>),
}

/// Whether a file has instructions, by its name.
pub(super) fn are_at(path: &Path) -> bool {
    let ending = path.extension();
    ending.is_some_and(|ending| ending.eq_ignore_ascii_case("jsonl")) && path.is_file()
}

/// Reads a file of instructions. The last tenth of its lines is the test set.
pub(super) fn load(path: &Path, request: &TextRequest) -> Result<LoadedText, DatasetError> {
    let wrong = |line: usize, problem: String| wrong_at(path, &format!("line {line}"), problem);
    let bytes = read_at_most(path, LARGEST_FILE)?;
    let mut samples = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let sample = parse(line);
        let sample = sample.map_err(|problem| wrong(index + 1, problem))?;
        samples.push((index + 1, sample));
    }
    drop(bytes);
    if samples.len() < 2 && !(request.only_test && samples.len() == 1) {
        let problem = "a training needs two samples at least, of which one is for the test";
        let place = format!("{} samples", samples.len());
        return Err(wrong_at(path, &place, problem));
    }
    let has_roles = |(_, sample): &(usize, Sample)| matches!(sample, Sample::Messages(_));
    let has_roles = samples.iter().any(has_roles);
    let known = request.known_tokenizer()?;
    let template = request.template.clone().unwrap_or_else(|| {
        // One of characters has no names of tokens.
        let tokenizer = known.clone().unwrap_or_else(Tokenizer::of_bytes);
        ChatTemplate::of(&tokenizer, has_roles)
    });
    let tokenizer = match known {
        Some(known) => known,
        None => of_characters(&template, &samples)?,
    };
    let context = request.context;
    let mut items = Vec::with_capacity(samples.len());
    for chunk in samples.chunks(TOKENIZED_AT_ONCE) {
        let pieces = chunk.iter().map(|(_, sample)| template.pieces(sample));
        let pieces = pieces.collect::<Vec<_>>();
        let texts = pieces.iter().flatten().map(|(text, _)| text.as_str());
        let mut tokens = tokenizer
            .encode_all(&texts.collect::<Vec<_>>())?
            .into_iter();
        for ((line, _), pieces) in chunk.iter().zip(&pieces) {
            let item = item(pieces, tokens.by_ref());
            let item = fitted(item, context, request.truncate);
            items.push(item.map_err(|problem| wrong(*line, problem))?);
        }
    }
    let held_out = (items.len() / 10).max(1);
    let at = items.len() - held_out;
    let [train, test] =
        request.limited(request.split(TextDataset::of_items(items, context), at))?;
    let kind = match template.messages {
        true => "conversations",
        false => "completions",
    };
    let description = DatasetDescription {
        name: "instructions".to_owned(),
        origin: path.display().to_string(),
        reason: format!("named; {kind}, with a loss on answers only"),
        train: request.described(&train),
        test: test.len(),
        unit: format!("instructions of up to {context} {}", tokenizer.unit()),
    };
    Ok(LoadedText {
        train,
        test,
        vocabulary: tokenizer.vocabulary(),
        tokenizer: Some(tokenizer),
        kind: request.tokenizer.clone(),
        template: Some(template),
        shards: None,
        description,
    })
}

/// The tokenizer of all characters of the samples.
fn of_characters(
    template: &ChatTemplate,
    samples: &[(usize, Sample)],
) -> Result<Tokenizer, DatasetError> {
    let mut seen = std::collections::BTreeSet::new();
    // A conversation begins with a question, whatever the samples begin with.
    seen.extend(template.turn("", true).chars());
    for (_, sample) in samples {
        for (text, _) in template.pieces(sample) {
            seen.extend(text.chars());
        }
    }
    Tokenizer::of_alphabet(&seen.into_iter().collect::<String>())
}

/// A sample of these pieces, whose tokens are the next ones.
fn item(pieces: &[(String, bool)], tokens: impl Iterator<Item = Vec<u32>>) -> TextItem {
    let (mut all, mut mask) = (Vec::new(), Vec::new());
    for ((_, is_learned), tokens) in pieces.iter().zip(tokens) {
        mask.extend(std::iter::repeat_n(*is_learned, tokens.len()));
        all.extend(tokens);
    }
    TextItem::new(all).masked(mask)
}

/// The sample, cut where it is too long and that is wanted; the problem where it cannot be learned from.
fn fitted(mut item: TextItem, context: usize, truncate: bool) -> Result<TextItem, String> {
    let (length, most) = (item.tokens.len(), context + 1);
    if length > most && !truncate {
        return Err(format!(
            "it has {length} tokens, and a window has {most}: raise text.window up to the model's context, leave the \
             line out, or cut such lines with --set text.truncate=true"
        ));
    }
    item.tokens.truncate(most);
    if let Some(mask) = &mut item.mask {
        mask.truncate(most);
    }
    match item.predictions() {
        0 if length > most => Err(format!(
            "its prompt alone fills the window of {most} tokens: no token of its answer is left"
        )),
        0 => Err("no token of its answer is left to predict".to_owned()),
        _ => Ok(item),
    }
}

/// The sample of a line, or the problem with it.
fn parse(line: &[u8]) -> Result<Sample, String> {
    let value = serde_json::from_slice::<Value>(line);
    let value = value.map_err(|error| format!("it is no JSON: {error}"))?;
    let object = value.as_object().ok_or("it is no JSON object")?;
    let sample = match (
        object.get("messages"),
        object.get("prompt"),
        object.get("completion"),
    ) {
        (Some(messages), None, None) => Sample::Messages(conversation(messages, "messages", true)?),
        (None, Some(Value::String(prompt)), Some(Value::String(completion))) => {
            if completion.trim().is_empty() {
                return Err("its `completion` is empty".to_owned());
            }
            Sample::Completion {
                prompt: prompt.clone(),
                completion: completion.clone(),
            }
        }
        (None, Some(prompt @ Value::Array(_)), Some(completion @ Value::Array(_))) => {
            let mut messages = conversation(prompt, "prompt", false)?;
            messages.extend(conversation(completion, "completion", true)?);
            Sample::Messages(messages)
        }
        (None, Some(_), Some(_)) => {
            return Err(
                "its `prompt` and `completion` are neither two texts nor two lists of messages"
                    .to_owned(),
            );
        }
        (Some(_), ..) => return Err("it has `messages`, and `prompt` or `completion`".to_owned()),
        (None, Some(_), None) => return Err("it has no field `completion`".to_owned()),
        (None, None, Some(_)) => return Err("it has no field `prompt`".to_owned()),
        (None, None, None) => {
            return Err(
                "it has neither `messages` nor `prompt` and `completion`; lines of plain text become tokens by \
                 `everburn tokenize --jsonl FIELD`"
                    .to_owned(),
            );
        }
    };
    match &sample {
        Sample::Messages(messages) if !messages.iter().any(|(_, is_learned)| *is_learned) => Err(
            format!("none of its messages is an answer: the role of answers is `{ASSISTANT}`"),
        ),
        _ => Ok(sample),
    }
}

/// The messages of a list, of which answers are learned if they are `learned`.
fn conversation(
    list: &Value,
    field: &str,
    learned: bool,
) -> Result<Vec<(ChatMessage, bool)>, String> {
    let list = list.as_array().ok_or(format!("its `{field}` is no list"))?;
    let messages = list.iter().enumerate().map(|(index, message)| {
        let text = |key: &str| match message.get(key) {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => Err(format!("`{field}[{index}].{key}` is no text")),
        };
        let (role, content) = (text("role")?, text("content")?);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if role.is_empty() || role.len() > LONGEST_ROLE || !role.chars().all(is_name) {
            return Err(format!("`{field}[{index}].role` is no name of a role"));
        }
        let is_learned = learned && role == ASSISTANT;
        if is_learned && content.trim().is_empty() {
            return Err(format!("`{field}[{index}].content`, an answer, is empty"));
        }
        Ok((ChatMessage { role, content }, is_learned))
    });
    messages.collect()
}
