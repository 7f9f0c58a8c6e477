//! A rank of an elastic job that trains nothing: it is in groups, and says in which.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use everburn_collectives::elastic::{ElasticError, ElasticOptions, Membership};
use everburn_collectives::rendezvous::{RendezvousError, RendezvousRequest};
use everburn_launch::{ElasticLaunch, RankEnvironment, ReportKind};

pub const MIN: &str = "TEST_ELASTIC_MIN";
pub const BACKOFF: &str = "TEST_ELASTIC_BACKOFF";

/// The arguments of the launcher's process.
pub fn from_environment(ranks: usize) -> Option<ElasticLaunch> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let min = usize::try_from(number(MIN)?).unwrap();
    Some(ElasticLaunch {
        backoff: Duration::from_millis(number(BACKOFF)?),
        ..ElasticLaunch::new(min, ranks)
    })
}

/// Writes `pid.SLOT.PROCESS`, and `round.SLOT.PROCESS` with the slots of each round. Ends well once there
/// is a file `done`; joins again when somebody waits, a member has ended, or there is a new file `leave`.
pub fn be_rank(rank: &RankEnvironment) -> ! {
    let folder = PathBuf::from(std::env::var("DIR").unwrap());
    let (slot, incarnation) = (rank.rank, rank.incarnation);
    let write = |name: &str, line: String| {
        let unfinished = folder.join(format!("{name}.{slot}.new"));
        fs::write(&unfinished, line + "\n").unwrap();
        let finished = folder.join(format!("{name}.{slot}.{incarnation}"));
        fs::rename(unfinished, finished).unwrap();
    };
    write("pid", std::process::id().to_string());
    let options = ElasticOptions {
        patience: Duration::from_millis(500),
        node: rank.node_rank,
        ranks_per_machine: Some(rank.local_world_size),
        ..ElasticOptions::new(rank.elastic.unwrap(), slot, incarnation)
    };
    let membership = Membership::connect("env://", RendezvousRequest::default(), options);
    let fail = |error: ElasticError| -> ! {
        rank.report(ReportKind::Own, None, &error.to_string());
        // As one of other flags, where that is so.
        let differs = matches!(
            error,
            ElasticError::Rendezvous(RendezvousError::ElasticMismatch { .. })
        );
        std::process::exit(if differs { 2 } else { 1 })
    };
    let mut membership = membership.unwrap_or_else(|error| fail(error));
    let end_if_done = || {
        if folder.join("done").exists() {
            rank.report_finished();
            std::process::exit(0)
        }
    };
    let mut has_left = folder.join("leave").exists();
    loop {
        // The others may have ended in the moment between the last look and that at the members.
        end_if_done();
        let round = match membership.join(0) {
            Ok(round) => round,
            Err(ElasticError::Finished) => {
                rank.report(ReportKind::NotNeeded, None, "");
                std::process::exit(0)
            }
            Err(error) => fail(error),
        };
        let slots: Vec<_> = round.members.iter().map(|it| it.slot.to_string()).collect();
        write("round", slots.join(" "));
        let store = round.rendezvous().store;
        super::wait_until("the end of a round", || {
            end_if_done();
            if !has_left && folder.join("leave").exists() {
                has_left = true;
                return true;
            }
            membership.has_pending_members().unwrap() || store.check(&["nothing"]).is_err()
        });
    }
}
