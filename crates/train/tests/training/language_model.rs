//! A decoder learns, and learns the same on one rank and on several.

use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::prelude::*;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::TextDataset;
use everburn_models::gpt::{Gpt, GptConfig, Positions};
use everburn_train::{
    Generation, LanguageModel, MetricLine, OptimizerConfig, OptimizerKind, Samples, Trainer,
    TrainingConfig, whole_text,
};

use crate::harness::data::{Texts, texts, windows};
use crate::harness::parameters::parameters;
use crate::harness::ranks::on_ranks;
use crate::harness::run::metric_lines;
use crate::replicas::in_common;

const CONTEXT: usize = 16;

/// A small decoder whose weights are drawn: tests beside this one draw from the same generator.
fn small(vocabulary: usize, positions: Positions) -> Gpt {
    let config = GptConfig::new(vocabulary)
        .with_context(CONTEXT)
        .with_width(32)
        .with_layers(2)
        .with_heads(2)
        .with_positions(positions);
    let gpt = config.init(&Device::flex());
    drop(parameters(&gpt));
    gpt
}

fn adam_w(learning_rate: f64) -> OptimizerConfig {
    OptimizerConfig {
        kind: OptimizerKind::AdamW,
        learning_rate,
        ..OptimizerConfig::default()
    }
}

fn twenty_steps() -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        steps: Some(20),
        batch_size: 24,
        validation_samples: Some(30),
        log_every: 1,
        optimizer: adam_w(3e-3),
        ..TrainingConfig::default()
    }
}

/// The lines of `metrics.jsonl` of a training on ranks that are threads.
fn train(model: &Gpt, world_size: usize, config: &TrainingConfig, data: &Texts) -> Vec<MetricLine> {
    let folder = tempfile::tempdir().unwrap();
    let replicas = on_ranks(world_size, config, Some(folder.path()), |trainer| {
        let model = LanguageModel::of_blocks(model.clone());
        let (model, report) = trainer.fit(model, data).unwrap();
        let predictions = report.test_samples * CONTEXT as u64;
        assert_eq!(report.test_samples, data.test.len() as u64);
        assert_eq!(report.test_predictions, predictions);
        parameters(&model)
    });
    in_common(replicas);
    metric_lines(folder.path())
}

#[test]
fn one_rank_and_more_learn_the_same() {
    let (data, vocabulary) = texts(CONTEXT);
    for positions in [Positions::Learned, Positions::Rotary] {
        let model = small(vocabulary, positions);
        let lines = train(&model, 1, &twenty_steps(), &data);
        let (first, last) = (&lines[0], &lines[19]);
        assert!(last.loss < first.loss - 0.5, "it learns: {lines:?}");
        let uniform = (vocabulary as f64).ln();
        assert!(
            (first.loss - uniform).abs() < 0.2,
            "at first all are as likely"
        );
        for world_size in [2, 3] {
            let others = train(&model, world_size, &twenty_steps(), &data);
            assert_eq!(lines.len(), others.len());
            for (line, other) in lines.iter().zip(&others) {
                assert_eq!((line.kind, line.step), (other.kind, other.step));
                assert_eq!(line.samples, other.samples);
                assert_eq!(line.predictions, other.predictions);
                assert_eq!(line.predictions, line.samples * CONTEXT as u64);
                let difference = (line.loss - other.loss).abs() / line.loss;
                assert!(difference <= 1e-4, "{line:?} {other:?}");
            }
        }
    }
}

#[test]
fn micro_batches_change_nothing() {
    let (data, vocabulary) = texts(CONTEXT);
    let model = small(vocabulary, Positions::Learned);
    let lines = train(&model, 2, &twenty_steps(), &data);
    let config = TrainingConfig {
        accumulate: 3,
        ..twenty_steps()
    };
    let others = train(&model, 2, &config, &data);
    for (line, other) in lines.iter().zip(&others) {
        assert!(
            (line.loss - other.loss).abs() / line.loss <= 1e-4,
            "{line:?} {other:?}"
        );
    }
}

#[test]
fn a_short_text_is_learned_by_heart_and_written_down() {
    let line = "the quick brown fox jumps over the lazy dog\n";
    let tokenizer = everburn_datasets::Tokenizer::of_characters_in(line).unwrap();
    let tokens = tokenizer.encode(&line.repeat(12)).unwrap();
    let text = TextDataset::new(tokens, CONTEXT);
    let test = text.first(4);
    let data = windows(text, test);
    let config = TrainingConfig {
        epochs: 60,
        batch_size: 16,
        validation_samples: Some(0),
        optimizer: adam_w(1e-2),
        ..TrainingConfig::default()
    };
    let trainer = Trainer::new(config, ProcessGroup::alone(GroupOptions::default()));
    let model = LanguageModel::of_blocks(small(tokenizer.vocabulary(), Positions::Rotary));
    let (model, report) = trainer.fit(model, &data).unwrap();
    assert!(report.test_loss.unwrap() < 0.3, "{report:?}");

    let generation = Generation {
        tokens: 60,
        temperature: 0.0,
        ..Generation::default()
    };
    let prompt = tokenizer.encode("the quick br").unwrap();
    let model = model.valid();
    let score = whole_text(|tokens| model.forward(tokens));
    let written = generation.draw(&prompt, CONTEXT, score, &Device::flex());
    let written = tokenizer.decode(&written.unwrap());
    assert!(
        written.starts_with("own fox jumps over the lazy dog\nthe quick"),
        "{written:?}"
    );
}

#[test]
fn samples_are_drawn_after_steps_and_epochs_and_change_nothing() {
    let (data, vocabulary) = texts(CONTEXT);
    let config = TrainingConfig {
        epochs: 2,
        steps: None,
        batch_size: 100,
        ..twenty_steps()
    };
    // Dropout draws from the generator that a careless sample would draw from too.
    let model = GptConfig::new(vocabulary)
        .with_context(CONTEXT)
        .with_width(8)
        .with_layers(1)
        .with_heads(1)
        .with_dropout(0.5)
        .init(&Device::flex());
    drop(parameters(&model));
    let steps = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&steps);
    let samples = Samples::new(Some(2), move |model: &LanguageModel<Gpt>, step| {
        let generation = Generation {
            tokens: 5,
            temperature: 1.0,
            seed: step as u64,
            ..Generation::default()
        };
        let score = whole_text(|tokens| model.forward(tokens));
        let drawn = generation.draw(&[0], CONTEXT, score, &Device::flex())?;
        told.lock().unwrap().push((step, drawn));
        Ok(None)
    });
    let trained = |samples| {
        let group = ProcessGroup::alone(GroupOptions::default());
        let trainer = Trainer::new(config.clone(), group);
        let model = LanguageModel::of_blocks(model.clone());
        trainer.fit_and_sample(model, &data, samples).unwrap().1
    };
    let report = trained(Some(samples.clone()));
    let drawn = std::mem::take(&mut *steps.lock().unwrap());
    let at = drawn.iter().map(|(step, _)| *step).collect::<Vec<_>>();
    // 511 windows less 30: five steps an epoch.
    assert_eq!(report.steps, 10);
    assert_eq!(
        at,
        [2, 4, 5, 6, 8, 10],
        "each second step, and the ends of epochs"
    );
}
