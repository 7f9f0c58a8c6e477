//! What the tests with real processes need: the `everburn` binary, jobs with a deadline, and eyes
//! for what a run leaves behind.
//!
//! - [`Everburn`] is a command line of the binary, in a folder and an environment of its own;
//! - [`Job`] is such a command that runs: its ranks can be found and signalled, conditions waited
//!   for, and nothing of it survives its drop;
//! - [`Ended`] is how it ended: code, standard output, standard error;
//! - [`assert_refused`] demands that trainings are refused;
//! - [`AssertContains`] demands parts of a text, [`assert_matches`] a pattern of a value;
//! - [`Etcd`] is an etcd of three members, which can be killed one by one;
//! - [`HttpServer`] answers requests as a test decides;
//! - [`in_parallel`] runs the ranks of a test as threads, and [`Meeting`] is where they meet;
//! - [`Run`] reads the run directory, [`json_lines`] what has a JSON object on each line;
//! - [`Siege`] is what a process without the job's secret could do to it;
//! - [`Talker`] is a process whose lines a test reads;
//! - [`tar`] writes tar files;
//! - [`Terminal`] is a shell in tmux, for what only a terminal shows.
//!
//! # Rules
//! - Every wait has a deadline and looks for evidence; nothing sleeps and hopes.
//! - No fixed ports, and nothing outside the test's own folder is written.
//! - What cannot be tried on this machine is [skipped visibly](skip), never silently green.

mod contains;
mod etcd;
mod everburn;
mod http;
mod job;
mod meeting;
mod port;
mod processes;
mod run;
mod skip;
mod stranger;
mod talker;
pub mod tar;
mod terminal;
mod threads;
mod wait;

pub use contains::{AssertContains, lookup, words_of};
pub use etcd::Etcd;
pub use everburn::{Everburn, NO_PRESET, SMALL, TOKEN, assert_refused, binary};
pub use http::{HttpAnswer, HttpRequest, HttpServer};
pub use job::{Ended, Job};
pub use meeting::Meeting;
pub use port::{free_port, on_a_free_port};
pub use processes::{Process, StoppedProcess};
pub use run::{Run, json_lines};
pub use skip::{data_folder, skip, skip_missing};
pub use stranger::{Attack, Siege};
pub use talker::Talker;
pub use terminal::Terminal;
pub use threads::in_parallel;
pub use wait::{DEADLINE, ORPHAN_DEADLINE, holds_within};
