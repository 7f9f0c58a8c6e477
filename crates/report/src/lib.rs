//! What a run directory says: as one HTML file, and several runs side by side. Without Burn: a run is what
//! lies in its folder.
//!
//! - [`Run::read`] reads a folder. However long the run was, what is kept is bounded: a curve is a [`Series`], decimated as
//!   it is read. What is missing or damaged is a [`Note`], and no error.
//! - [`Run::to_html`] makes the report; [`write_report`] reads a run and writes it.
//! - [`Comparison`] lays runs side by side, as text and as HTML; [`compare`] does all of it.
//! - [`ReportCommand`] and [`CompareCommand`] are the command lines of both.
//!
//! A training writes some files for its report only, which `everburn_record` describes. All of them may be missing; events
//! are then found in logs and checkpoints.
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
//! A template engine, a script of others, and any thought of the network: the file is to open in ten years.

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
    BestEpoch, Curve, EpochMetrics, Events, Grid, HeldBytes, Metrics, Note, Quantity, RankTimes,
    RankTotal, Results, Run, Settings, Sharding, Versions,
};
pub use writing::write_report;
