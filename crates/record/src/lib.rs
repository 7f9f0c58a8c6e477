//! What writers and readers of a run share, without Burn: `train` writes with it; `report`, `monitor`, `profile`, the
//! command line and the benchmarks read and print with it.
//!
//! - [`file`](mod@file) writes whole files or none, and opens files without following links.
//! - [`lines`] reads the lines of a file of any length in bounded memory.
//! - [`proc`] reads what Linux reports about this machine and its processes.
//! - [`units`] formats bytes, times, counts and shares for people.
//! - [`table`] aligns columns of text.
//! - [`attempt`] catches a panic without reporting it.
//! - [`task_method`] says in which method of a task a thread is.
//! - [`invocation`] says how the program was called, for messages that name a command.
//! - [`Finding`] is a line of `doctor`.
//! - [`svg`] draws: elements, axes with round numbers, legends.
//! - [`slow_ranks`] and [`awaited_rank`] find the ranks that keep the others waiting.
//! - [`statistics`] has medians, percentiles and means of few values.
//! - [`runs_in`] lists the runs in a folder, [`is_run`] recognises one, [`name_of_run`] returns its name, [`Place`] its checkpoints by
//!   name, [`machines_of`] its number of machines, [`starts_again`] how to start it again, [`folder_of_machine`] the folder of
//!   a machine's files, and [`checkpoints_elsewhere`] where another machine may have newer checkpoints.
//! - [`StopSignal`] asks a training to stop, or kills it.
//! - [`Owner`] names the folders and network namespaces of a process, so that those of a killed one are found.
//! - [`Saving`] marks a process that saves its work, for its launcher.
//! - [`named`] and [`serde_as_text`] give types one text in flags and files.
//! - [`plain`] makes untrusted text harmless to a terminal or a page, and hides secrets.
//!
//! Training writes some files of a run directory for its readers: [`RankLine`]s (`ranks.jsonl`), [`Event`]s
//! (`events.jsonl`), a [`ConfusionMatrix`] (`confusion.json`), its [`Environment`] (`environment.json`), and [`Live`]
//! (`live.json`) while it runs. A [`TrainingReport`] (`report.json`) is its result. `config.toml` is read as
//! [`Settings`], a line of `metrics.jsonl` as a [`MetricLine`].
//!
//! ```
//! use everburn_record::file;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("report.json");
//! file::write(&path, b"{}")?;
//! assert_eq!(file::read_text(&path, 1 << 20)?, "{}");
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod attempt;
pub mod cgroup;
mod confusion;
mod environment;
mod event;
pub mod file;
mod finding;
pub mod invocation;
pub mod lines;
mod live;
mod metric_line;
mod number;
mod owner;
mod place;
pub mod plain;
pub mod proc;
mod ranges;
mod rank_line;
mod runs;
mod saving;
mod settings;
mod sharding_report;
mod slow_rank;
pub mod statistics;
mod stop;
pub mod svg;
pub mod sync;
pub mod table;
pub mod task_method;
mod text;
mod time;
mod training_report;
pub mod units;

pub use confusion::ConfusionMatrix;
pub use environment::Environment;
pub use event::{Event, EventKind};
pub use finding::{Finding, Verdict, filled};
pub use live::{Live, LiveRank, Phase, ProcessMetrics, Waits};
pub use metric_line::{MetricKind, MetricLine, StepCost};
pub use number::{number_or_nan, numbers_or_nan};
pub use owner::Owner;
pub use place::{NotAPlace, Place};
pub use ranges::{located, ranges, ranks};
pub use rank_line::{RankLine, RankStep};
pub use runs::{
    RUNS, checkpoints_elsewhere, folder_of_first_machine, folder_of_machine, has_checkpoint,
    is_run, machines_of, name_of_run, runs_in, starts_again,
};
pub use saving::Saving;
pub use settings::Settings;
pub use sharding_report::{HeldBytes, ShardingReport};
pub use slow_rank::{RankLoad, awaited_rank, slow_ranks};
pub use stop::{EXIT_INTERRUPTED, StopSignal, stopped_on_request};
pub use time::{unix_time, unix_time_ms};
pub use training_report::{BestEpoch, OuterReport, TrainingReport, Versions};

#[cfg(test)]
mod tests;
