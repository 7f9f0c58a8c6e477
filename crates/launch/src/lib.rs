//! One process a rank on this machine: started together, watched together, ended together.
//!
//! # The two sides
//! - The **launcher's** side: a [`LaunchConfig`] goes into a [`Launcher`], whose
//!   [`run`](Launcher::run) starts the ranks, hosts their store, and returns an [`Outcome`] once
//!   every one of them has ended. Nothing here depends on what the ranks do.
//! - The **rank's** side: [`RankEnvironment`] reads what the launcher handed on, guards against
//!   outliving it and reports errors to it; [`StopRequest`] says when to stop after this step.
//!
//! The two talk through environment variables ([`variables`]; the names that PyTorch's launcher
//! uses, so that ranks also run under `torchrun`, and a few of our own), one report a rank
//! ([`RankReport`]), and exit codes ([`EXIT_PEER_LOST`]). [`RankEnvironment::detect`] also knows the
//! variables of `srun`, `mpirun` and Kubernetes jobs ([`StartedBy`]).
//!
//! Both in one call is [`run`]: the program starts itself once a rank, and each [`Rank`] does the work that it was
//! handed.
//!
//! # What the launcher promises
//! - A job has succeeded only where its ranks have said so themselves: with exit code 0 *and* a report
//!   ([`RankEnvironment::report_finished`]). Neither an exit code alone nor anything in a store is enough.
//! - It waits for *any* rank, never in rank order. After the first failure the others have
//!   [`LaunchConfig::grace`] to end by themselves, then get SIGTERM, then SIGKILL.
//! - The failure shown is that of the first rank which failed by itself, not of those which only
//!   lost a peer, however early these ended.
//! - No rank outlives it, whatever signal ends it, SIGKILL included (the rank's side has to call
//!   [`RankEnvironment::guard_against_orphaning`] for the latter).
//! - SIGINT or SIGTERM at the launcher asks all ranks once, by SIGTERM, to stop after their step;
//!   a second one ends them at once.
//!
//! # Elastic jobs
//! With [`LaunchConfig::elastic`] a failure does not end the job: the rank is started again, after a pause that
//! grows, up to [`ElasticLaunch::max_restarts`] times, and the others go on meanwhile (by
//! [`everburn_collectives::elastic`]). A process that the others have gone on without is killed first. A rank
//! that refuses its arguments (exit code 2) is not started again. When fewer than [`ElasticLaunch::min`] ranks
//! can ever be there, the job ends as after a failure; when one rank has ended well, nobody is restarted, and the
//! others have [`LaunchConfig::stop_patience`] to end well too.
//!
//! # Other children
//! A program that runs others without making ranks of them (a benchmark, `doctor`, `soak`) has [`Children`], which
//! end with it, and [`WorkerPool`]s of them.
//!
//! # What is deliberately absent
//! Agreeing with the launchers of other machines, but by the store of an elastic job, and any knowledge of
//! training.

mod cause;
mod children;
mod config;
mod environment;
mod error;
mod event;
mod exit;
mod failure;
mod foreign;
mod launcher;
mod origin;
mod orphan;
mod outcome;
mod output;
mod rank;
mod ranks;
mod run;
mod stop;
mod supervisor;
mod terminal;

pub use children::{ChildError, Children, EndedChild, WorkerPool, forget_ranks, last_lines};
pub use config::{ElasticLaunch, LaunchConfig};
pub use environment::{RankEnvironment, variables};
pub use error::{JoinError, LaunchError, RankEnvironmentError};
pub use event::LaunchEvent;
pub use exit::{EXIT_FAILS_AGAIN, EXIT_PEER_LOST, EXIT_STALLED, RankExit};
pub use failure::{RankReport, ReportKind, write_report};
pub use launcher::{HostedStore, Launcher};
pub use origin::{Origin, StartedBy};
pub use outcome::{EndedRank, JobFailure, Outcome, Restart};
pub use rank::Rank;
pub use ranks::keep_freed_memory;
pub use run::run;
pub use stop::StopRequest;
