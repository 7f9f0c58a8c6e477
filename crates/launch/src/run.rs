//! A program that starts its own ranks, in one call.

use std::error::Error;
use std::process::ExitCode;

use everburn_collectives::rendezvous::variable;

use crate::config::LaunchConfig;
use crate::environment::RankEnvironment;
use crate::error::{LaunchError, RankEnvironmentError};
use crate::launcher::Launcher;
use crate::outcome::Outcome;
use crate::rank::{Rank, say};

/// The exit code where nothing was started: what was asked for cannot be done.
const EXIT_USAGE: u8 = 2;

/// Does `work` on `ranks` ranks, each a process of this program, and yields the exit code for `main`.
///
/// The same program plays both parts. Started by a user it is the [`Launcher`]: it starts itself `ranks` times,
/// with the arguments that it was given, and stays until the last rank has ended. Started by a launcher it is a
/// rank, and does the work. That launcher may also be `torchrun`, `srun`, `mpirun` or whatever else
/// [`RankEnvironment::detect`] finds; then it says how many ranks there are, and `ranks` does not count. One rank
/// needs no launcher: the work is done in the process that the user has started.
///
/// Call it from `main`, and let `main` return what it yields. What is before and after the call happens in each
/// process, the launcher's too: read arguments there, and do all else in `work`.
///
/// ```no_run
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_launch as launch; }
/// use std::error::Error;
/// use std::process::ExitCode;
///
/// use everburn::collectives::group::ReduceOp;
///
/// fn main() -> ExitCode {
///     everburn::launch::run(2, |rank| -> Result<(), Box<dyn Error>> {
///         let group = rank.group()?; // all ranks meet here
///         let sum = group.all_reduce(vec![rank.rank() as i64], ReduceOp::Sum).wait()?;
///         println!("rank {} of {}: the sum is {}", rank.rank(), rank.world_size(), sum[0]);
///         Ok(())
///     })
/// }
/// ```
///
/// # How it ends
/// - All ranks have returned `Ok`: [`ExitCode::SUCCESS`].
/// - A rank fails: the others are notified at once, have 5 s to end, and are ended then. The launcher prints which
///   rank failed first, with its error, the end of its log and what became of the others, and yields its exit
///   code, which is never 0. The logs are kept then, in a folder for temporary files that the message names.
/// - Ctrl-C or SIGTERM at the launcher: each rank gets SIGTERM, which ends it unless it listens
///   ([`listen_for_stop`](crate::listen_for_stop)); the code is 128 + the signal's number.
/// - The launcher is killed: the kernel ends the ranks.
///
/// # Errors
/// An error is printed to standard error, and makes the exit code:
/// - of `work`: 1; where it comes from a [`CollectiveError`](everburn_collectives::group::CollectiveError), also by
///   its [`source`](Error::source), [`EXIT_PEER_LOST`](crate::EXIT_PEER_LOST) if another rank is to blame, and
///   [`EXIT_STALLED`](crate::EXIT_STALLED) if another rank did not answer in time; where the store is lost while ranks
///   meet, [`EXIT_UNAVAILABLE`](crate::EXIT_UNAVAILABLE);
/// - of the launcher ([`LaunchError`], as for 0 ranks) or of the environment ([`RankEnvironmentError`]): 2, and
///   nothing was done.
///
/// # Panics
/// With `work`. The process of the rank ends with 101, and the launcher prints the panic with the rank.
#[doc(alias = "spawn")]
#[doc(alias = "torch.multiprocessing")]
pub fn run<E>(ranks: usize, work: impl FnOnce(&Rank) -> Result<(), E>) -> ExitCode
where
    E: Into<Box<dyn Error>>,
{
    match rank_of_this_process(ranks) {
        Err(error) => refuse(&error),
        Ok(None) => launch(ranks).unwrap_or_else(|error| refuse(&error)),
        Ok(Some(rank)) => match work(&rank) {
            Ok(()) => rank.finish(),
            Err(error) => {
                let error: Box<dyn Error> = error.into();
                rank.fail(&*error)
            }
        },
    }
}

/// The rank that this process is; `None` if it is to launch others.
fn rank_of_this_process(ranks: usize) -> Result<Option<Rank>, RankEnvironmentError> {
    let environment = match RankEnvironment::detect(variable) {
        // Half of a launcher's variables. The program says itself that it is to launch.
        Err(RankEnvironmentError::NoRank { .. }) => None,
        found => found?,
    };
    match environment {
        Some(environment) => Rank::begin(environment).map(Some),
        None => Ok((ranks == 1).then(Rank::alone)),
    }
}

/// Starts this program once per rank, and returns when all have ended.
fn launch(ranks: usize) -> Result<ExitCode, LaunchError> {
    let system = |operation| move |source| LaunchError::System { operation, source };
    let program = std::env::current_exe().map_err(system("find its own program"))?;
    let logs = tempfile::Builder::new().prefix("everburn-").tempdir();
    let logs = logs.map_err(system("make a folder for the logs of its ranks"))?;
    let config = LaunchConfig {
        args: std::env::args_os().skip(1).collect(),
        ..LaunchConfig::new(program, ranks, logs.path())
    };
    let outcome = Launcher::new(config).run()?;
    if !matches!(outcome, Outcome::Succeeded) {
        say(&outcome);
    }
    if matches!(outcome, Outcome::Failed(_)) {
        // The message has just named them.
        drop(logs.keep());
    }
    Ok(ExitCode::from(&outcome))
}

fn refuse(error: &dyn Error) -> ExitCode {
    say(&format!("error: {error}"));
    ExitCode::from(EXIT_USAGE)
}
