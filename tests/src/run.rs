//! What a run leaves behind.

use std::fs::File;
use std::path::{Path, PathBuf};

use everburn_record::Live;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

/// The JSON of each line of `text`.
///
/// # Panics
/// When a line is no JSON.
pub fn json_lines(text: &str) -> Vec<Value> {
    let lines = text.lines().map(serde_json::from_str);
    lines
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("a line is no JSON: {error}\n{text}"))
}

/// A run directory, read by someone who knows its files only by their documentation.
#[derive(Debug, Clone)]
pub struct Run {
    /// The folder.
    pub path: PathBuf,
}

impl Run {
    /// The run recorded in `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// A run of `mnist` in `path` that has only its configuration. The folder is made where there is none.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn begin(path: impl Into<PathBuf>) -> Self {
        let run = Self::new(path);
        std::fs::create_dir_all(&run.path).expect("the folder can be made");
        let config = run.path.join("config.toml");
        std::fs::write(config, "model = 'mnist'").expect("the folder can be written");
        run
    }

    /// Holds the run's lock, as its process does while the run continues, until the file is dropped.
    ///
    /// # Panics
    /// When the folder cannot be written.
    pub fn hold(&self) -> File {
        let lock = File::create(self.path.join(Live::LOCK)).expect("the folder can be written");
        flock(&lock, FlockOperation::LockExclusive).expect("nobody else holds the lock");
        lock
    }

    /// Checks that a file is there and returns its text.
    ///
    /// # Panics
    /// When it is not there or is no text.
    pub fn text(&self, name: impl AsRef<Path>) -> String {
        let path = self.path.join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// A file of the run, or nothing where it is not there yet.
    pub fn text_if_there(&self, name: impl AsRef<Path>) -> String {
        std::fs::read_to_string(self.path.join(name)).unwrap_or_default()
    }

    /// A file of JSON.
    ///
    /// # Panics
    /// When it is missing or no JSON.
    pub fn json(&self, name: &str) -> Value {
        let text = self.text(name);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"))
    }

    /// `report.json`.
    ///
    /// # Panics
    /// When it is missing or no JSON.
    pub fn report(&self) -> Value {
        self.json("report.json")
    }

    /// A number of the report.
    ///
    /// # Panics
    /// When it is missing or no number.
    pub fn number(&self, name: &str) -> f64 {
        let report = self.report();
        report[name]
            .as_f64()
            .unwrap_or_else(|| panic!("`{name}` is not a number in {report:#}"))
    }

    /// The whole lines of `metrics.jsonl` so far; none while there is no such file.
    ///
    /// # Panics
    /// When a line is no JSON.
    pub fn metrics(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path.join("metrics.jsonl")).unwrap_or_default();
        json_lines(text.rfind('\n').map_or("", |end| &text[..end]))
    }

    /// Epoch and loss, to the bit, of the lines of a kind.
    ///
    /// # Panics
    /// When a line has no epoch or loss.
    pub fn losses(&self, kind: &str) -> Vec<(u64, f64)> {
        let lines = self.metrics().into_iter();
        lines
            .filter(|line| line["kind"] == kind)
            .map(|line| {
                let epoch = line["epoch"].as_u64().expect("a line has an epoch");
                (epoch, line["loss"].as_f64().expect("a line has a loss"))
            })
            .collect()
    }

    /// Demands that the losses of a kind are those of `other` but for rounding: apart by at most this part of them.
    ///
    /// # Panics
    /// With both, when they are not, or when there are none.
    #[track_caller]
    pub fn assert_near(&self, other: &Self, kind: &str, tolerance: f64) {
        let (found, expected) = (self.losses(kind), other.losses(kind));
        let pairs = found.iter().zip(&expected);
        let mut pairs = pairs.map(|((_, a), (_, b))| (a - b).abs() <= tolerance * b.abs());
        let is_whole = !found.is_empty() && found.len() == expected.len();
        assert!(
            is_whole && pairs.all(|is_near| is_near),
            "{}, {kind}: {found:?}, not {expected:?}",
            self.path.display()
        );
    }

    /// A number of each line of a kind, to the bit.
    ///
    /// # Panics
    /// When a line has no such number.
    pub fn values(&self, kind: &str, name: &str) -> Vec<f64> {
        let lines = self.metrics().into_iter();
        let lines = lines.filter(|line| line["kind"] == kind);
        let value = |line: Value| {
            let value = line[name].as_f64();
            value.unwrap_or_else(|| panic!("no {name} in {line}"))
        };
        lines.map(value).collect()
    }

    /// The lines of `hashes.jsonl` so far, one for each step; none while there is no such file.
    pub fn hashes(&self) -> Vec<String> {
        let text = self.text_if_there("hashes.jsonl");
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// How many epochs have been recorded so far.
    pub fn epochs(&self) -> usize {
        self.losses("train").len()
    }

    /// The folder of an epoch's checkpoint.
    pub fn checkpoint(&self, epoch: usize) -> PathBuf {
        self.path.join(format!("checkpoints/epoch-{epoch:04}"))
    }

    /// Changes one byte of the model in an epoch's checkpoint.
    ///
    /// # Panics
    /// When there is no such checkpoint.
    pub fn damage_checkpoint(&self, epoch: usize) {
        let path = self.checkpoint(epoch).join("model.safetensors");
        let mut bytes = std::fs::read(&path).expect("the checkpoint is there");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).expect("the checkpoint can be written");
    }
}
