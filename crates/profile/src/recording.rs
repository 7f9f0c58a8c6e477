//! What a rank has recorded, as it is in a file.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use everburn_record::file;
use serde::{Deserialize, Serialize};

use crate::error::ProfileError;
use crate::kernels::Kernels;
use crate::phase::Phase;

/// The folder of a run in which its ranks' recordings are.
pub const FOLDER: &str = "profile";

/// The longest recording that is read, in bytes: a rank's recorder holds far less.
const LONGEST: u64 = 1 << 30;

/// The number of the format; files of another are refused.
pub(crate) const FORMAT: u32 = 1;

/// What a rank has recorded of a training. Times are in nanoseconds of the clock of its machine.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::Recording;
///
/// let folder = tempfile::tempdir().unwrap();
/// let recording = Recording { clock_offset: -3, ..Recording::default() };
/// recording.write(folder.path()).unwrap();
/// assert_eq!(Recording::read_all(folder.path()).unwrap()[0].clock_offset, -3);
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Recording {
    /// The number of the format.
    pub format: u32,
    /// What the rank is.
    pub facts: Facts,
    /// What is to be added to its times to get those of rank 0's clock.
    pub clock_offset: i64,
    /// By how much that may be wrong.
    pub clock_error: u64,
    /// When each step began, and what was known then.
    pub steps: Vec<StepStart>,
    /// What the training thread did, without gaps within a step.
    pub phases: Vec<PhaseSpan>,
    /// The paths of the model's parameters.
    pub parameters: Vec<String>,
    /// When the passes came to parameters.
    pub marks: Vec<Mark>,
    /// What other threads did.
    pub background: Vec<BackgroundSpan>,
    /// Where the CPU was found.
    pub samples: Samples,
    /// What the device ran in the steps in which its kernels were timed.
    #[serde(default)]
    pub kernels: Kernels,
}

/// A rank, and the settings of its training.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Facts, Recorder};
///
/// let recorder = Recorder::new(Facts { rank: 1, world_size: 2, ..Facts::default() });
/// recorder.know(|facts| facts.model = "lenet".to_owned());
/// let facts = recorder.finish().facts;
/// assert_eq!((facts.rank, facts.model.as_str()), (1, "lenet"));
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Its number.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// The machine, and when it was started: ranks of one have one clock.
    pub machine: Option<String>,
    /// The name of its machine.
    pub host: Option<String>,
    /// The name of its device.
    pub device: String,
    /// Whether the device computes behind the host's back.
    pub is_asynchronous: bool,
    /// How many threads it computes with.
    pub threads: usize,
    /// How many cores its process may use.
    pub cores: usize,
    /// How many threads assemble batches beside the training.
    pub workers: usize,
    /// How many batches they may be ahead.
    pub prefetch: usize,
    /// How many samples all ranks read a step.
    pub batch_size: usize,
    /// How many numbers the model has learnt.
    pub parameters: u64,
    /// The name of the model.
    pub model: String,
    /// The operating-system number of the training thread.
    pub training_thread: u32,
    /// How many floating point operations per second its threads computed before the training, while all ranks tried at once;
    /// `None` where that was not measured.
    pub peak_operations: Option<f64>,
}

/// The beginning of a step.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Facts, Recorder, StepStart};
///
/// let recorder = Recorder::new(Facts::default());
/// recorder.begin_step(1);
/// recorder.begin_step(2);
/// let steps: Vec<StepStart> = recorder.finish().steps;
/// assert!(steps[0].step == 1 && steps[0].at <= steps[1].at);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StepStart {
    /// The number of the step, from 1.
    pub step: u32,
    /// When it began.
    pub at: u64,
    /// How long the training thread had been kept waiting for a core by then; 0 where the system does not report it.
    pub kept_waiting: u64,
    /// The most memory that the rank used in the step, in bytes; 0 where the system does not report it.
    pub peak_memory: u64,
    /// Whether each kernel of the device was timed, which makes the step longer.
    #[serde(default)]
    pub kernels_timed: bool,
}

/// A phase of a step.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Facts, Phase, PhaseSpan, Recorder};
///
/// let recorder = Recorder::new(Facts::default());
/// recorder.begin_step(1);
/// recorder.enter(Phase::Forward);
/// let phases: Vec<PhaseSpan> = recorder.finish().phases;
/// assert!(phases.iter().all(|span| span.begin <= span.end));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PhaseSpan {
    /// What was done.
    pub phase: Phase,
    /// In which step; 0 after the last.
    pub step: u32,
    /// From when.
    pub begin: u64,
    /// Until when.
    pub end: u64,
    /// How long the training thread itself computed.
    pub cpu: u64,
    /// How many allocations of memory the process made.
    pub allocations: u64,
    /// Of how many bytes together.
    pub bytes: u64,
    /// How many floating point operations the process had counted by its beginning and by its end; zeros where nobody
    /// counts.
    #[serde(default)]
    pub operations: [u64; 2],
}

/// The moment in which a pass came to a parameter.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Mark, Pass};
///
/// let mark = Mark { parameter: 3, pass: Pass::Backward, at: 1_500, operations: 0 };
/// assert!(mark.pass == Pass::Backward && mark.at > 1_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The parameter's number.
    pub parameter: u32,
    /// Forward: it is used for the first time. Backward: its gradient is finished.
    pub pass: Pass,
    /// When.
    pub at: u64,
    /// How many floating point operations the process had counted by then.
    #[serde(default)]
    pub operations: u64,
}

/// A way through the model.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Layer, Pass};
///
/// /// How long a layer takes in a pass, in seconds.
/// fn seconds_in(layer: &Layer, pass: Pass) -> f64 {
///     match pass {
///         Pass::Forward => layer.forward,
///         Pass::Backward => layer.backward,
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// From the input to the loss.
    Forward,
    /// Back from the loss.
    Backward,
}

impl Pass {
    /// Its word, for tables and traces.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

/// Something that another thread than the training's did.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{BackgroundSpan, Track};
///
/// let span = BackgroundSpan { track: Track::Reducer(0), name: "bucket 2".to_owned(), begin: 100, end: 350 };
/// assert_eq!(span.end - span.begin, 250);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundSpan {
    /// Who did it.
    pub track: Track,
    /// What it was.
    pub name: String,
    /// From when.
    pub begin: u64,
    /// Until when.
    pub end: u64,
}

/// A thread beside the training's.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::Track;
///
/// let text = match Track::Reducer(1) {
///     Track::Reducer(number) => format!("reducer {number}"),
///     Track::Gatherer => "gatherer".to_owned(),
///     Track::Loader(thread) => format!("loader {thread}"),
/// };
/// assert_eq!(text, "reducer 1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Track {
    /// One that exchanges gradients, by its number.
    Reducer(u32),
    /// The one that gathers parameters of which each rank has slices.
    Gatherer,
    /// One that assembles batches, by the system's number of the thread.
    Loader(u32),
}

/// What the CPU was found doing, at regular moments.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Sample, Samples};
///
/// /// The names of the functions in which a thread was found, each calling the next.
/// fn names(samples: &Samples, sample: Sample) -> Vec<&str> {
///     let stack = &samples.stacks[sample.stack as usize];
///     stack.iter().map(|function| samples.functions[*function as usize].as_str()).collect()
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Samples {
    /// How long is between two samples of a thread, in nanoseconds.
    pub period: u64,
    /// How many did not fit.
    pub dropped: u64,
    /// The names of functions.
    pub functions: Vec<String>,
    /// Rows of functions, each calling the next.
    pub stacks: Vec<Vec<u32>>,
    /// The samples.
    pub samples: Vec<Sample>,
    /// The names of threads, by the system's numbers.
    pub threads: Vec<(u32, String)>,
}

/// What a thread was found doing.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Sample, Samples};
///
/// /// How many samples show a thread that computed.
/// fn computing(samples: &Samples, thread: u32) -> usize {
///     let is_it = |sample: &&Sample| sample.thread == thread && !sample.on_the_clock;
///     samples.samples.iter().filter(is_it).count()
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When.
    pub at: u64,
    /// The system's number of the thread.
    pub thread: u32,
    /// The number of the row of functions.
    pub stack: u32,
    /// It was asked as time passed, not as it computed: so also while it waited.
    pub on_the_clock: bool,
}

impl Recording {
    /// Writes it into `folder`, as `rank-<number>.json`.
    ///
    /// # Errors
    /// [`ProfileError::File`] if it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, ProfileError> {
        let path = folder.join(format!("rank-{}.json", self.facts.rank));
        let failed = |error: std::io::Error| ProfileError::file("writing", &path, &error);
        fs::create_dir_all(folder).map_err(failed)?;
        let current = Self {
            format: FORMAT,
            ..self.clone()
        };
        let text = serde_json::to_vec(&current).map_err(|error| failed(error.into()))?;
        file::replace(&path, |file| file.write_all(&text)).map_err(failed)?;
        Ok(path)
    }

    /// Reads all recordings of `folder`, in the order of the ranks.
    ///
    /// # Errors
    /// [`ProfileError::File`] if one cannot be read, [`ProfileError::NoRecordings`] if there is none, and
    /// [`ProfileError::Format`] if one is of another version.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>, ProfileError> {
        let failed =
            |path: &Path, reason: &dyn ToString| ProfileError::file("reading", path, reason);
        let none = || ProfileError::NoRecordings {
            folder: folder.to_owned(),
        };
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(none()),
            entries => entries.map_err(|error| failed(folder, &error))?,
        };
        let mut recordings: Vec<Self> = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| failed(folder, &error))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !(name.starts_with("rank-") && name.ends_with(".json")) {
                continue;
            }
            let text = file::read(&path, LONGEST).map_err(|error| failed(&path, &error))?;
            let recording: Self = serde_json::from_slice(&text)
                .map_err(|error| failed(&path, &format!("it is no recording: {error}")))?;
            if recording.format != FORMAT {
                return Err(ProfileError::Format {
                    path,
                    found: recording.format,
                    known: FORMAT,
                });
            }
            recordings.push(recording);
        }
        if recordings.is_empty() {
            return Err(none());
        }
        recordings.sort_by_key(|recording| recording.facts.rank);
        Ok(recordings)
    }

    /// When a moment of this rank was by rank 0's clock.
    pub(crate) fn common(&self, at: u64) -> i64 {
        at as i64 + self.clock_offset
    }
}

#[cfg(test)]
mod tests;
