//! Monitoring of running and finished runs: from any terminal, from other machines, any number of monitors at once.
//! Without Burn.
//!
//! A training writes its state into its folder, so a monitor on the same machine (or disk) needs no server: it follows
//! the files. For other machines a small server sends the same, to monitors with the job token. Another one serves the
//! run's figures to Prometheus.
//!
//! The main types, in the order in which a program uses them:
//!
//! 1. [`MonitorCommand`]: the command line. [`Target`]: a folder, or `HOST:PORT`.
//! 2. [`Source`]: a run that is followed ([`RunTail`], or a connection to a [`MonitorServer`]); it returns [`Update`]s.
//! 3. [`RunState`]: the state of the run, in bounded memory, and of each rank ([`RankState`]).
//! 4. [`draw_ranks`]: draws it, as a pure function of state, [`RanksView`] and size.
//! 5. [`Screen`]: a terminal shared by burn-train's dashboard and the table of ranks. `crates/train` feeds it during a
//!    training, `everburn monitor` otherwise.
//! 6. [`print_json`]: the same for programs. [`PrometheusServer`]: figures by HTTP.
//!
//! ```
//! use everburn_monitor::{RanksView, RunState, Target, draw_ranks};
//! use ratatui::{buffer::Buffer, layout::Rect};
//!
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("config.toml"), "model = 'mnist'").unwrap();
//! let mut source = Target::Folder(folder.path().into()).open(None)?;
//! let mut state = RunState::default();
//! for update in source.poll() {
//!     state.take(&update, 0);
//! }
//! let area = Rect::new(0, 0, 100, 30);
//! let mut buffer = Buffer::empty(area);
//! draw_ranks(&state, RanksView::default(), area, &mut buffer);
//! let first: String = (0..20).map(|x| buffer[(x, 0)].symbol()).collect();
//! assert!(first.contains("mnist"));
//! # Ok::<(), everburn_monitor::MonitorError>(())
//! ```
//!
//! # What is deliberately absent
//! Control of a run, encryption, and burn-train.

mod command;
mod error;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod listening;
mod prometheus;
mod screen;
mod server;
mod source;
mod state;
mod tail;
mod update;
mod view;
mod wire;

pub use command::{MonitorCommand, print_json};
pub use error::MonitorError;
pub use prometheus::PrometheusServer;
pub use screen::{Purpose, Screen, is_terminal};
pub use server::MonitorServer;
pub use source::{Source, Target};
pub use state::{Column, History, RankState, RankStatus, RunState};
pub use tail::RunTail;
pub use update::Update;
pub use view::{RanksView, draw_ranks};
