//! Checkpoints at the end of an epoch, `checkpoints/epoch-0003/`, or within the next one:
//! `checkpoints/epoch-0003-batch-000120/`.
//!
//! | file | what it is |
//! |---|---|
//! | `model.safetensors` | parameters and buffers by path |
//! | `optimizer.safetensors` | the optimizer's state by the path of its parameter: `conv1.weight.momentum.moment_1` |
//! | `buffers.safetensors` | within an epoch, where ranks differ: the running statistics of each rank, and how many samples it has had |
//! | `scheduler.bpk` | the learning rate's schedule, as Burn records it |
//! | `manifest.json` | a [`Manifest`]: the format's version, how far the training was, SHA-256 of each file and tensor |
//! | `manifest.sha256` | that of `manifest.json`, as `sha256sum --check` reads it |
//!
//! Numbers have the bits that they had: what was `f32` is `f32`, and a number that is no tensor (a count of
//! steps) is one without dimensions. A folder is written under a temporary name, synced and renamed, so that
//! one with such a name is whole; it is verified when read. Nothing but `buffers.safetensors` depends on the
//! world size: another number of ranks continues with the means of `model.safetensors`.

pub(crate) mod adapter;
pub(crate) mod ema;
mod exact;
mod folder;
mod manifest;
pub(crate) mod optimizer_states;
pub(crate) mod other_model;
pub(crate) mod pretrained_values;
pub(crate) mod sharing;
pub(crate) mod snapshot;
pub(crate) mod state_dict;
pub(crate) mod state_hashes;
pub(crate) mod tensor_file;
pub(crate) mod training_state;
pub(crate) mod weights;
pub(crate) mod writer;

use std::collections::BTreeMap;
use std::path::PathBuf;

use everburn_record::{BestEpoch, StepCost};
use serde::{Deserialize, Serialize};

use crate::config::TrainingConfig;
use crate::config::best_by::BestBy;
use crate::config::loss_scaling::LossScaling;
use crate::config::optimizer::OptimizerKind;
use crate::config::schedule::{LrSchedule, ScheduleNumbers};
use crate::data_fingerprint::DataFingerprint;
use crate::error::TrainError;
use crate::metrics::sums::MetricSums;

pub use everburn_record::{NotAPlace, Place};
pub use folder::CheckpointFolder;
pub use manifest::{FORMAT_VERSION, FileEntry, Manifest, TensorEntry};

/// Where a training stood when the checkpoint was made.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::checkpoint::Progress;
///
/// fn show(progress: &Progress) {
///     println!("{}: epoch {}, step {}", progress.model, progress.epoch, progress.step);
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// The model's name, so that a checkpoint is not loaded into another model.
    pub model: String,
    /// How many epochs were finished.
    pub epoch: usize,
    /// How many steps had been made.
    pub step: usize,
    /// The seed with which samples are shuffled.
    pub seed: u64,
    /// The size of the global batch.
    pub batch_size: usize,
    /// How many samples an epoch has.
    pub samples_per_epoch: usize,
    /// The optimizer of the configuration, whose state a checkpoint holds unless the task has its own.
    pub optimizer: OptimizerKind,
    /// The task has its own optimizer (`Task::optimizer`): the checkpoint holds the state of that one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_optimizer: bool,
    /// The task has its own schedule of the learning rate (`Task::schedule`), which takes the place of `schedule`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_schedule: bool,
    /// The groups of parameters that learn otherwise than the rest, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parameter_groups: String,
    /// The schedule of the learning rate.
    pub schedule: LrSchedule,
    /// The numbers of that.
    #[serde(default)]
    pub schedule_numbers: ScheduleNumbers,
    /// How many steps the run was planned to make: the length of its schedule.
    pub total_steps: usize,
    /// The best epoch so far.
    #[serde(with = "exact::best")]
    pub best: Option<BestEpoch>,
    /// By which metric it is the best.
    #[serde(default, skip_serializing_if = "BestBy::is_loss")]
    pub best_by: BestBy,
    /// How many global batches of the next epoch had been learnt from.
    #[serde(default)]
    pub batches: usize,
    /// What those had shown.
    #[serde(default, with = "exact::sums")]
    pub so_far: MetricSums,
    /// What those had cost rank 0.
    #[serde(default)]
    pub cost_so_far: StepCost,
    /// The fingerprint of the data; empty where a task has none.
    #[serde(default, skip_serializing_if = "DataFingerprint::is_empty")]
    pub data: DataFingerprint,
    /// The fingerprints of other data that the run had before it was resumed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_data: Vec<DataFingerprint>,
    /// What losses were multiplied by, where they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scaling: Option<LossScaling>,
    /// The link of the newest line of `hashes.jsonl`, where hashes are written:
    /// [`StateHashes::link_after`](crate::StateHashes::link_after).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
}

impl Progress {
    /// Where that is.
    pub fn place(&self) -> Place {
        Place {
            epoch: self.epoch,
            batches: self.batches,
        }
    }

    /// The start of a run.
    pub fn start(model: &str, config: &TrainingConfig, samples_per_epoch: usize) -> Self {
        Self {
            model: model.to_string(),
            seed: config.seed,
            batch_size: config.batch_size,
            samples_per_epoch,
            optimizer: config.optimizer.kind,
            parameter_groups: config.optimizer.describe_groups(),
            schedule: config.schedule,
            schedule_numbers: config.schedule_numbers,
            total_steps: config.total_steps(samples_per_epoch),
            best_by: config.best_by.clone(),
            ..Self::default()
        }
    }

    /// How many steps of the schedule were made: all but those that were skipped.
    pub(crate) fn scheduled_steps(&self) -> usize {
        let skipped = self.loss_scaling.map_or(0, |scaling| scaling.skipped_steps);
        self.step
            .saturating_sub(usize::try_from(skipped).unwrap_or(usize::MAX))
    }

    /// Whether the run has learnt from other data than `data`, whose test samples may be among those then: not where those
    /// had the same test set in files of its own.
    pub fn has_learnt_from_others(&self, data: &DataFingerprint) -> bool {
        let has_test = |own: &DataFingerprint| !data.test.is_empty() && own.test == data.test;
        let mut all = self.earlier_data.iter().chain([&self.data]);
        all.any(|own| !own.is_empty() && own.all != data.all && !has_test(own))
    }

    /// Whether the run has learnt from the test set of `data` itself.
    pub fn has_learnt_from(&self, data: &DataFingerprint) -> bool {
        let mut all = self.earlier_data.iter().chain([&self.data]);
        !data.test.is_empty() && all.any(|own| own.train == data.test && own.test != data.test)
    }

    /// Checks that a run of `self` can continue from where `checkpoint` stood.
    ///
    /// # Errors
    /// What differs, in words.
    pub fn fits(&self, checkpoint: &Self) -> Result<(), String> {
        let facts = |progress: &Self| {
            let or_own = |is_own: bool, configured: String| match is_own {
                true => "the task's own".to_string(),
                false => configured,
            };
            let schedule = progress.schedule_numbers.describe(progress.schedule);
            let optimizer = format!("{:?}", progress.optimizer);
            let groups = match progress.parameter_groups.as_str() {
                "" => "none".to_string(),
                groups => groups.to_string(),
            };
            [
                ("model", progress.model.clone()),
                ("seed", progress.seed.to_string()),
                ("batch size", progress.batch_size.to_string()),
                ("training samples", progress.samples_per_epoch.to_string()),
                ("optimizer", or_own(progress.own_optimizer, optimizer)),
                ("parameter groups", groups),
                ("schedule", or_own(progress.own_schedule, schedule)),
            ]
        };
        let (there, here) = (facts(checkpoint), facts(self));
        let pairs = there.iter().zip(&here);
        let different: Vec<_> = pairs.filter(|(theirs, ours)| theirs != ours).collect();
        match &*different {
            [] => Ok(()),
            all => {
                let all = all
                    .iter()
                    .map(|((what, there), (_, here))| format!("{what} {there} there, {here} here"));
                Err(format!(
                    "it belongs to another run ({}); {}",
                    all.collect::<Vec<_>>().join("; "),
                    self.advice(checkpoint, different.len())
                ))
            }
        }
    }

    /// What to resume with, where a number of facts differ from those of `checkpoint`.
    fn advice(&self, checkpoint: &Self, different: usize) -> String {
        let samples = self.samples_per_epoch != checkpoint.samples_per_epoch;
        let optimizer = self.own_optimizer != checkpoint.own_optimizer;
        let schedule = self.own_schedule != checkpoint.own_schedule;
        // An own optimizer or schedule is of the code; the number of samples, of the data.
        let elsewhere = [samples, optimizer, schedule];
        let mut same = Vec::new();
        let is_configured = different > elsewhere.iter().filter(|differs| **differs).count();
        if is_configured {
            same.push("the same configuration");
        }
        if optimizer {
            same.push("the same `Task::optimizer`");
        }
        if schedule {
            same.push("the same `Task::schedule`");
        }
        if samples {
            same.push("the same training data");
        }
        let same = same.join(" and ");
        match samples {
            false if is_configured => {
                format!("resume with {same}, or begin a new run with `init_from = RUN`")
            }
            false => format!("resume with {same}"),
            true => format!(
                "the training data have changed, or other samples are held out (`training.validation_samples`): resume \
                 with {same}, or begin a new run in another folder"
            ),
        }
    }
}

/// Everything that a continuation needs.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::checkpoint::{Checkpoint, CheckpointFolder, Progress};
///
/// let folder = tempfile::tempdir().unwrap();
/// let checkpoints = CheckpointFolder::new(folder.path(), 2);
/// let progress = Progress { epoch: 1, ..Progress::default() };
/// let files = [("scheduler.bpk".to_string(), vec![1, 2, 3])].into();
/// let checkpoint = Checkpoint { progress, files };
/// checkpoints.save(&checkpoint).unwrap();
/// assert_eq!(checkpoints.load_newest().unwrap().checkpoint, checkpoint);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checkpoint {
    /// Where the training stood.
    pub progress: Progress,
    /// The contents of the files, by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// A checkpoint that was read, and those that were passed over for being damaged.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::checkpoint::Loaded;
///
/// fn show(loaded: &Loaded) {
///     println!("{}, {} damaged ones before it", loaded.path.display(), loaded.refused.len());
/// }
/// ```
#[derive(Debug)]
pub struct Loaded {
    /// The newest good checkpoint.
    pub checkpoint: Checkpoint,
    /// Its folder.
    pub path: PathBuf,
    /// Why newer ones were not taken.
    pub refused: Vec<TrainError>,
}

#[cfg(test)]
mod tests;
