//! A decoder learns, and learns the same on one rank and on several.

use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use everburn_datasets::{MaskedTextBatcher, TextDataset, TextItem};
use everburn_distributed::ShardStage;
use everburn_models::gpt::{Gpt, GptConfig, Positions};
use everburn_nn::IndexOf;
use everburn_train::{
    Adapter, GenerationConfig, LanguageModel, LoraConfig, MaskedNextToken, MaskedTextBatch,
    MetricLine, OptimizerConfig, OptimizerKind, Patterns, Supervised, TrainError, TrainingConfig,
    TrainingData, whole_text,
};

use crate::alone;
use crate::harness::config::{changed, optimizer};
use crate::harness::data::{Texts, texts, windows};
use crate::harness::parameters::{difference, parameters};
use crate::harness::ranks::on_ranks;
use crate::harness::run::metric_lines;
use crate::replicas::in_common;

const CONTEXT: usize = 16;

/// A small decoder whose weights are drawn now, from a seed: tests beside this one draw from the same generator.
fn small(vocabulary: usize, positions: Positions) -> Gpt {
    let config = GptConfig::new(vocabulary)
        .with_context(CONTEXT)
        .with_width(32)
        .with_layers(2)
        .with_heads(2)
        .with_positions(positions);
    let device = Device::flex();
    device.seed(7);
    let gpt = config.init(&device);
    drop(parameters(&gpt));
    gpt
}

fn adam_w(learning_rate: f64) -> OptimizerConfig {
    optimizer(OptimizerKind::AdamW, learning_rate)
}

/// Twenty steps of SGD. Adam divides a gradient by its own size, so that where it is all but zero it
/// steps as far by rounding alone: 1 draw of weights in 100 then exceeds any narrow bound.
fn twenty_steps() -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        steps: Some(20),
        batch_size: 24,
        validation_samples: Some(30),
        log_every: 1,
        optimizer: OptimizerConfig {
            momentum: Some(0.9),
            ..optimizer(OptimizerKind::Sgd, 0.3)
        },
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
fn a_token_beyond_the_embedding_is_refused_with_its_sample() {
    let (data, vocabulary) = texts(CONTEXT);
    let rows = 10;
    assert!(vocabulary > 2 * rows, "most windows have such tokens");
    let model = small(rows, Positions::Learned);
    for ranks in [1, 2] {
        let errors = on_ranks(ranks, &twenty_steps(), None, |trainer| {
            let model = LanguageModel::of_blocks(model.clone());
            trainer.fit(model, &data).map(drop).unwrap_err()
        });
        let found = errors.iter().find_map(|error| match error {
            TrainError::Label(wrong) => Some(wrong),
            _ => None,
        });
        let wrong = found.unwrap_or_else(|| panic!("{errors:?}"));
        assert_eq!((wrong.index, wrong.scores), (IndexOf::Token, rows));
        assert!(wrong.sample.is_some() && wrong.place.is_some(), "{wrong}");
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
        epochs: 120,
        batch_size: 16,
        validation_samples: Some(0),
        optimizer: adam_w(1e-2),
        ..TrainingConfig::default()
    };
    let trainer = alone(config);
    let model = LanguageModel::of_blocks(small(tokenizer.vocabulary(), Positions::Rotary));
    let (model, report) = trainer.fit(model, &data).unwrap();
    assert!(report.test_loss.unwrap() < 0.3, "{report:?}");

    let generation = GenerationConfig {
        tokens: 60,
        temperature: 0.0,
        ..GenerationConfig::default()
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

/// How many tokens the texts of [`answers`] have, and how many of these, at their ends, are learned: so unequal that a
/// mean of means is far from the mean.
const LENGTHS: [(usize, usize); 7] = [(16, 14), (3, 1), (9, 1), (5, 2), (17, 16), (2, 1), (12, 3)];

/// Texts of different lengths with a loss on their ends only.
fn answers() -> TrainingData<TextItem, MaskedTextBatch> {
    let texts = LENGTHS
        .iter()
        .enumerate()
        .map(|(text, &(length, learned))| {
            let tokens = (0..length).map(|place| ((text * 5 + place * place) % 11) as u32);
            let mask = (0..length).map(|place| place + learned >= length);
            TextItem::new(tokens.collect()).masked(mask.collect())
        });
    let texts = TextDataset::of_items(texts.collect(), CONTEXT);
    let test = texts.first(1);
    TrainingData::new("answers", texts, test, MaskedTextBatcher).weighted_by(TextItem::predictions)
}

/// The loss of `model` on all texts, one after the other and without padding, and the parameters after a step of
/// gradient descent along the gradient of it.
fn a_step_by_hand(model: &Gpt, learning_rate: f64) -> (f64, Vec<Vec<f32>>) {
    let device = Device::flex().autodiff();
    let model = model.clone().train().fork(&device);
    let (mut losses, mut learned) = (Vec::new(), 0);
    for index in 0..LENGTHS.len() {
        let item = answers().train.get(index).unwrap();
        let tokens = item
            .tokens
            .iter()
            .map(|token| i64::from(*token))
            .collect::<Vec<_>>();
        let length = tokens.len() - 1;
        let inputs = TensorData::new(tokens[..length].to_vec(), [1, length]);
        let logits = model.forward(Tensor::<2, Int>::from_data(inputs, &device));
        let shares = log_softmax(logits.squeeze_dim::<2>(0), 1);
        for place in (0..length).filter(|place| item.mask.as_ref().unwrap()[place + 1]) {
            let next = tokens[place + 1] as usize;
            losses.push(
                shares
                    .clone()
                    .slice([place..place + 1, next..next + 1])
                    .neg()
                    .sum(),
            );
            learned += 1;
        }
    }
    let loss = Tensor::cat(losses, 0).sum() / learned as f64;
    let number = loss.clone().into_scalar::<f64>();
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let model = optimizer.step(learning_rate, model, gradients);
    (number, parameters(&model))
}

#[test]
fn a_loss_on_some_tokens_is_the_mean_of_these_over_micro_batches_and_ranks() {
    let model = small(11, Positions::Learned);
    let (loss, expected) = a_step_by_hand(&model, 0.5);
    let (before, expected) = (parameters(&model).concat(), expected.concat());
    assert!(difference(&before, &expected) > 1e-2, "it is a step");
    let one_step = TrainingConfig {
        epochs: 1,
        steps: Some(1),
        batch_size: LENGTHS.len(),
        validation_samples: Some(0),
        log_every: 1,
        optimizer: optimizer(OptimizerKind::Sgd, 0.5),
        ..TrainingConfig::default()
    };
    let with = |change: fn(&mut TrainingConfig)| changed(one_step.clone(), change);
    for (world_size, config) in [
        (1, one_step.clone()),
        (2, one_step.clone()),
        (3, one_step.clone()),
        (1, with(|config| config.accumulate = 3)),
        (2, with(|config| config.accumulate = 2)),
        (2, with(|config| config.overlap = false)),
        (2, with(|it| it.ddp.shard = Some(ShardStage::Gradients))),
        (2, with(|config| config.virtual_ranks = Some(4))),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let replicas = on_ranks(world_size, &config, Some(folder.path()), |trainer| {
            let model = Supervised::<_, MaskedNextToken>::of_blocks(model.clone());
            parameters(&trainer.fit(model, &answers()).unwrap().0)
        });
        let line = &metric_lines(folder.path())[0];
        let learned = LENGTHS.iter().map(|(_, learned)| *learned as u64).sum();
        assert_eq!((line.samples, line.predictions), (7, learned));
        assert!((line.loss - loss).abs() < 1e-5, "{} {loss}", line.loss);
        let apart = difference(&in_common(replicas).concat(), &expected);
        assert!(
            apart < 1e-6,
            "{world_size} ranks are {apart:e} apart: {config:?}"
        );
    }
}

#[test]
fn scores_with_low_rank_factors_beside_are_those_of_merged_weights() {
    let device = Device::flex().autodiff();
    let tokens = |device: &Device| Tensor::<2, Int>::from_ints([[1, 5, 2, 8, 3, 3, 10, 7]], device);
    let lora = LoraConfig {
        rank: 3,
        alpha: Some(7.0),
        targets: Patterns::from(vec!["q".to_string(), "v".to_string(), "up".to_string()]),
        modules_to_save: Patterns::default(),
    };
    let model = small(11, Positions::Rotary);
    let first = model.forward(tokens(&Device::flex())).into_data();
    let mut model = lora.adapt(model.train().fork(&device)).unwrap();
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    for _ in 0..5 {
        let shares = log_softmax(model.forward(tokens(&device)), 2);
        let loss = shares.slice([0..1, 0..8, 4..5]).neg().sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.02, model, gradients);
    }
    let adapter = Adapter::of(&model);
    assert_eq!(adapter.weights().count(), 2 * 3);
    let beside = model.forward(tokens(&device)).into_data();
    let merged = model.materialize();
    assert_eq!(Adapter::of(&merged).weights().count(), 0);
    let merged = merged.forward(tokens(&device)).into_data();
    let numbers = |data: &TensorData| data.iter::<f32>().collect::<Vec<_>>();
    let [first, beside, merged] = [first, beside, merged].map(|data| numbers(&data));
    assert!(difference(&first, &beside) > 0.1, "it has learned");
    assert!(difference(&beside, &merged) < 1e-5);
}
