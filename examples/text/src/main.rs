//! Tells which kind of text a line is: a file for each kind, `texts/question.txt`, with a text on each line.

mod data;

use std::path::PathBuf;
use std::process::ExitCode;

// `everburn::burn` is Burn itself; its derives look for it under the name `burn`.
use everburn::burn;
use everburn::burn::data::dataset::InMemDataset;
use everburn::burn::prelude::*;
use everburn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use everburn::prelude::*;
use everburn::train::ClassTargets;
use serde::{Deserialize, Serialize};

use crate::data::{Line, LineBatcher, Lines, read};

// Every command of Everburn works on the tasks that are named here: `train`, `eval`, `monitor`, ...
fn main() -> ExitCode {
    App::new().task("text", Texts).main()
}

/// What is trained.
struct Texts;

/// The settings, in `[text]` of a configuration file; `--set text.width=64` sets one.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TextConfig {
    /// Has a file for each class, with a text on each line.
    folder: PathBuf,
    /// How many words are told apart; others share a place with one of them.
    words: usize,
    /// How many numbers stand for a word.
    width: usize,
    /// The names of the classes; the data decide them.
    classes: Vec<String>,
}

impl Default for TextConfig {
    fn default() -> Self {
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/texts"));
        Self { folder, words: 4096, width: 32, classes: Vec::new() }
    }
}

/// The model, an ordinary Burn module: words `[B, W]` to scores of classes `[B, K]`.
#[derive(Module, Debug)]
struct WordBag {
    words: Embedding,
    output: Linear,
}

impl WordBag {
    /// A model with random parameters: a vector of `width` numbers for each of `words`, and scores of `classes`.
    fn new(words: usize, width: usize, classes: usize, device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(words, width).init(device),
            output: LinearConfig::new(width, classes).init(device),
        }
    }
}

impl Task for Texts {
    type Config = TextConfig;
    type Model = WordBag;
    type Item = Line;
    type Batch = Lines;

    fn model(&self, config: &TextConfig, device: &Device) -> Result<WordBag, TaskError> {
        Ok(WordBag::new(config.words, config.width, config.classes.len().max(2), device))
    }

    // Settings that make no sense are refused before anything is read or started.
    fn check(&self, config: &TextConfig) -> Result<(), TaskError> {
        match config.words > 1 {
            true => Ok(()),
            false => Err(TaskError::new(format!("text.words = {}, which leaves no word", config.words))
                .with_help("use 4096 or more")),
        }
    }

    // The model is built after the data are loaded, for as many classes as there are files.
    fn data_decide_model(&self) -> bool {
        true
    }

    fn data(&self, config: &mut TextConfig) -> Result<TaskData<Line, Lines>, TaskError> {
        // Lines to learn from, and every fifth to test on.
        let (train, test) = read(config)?;
        let (train, test) = (InMemDataset::new(train), InMemDataset::new(test));
        let data = TrainingData::new("texts", train, test, LineBatcher)
            .with_fingerprint(config.classes.join(" "))
            .with_origin(config.folder.display().to_string());
        Ok(TaskData { class_names: config.classes.clone(), ..TaskData::from(data) })
    }

    fn loss(&self, _config: &TextConfig, model: &WordBag, (words, classes): Lines) -> Loss {
        // The mean over the words of a line; place 0 is after the end of shorter ones.
        let there = words.clone().greater_elem(0).float().unsqueeze_dim::<3>(2);
        let numbers = (model.words.forward(words) * there.clone()).sum_dim(1);
        let scores = model.output.forward((numbers / there.sum_dim(1)).squeeze_dim::<2>(1));
        // The mean cross entropy, with the accuracy and a confusion matrix. `with_metric` adds other metrics; a loss of
        // another kind is `Loss::new(mean, samples)`.
        classes.loss(scores)
    }

    fn summary(&self) -> String {
        "the kind of a text, from its words".to_string()
    }

    // What `train --list` shows of the model, with the number of classes of `model` without data.
    fn input_and_output(&self) -> [String; 2] {
        ["a line of text", "classes of the data (2)"].map(str::to_string)
    }
}
