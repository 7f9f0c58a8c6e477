//! Shards that a run reads in two parts, on different numbers of ranks: each sample of the epoch is learned from once.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::prelude::*;
use everburn_datasets::{TarShards, TextDataset, TokenFormat, TokenShards};
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_tests::tar::member;
use everburn_train::checkpoint::CheckpointFolder;
use everburn_train::{Classifier, LabeledBatch, Trainer, TrainingConfig, TrainingData};

use crate::harness::ranks::on_ranks;

/// How many samples each shard has, and all of them.
const SHARDS: [usize; 4] = [500, 1, 700, 404];
const SAMPLES: usize = 1605;

/// The samples of a global batch, and the steps of the epoch: 200 batches of 8, and one of 5.
const BATCH: usize = 8;
const STEPS: usize = 201;

/// How many ranks begin, and how many resume.
const RANKS: [usize; 2] = [4, 3];

/// The last step that the first part of a run makes.
const LAST: usize = 137;

/// Numbers from here on are of samples to validate by.
const HELD_OUT: i64 = 1 << 20;

/// The tokens that a sample is ahead of the one before it.
const CONTEXT: usize = 4;

/// The folder of the process that is killed, and the kind of its shards; it does nothing without.
const FOLDER: &str = "EVERBURN_TEST_READ_ONCE";
const KIND: &str = "EVERBURN_TEST_READ_ONCE_KIND";

/// A hang is an error after so long.
const DEADLINE: Duration = Duration::from_secs(120);

/// What the process says when it has made its steps.
const READY: &str = "ready to be killed";

/// A kind of shards whose samples are numbers, from 0 on.
struct Kind {
    /// Its name, and the ending of its files.
    name: &'static str,
    /// A file of the samples with these numbers.
    content: fn(Range<usize>) -> Vec<u8>,
    open: fn(&[PathBuf]) -> Numbered,
}

const KINDS: [Kind; 2] = [
    Kind {
        name: "tar",
        content: |numbers| numbers.flat_map(tar_member).collect(),
        open: open_tar_shards,
    },
    Kind {
        name: "bin",
        content: tokens,
        open: open_token_shards,
    },
];

impl Kind {
    fn files(&self, folder: &Path) -> Vec<PathBuf> {
        let name = |shard| folder.join(format!("{shard:03}.{}", self.name));
        (0..SHARDS.len()).map(name).collect()
    }

    fn write(&self, folder: &Path) {
        let mut first = 0;
        for (file, count) in self.files(folder).iter().zip(SHARDS) {
            std::fs::write(file, (self.content)(first..first + count)).unwrap();
            first += count;
        }
        assert_eq!(first, SAMPLES);
    }
}

struct Numbered {
    len: usize,
    number: Box<dyn Fn(usize) -> Result<i64, DatasetError> + Send + Sync>,
}

impl Dataset<i64> for Numbered {
    fn get(&self, index: usize) -> Result<i64, DatasetError> {
        (self.number)(index)
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// A sample of a tar shard: its number as a text.
fn tar_member(number: usize) -> Vec<u8> {
    member(&format!("{number:06}.txt"), number.to_string().as_bytes())
}

fn open_tar_shards(files: &[PathBuf]) -> Numbered {
    let shards = TarShards::open(files).unwrap();
    Numbered {
        len: shards.len(),
        number: Box::new(move |index| {
            let sample = Dataset::get(&shards, index)?;
            let text = String::from_utf8(sample.files["txt"].clone()).unwrap();
            Ok(text.parse().unwrap())
        }),
    }
}

/// Tokens that are their places: the first one of a sample is its number times [`CONTEXT`]. The last sample ends with a
/// token more.
fn tokens(numbers: Range<usize>) -> Vec<u8> {
    let end = numbers.end * CONTEXT + usize::from(numbers.end == SAMPLES);
    let tokens = numbers.start * CONTEXT..end;
    let tokens = tokens.map(|token| u16::try_from(token).unwrap());
    tokens.flat_map(u16::to_le_bytes).collect()
}

fn open_token_shards(files: &[PathBuf]) -> Numbered {
    let shards = TokenShards::open(files, TokenFormat::NanoGpt).unwrap();
    let windows = TextDataset::of_shards(shards, CONTEXT);
    Numbered {
        len: windows.len(),
        number: Box::new(move |index| {
            let tokens = Dataset::get(&windows, index)?.tokens;
            Ok(i64::from(tokens[0]) / CONTEXT as i64)
        }),
    }
}

/// Images of four pixels that are the number of the sample.
pub struct Pixels;

impl Batcher<i64, LabeledBatch<4>> for Pixels {
    fn batch(&self, numbers: Vec<i64>, device: &Device) -> LabeledBatch<4> {
        let count = numbers.len();
        let pixels: Vec<f32> = numbers
            .iter()
            .flat_map(|number| [*number as f32; 4])
            .collect();
        let classes: Vec<i64> = numbers.iter().map(|number| number % 2).collect();
        (
            Tensor::from_data(TensorData::new(pixels, [count, 1, 2, 2]), device),
            Tensor::from_data(TensorData::new(classes, [count]), device),
        )
    }
}

/// A model of these images.
pub fn model() -> Mlp {
    let config = MlpConfig::new().with_inputs(4).with_hidden(vec![3]);
    config.with_classes(2).init(&Device::flex())
}

/// The samples to validate by.
pub fn held_out() -> InMemDataset<i64> {
    InMemDataset::new((HELD_OUT..HELD_OUT + 4).collect())
}

/// The numbers of the samples to learn from that a batch has.
pub fn learned_from(images: &Tensor<4>) -> Vec<usize> {
    let pixels = images.clone().into_data();
    let numbers = pixels.iter::<f32>().step_by(4).map(|pixel| pixel as i64);
    let numbers = numbers.filter(|number| *number < HELD_OUT);
    numbers.map(|number| number as usize).collect()
}

/// What a rank does when it computes this training batch, counted from 1, before the batch counts.
type AtBatch = fn(batch: usize);

/// Trains on shards that are in `folder`, and returns how many steps the run has made. Each rank writes down which
/// samples its model computes, a line for each batch: those that are read ahead and never learned from do not count.
fn train(folder: &Path, kind: &Kind, config: &TrainingConfig, part: usize, at: AtBatch) -> usize {
    let model = model();
    let reports = on_ranks(RANKS[part], config, Some(&folder.join("run")), |trainer| {
        let shards = (kind.open)(&kind.files(folder));
        let data = TrainingData::new("shards", shards, held_out(), Pixels);
        let data = data.with_validation(held_out());
        let record = record_of(folder, part, trainer.group.rank());
        let record = OpenOptions::new().create(true).append(true).open(record);
        let (record, batches) = (Mutex::new(record.unwrap()), AtomicUsize::new(0));
        let forward = move |model: &Mlp, images: Tensor<4>| {
            let numbers = learned_from(&images);
            if !numbers.is_empty() {
                at(batches.fetch_add(1, Ordering::Relaxed) + 1);
                let line = numbers.iter().map(|number| format!("{number} "));
                let line = line.collect::<String>() + "\n";
                record.lock().unwrap().write_all(line.as_bytes()).unwrap();
            }
            model.forward(images * 1e-6)
        };
        let trainer = Trainer {
            resume: part == 1,
            ..trainer
        };
        let model = Classifier::<_, 4>::new(model.clone(), forward);
        trainer.fit(model, &data).unwrap().1.steps
    });
    reports[0]
}

fn record_of(folder: &Path, part: usize, rank: usize) -> PathBuf {
    folder.join(format!("part-{part}-rank-{rank}"))
}

/// The samples of each batch that a rank has computed.
fn record(folder: &Path, part: usize, rank: usize) -> Vec<Vec<usize>> {
    let file = File::open(record_of(folder, part, rank)).unwrap();
    let lines = BufReader::new(file).lines().map(Result::unwrap);
    let numbers = |line: String| {
        let numbers = line.split_whitespace();
        numbers.map(|number| number.parse().unwrap()).collect()
    };
    lines.map(numbers).collect()
}

/// Checks that the samples of the steps up to `kept` of the first part and those of the second are all samples, each
/// as often as it is there: once.
fn check(folder: &Path, kept: usize) {
    let ranks = |part: usize, most: usize| {
        let ranks = (0..RANKS[part]).map(move |rank| record(folder, part, rank));
        ranks.flat_map(move |batches| batches.into_iter().take(most).flatten())
    };
    let first: Vec<usize> = ranks(0, kept).collect();
    assert_eq!(first.len(), kept * BATCH);
    let mut read = first;
    read.extend(ranks(1, usize::MAX));
    read.sort_unstable();
    assert_eq!(read, (0..SAMPLES).collect::<Vec<_>>());
}

fn config(steps: Option<usize>) -> TrainingConfig {
    TrainingConfig {
        epochs: 1,
        batch_size: BATCH,
        steps,
        checkpoint_every: "50steps".parse().unwrap(),
        ..TrainingConfig::default()
    }
}

#[test]
fn shards_stopped_at_step_137_on_4_ranks_and_resumed_on_3_are_read_exactly_once() {
    for kind in &KINDS {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        kind.write(here);
        assert_eq!(train(here, kind, &config(Some(LAST)), 0, |_| ()), LAST);
        assert_eq!(train(here, kind, &config(None), 1, |_| ()), STEPS);
        check(here, LAST);
    }
}

#[test]
#[ignore = "the process that the other test kills; it trains until then"]
fn train_until_killed() {
    let variable = |name| std::env::var_os(name).expect("the other test starts this one");
    let (folder, name) = (variable(FOLDER), variable(KIND));
    let kind = KINDS.iter().find(|kind| name == kind.name).unwrap();
    train(folder.as_ref(), kind, &config(None), 0, |batch| {
        if batch > LAST {
            // Past the harness, which would keep it.
            writeln!(std::io::stdout(), "\n{READY}").unwrap();
            loop {
                std::thread::park();
            }
        }
    });
}

#[test]
fn shards_killed_at_step_137_on_4_ranks_and_resumed_on_3_are_read_exactly_once() {
    for kind in &KINDS {
        let folder = tempfile::tempdir().unwrap();
        let (here, name) = (folder.path(), kind.name);
        kind.write(here);
        let arguments = "--exact read_once::train_until_killed --ignored --nocapture".split(' ');
        let mut job = Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .env(FOLDER, here)
            .env(KIND, name)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(job.stdout.take().unwrap()).lines();
        let (ready, reports) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let lines = lines.map_while(Result::ok);
            lines
                .filter(|line| line == READY)
                .try_for_each(|_| ready.send(()))
        });
        for _ in 0..RANKS[0] {
            // From each rank, which makes no other step.
            let report = reports.recv_timeout(DEADLINE);
            report.unwrap_or_else(|error| panic!("{name}: the job is not ready: {error}"));
        }
        job.kill().unwrap();
        job.wait().unwrap();
        let _ = reader.join().unwrap(); // it fails only where nobody listens
        for rank in 0..RANKS[0] {
            assert_eq!(record(here, 0, rank).len(), LAST, "{name}");
        }
        let checkpoints = CheckpointFolder::new(here.join("run/checkpoints"), 2);
        let newest = checkpoints.load_newest().unwrap().checkpoint.progress;
        // Steps are lost: those after the checkpoint count as never made.
        assert_eq!(newest.step % 50, 0, "{name}: {newest:?}");
        let steps = train(here, kind, &config(None), 1, |_| ());
        check(here, newest.step);
        assert_eq!(steps, STEPS);
    }
}
