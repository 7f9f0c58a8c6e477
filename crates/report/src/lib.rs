//! Reports of run directories as one HTML file, and comparisons of several runs. Without Burn: a run is the files in
//! its folder.
//!
//! - [`Run::read`] reads a folder in bounded memory, however long the run was: a curve is a [`Series`], decimated as it
//!   is read. Missing or damaged files are [`Note`]s, not errors.
//! - [`Run::to_html`] makes the report; [`write_report`] reads a run and writes it.
//! - [`Comparison`] compares runs, as text and as HTML; [`compare`] does all of it.
//! - [`ReportCommand`] and [`CompareCommand`] are their command lines.
//!
//! A training writes some files only for its report, which `everburn_record` describes. All of them may be missing;
//! events are then found in logs and checkpoints.
//!
//! ```
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("config.toml"), "model = 'mnist'").unwrap();
//! let line = r#"{"kind":"step","epoch":1,"step":10,"loss":2.25,"accuracy":0.125,"samples":24,"seconds":0.0625}"#;
//! std::fs::write(folder.path().join("metrics.jsonl"), format!("{line}\n")).unwrap();
//!
//! let report = everburn_report::write_report(folder.path(), None)?;
//! assert_eq!(report, folder.path().join("report.html"));
//! assert!(std::fs::read_to_string(report).unwrap().starts_with("<!DOCTYPE html>"));
//! # Ok::<(), everburn_report::ReportError>(())
//! ```
//!
//! # What is deliberately absent
//! A template engine, third-party scripts, and network access: the file must still open in ten years.

mod chart;
mod clock;
mod command;
mod comparison;
mod decimation;
mod error;
mod page;
mod run;
mod writing;

pub use command::{CompareCommand, ReportCommand};
pub use comparison::{Comparison, compare};
pub use decimation::{Point, Series};
pub use error::ReportError;
pub use run::{
    Curve, EpochMetrics, Events, Grid, Metrics, Note, Quantity, RankTimes, RankTotal, Run,
};
pub use writing::write_report;
