//! Starts one process per rank on this machine, watches them, and ends them together.
//!
//! # The two sides
//! - The **launcher's** side: a [`LaunchConfig`] goes into a [`Launcher`], whose [`run`](Launcher::run) starts the
//!   ranks, hosts their store (or uses one in etcd, [`LaunchConfig::store`]), and returns an [`Outcome`] once all of them have ended. Nothing here depends on what the
//!   ranks do.
//! - The **rank's** side: [`RankEnvironment`] reads the launcher's variables, guards against outliving the launcher,
//!   and reports errors to it; [`listen_for_stop`] says when to stop after the current step.
//!
//! They communicate through environment variables ([`variables`]: those of PyTorch's launcher, so that ranks also run
//! under `torchrun`, and a few of Everburn), one report per rank ([`RankReport`]), and exit codes ([`EXIT_PEER_LOST`]).
//! [`RankEnvironment::detect`] also reads the variables of `srun`, `mpirun` and Kubernetes jobs ([`StartedBy`]).
//!
//! [`run`] does both in one call: the program starts one process of itself per rank, and each [`Rank`] runs the given
//! function.
//!
//! # What the launcher promises
//! - A job has succeeded only if its ranks have reported it: with exit code 0 *and* a report
//!   ([`RankEnvironment::report_finished`]). Neither an exit code alone nor anything in a store is enough.
//! - It waits for *any* rank, never in rank order. After the first failure the others have
//!   [`LaunchConfig::grace`] to end by themselves, then get SIGTERM, then SIGKILL.
//! - The failure shown is that of the first rank that failed by itself, not of ranks that only
//!   lost a peer, even if these ended earlier.
//! - No rank outlives it, whatever signal ends it, SIGKILL included (for SIGKILL the rank must call
//!   [`RankEnvironment::guard_against_orphaning`]).
//! - SIGINT or SIGTERM at the launcher asks all ranks once, by SIGTERM, to stop after their step;
//!   a second one ends them at once. So do SIGUSR1, SIGUSR2, and SIGHUP unless the launcher was started to ignore it, as by `nohup`.
//!
//! # Elastic jobs
//! With [`LaunchConfig::elastic`] a failure does not end the job: the rank is restarted, at once or after a growing pause, up to
//! [`ElasticLaunch::max_restarts`] times, while the others continue ([`everburn::collectives::elastic`](everburn_collectives::elastic)). A process that
//! the others have continued without is killed first. A rank that refuses its arguments (exit code 2) is not restarted.
//! When fewer than [`ElasticLaunch::min`] ranks can ever be running, the job ends as after a failure; when one rank has
//! finished, no rank is restarted, and the others have [`LaunchConfig::stop_patience`] to finish too.
//!
//! # Other children
//! A program that runs other programs which are not its ranks (a benchmark, `doctor`, `soak`) uses [`Children`], which
//! end with it, and [`WorkerPool`]s of them.
//!
//! # What is deliberately absent
//! Coordination with the launchers of other machines, except through the store of the job, and anything about training.

mod cause;
mod children;
mod config;
mod early_stop;
mod ended_alike;
mod environment;
mod error;
mod event;
mod exit;
mod failure;
mod foreign;
mod job_failure;
mod job_store;
mod launcher;
mod lost_machine;
#[doc(hidden)]
pub mod network;
mod origin;
mod orphan;
mod outcome;
mod output;
mod panic_place;
mod rank;
mod rank_log;
mod ranks;
mod run;
#[doc(hidden)]
pub mod simulation;
mod stop;
mod supervisor;
mod terminal;

pub use children::{
    ChildError, Children, EndedChild, Said, StartedChild, WorkerPool, forget_ranks,
};
pub use config::{ElasticLaunch, LaunchConfig};
pub use early_stop::{EarlyStop, signals_to_hear};
pub use environment::{RankEnvironment, variables};
pub use error::{JoinError, LaunchError, RankEnvironmentError};
pub use event::LaunchEvent;
pub use exit::{
    EXIT_FAILS_AGAIN, EXIT_PANIC, EXIT_PEER_LOST, EXIT_STALLED, EXIT_UNAVAILABLE, RankExit,
};
pub use failure::{RankReport, ReportKind, write_report};
pub use job_failure::JobFailure;
pub use launcher::{HostedStore, Launcher};
pub use lost_machine::LostMachine;
pub use origin::{Origin, StartedBy};
pub use outcome::{EndedRank, Expulsion, Outcome, Restart};
pub use panic_place::PanicPlaces;
pub use rank::Rank;
pub use ranks::keep_freed_memory;
pub use run::run;
pub use stop::listen_for_stop;
