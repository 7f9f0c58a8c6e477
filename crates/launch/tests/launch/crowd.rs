//! Many ranks on few cores.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use everburn_collectives::store::{StoreOptions, TcpStoreServer};
use everburn_launch::{Launcher, Outcome};
use everburn_tests::assert_matches;

use crate::process::{DEADLINE, crowd, rank_job};

/// `ranks` processes meet, connect, add up and leave.
#[expect(
    clippy::print_stderr,
    reason = "the figures of docs/scale.md, for --nocapture"
)]
fn crowd_of(ranks: usize) {
    let folder = tempfile::tempdir().unwrap();
    let config = rank_job(folder.path(), ranks, "crowd");
    let (sender, receiver) = mpsc::channel();
    let launcher = Launcher::new(config).host_store_with(move |listener, access| {
        let server = TcpStoreServer::from_listener(listener, StoreOptions::new(access));
        let server = Arc::new(server.map_err(|error| error.to_string())?);
        sender.send(server.clone()).unwrap();
        Ok(Box::new(server))
    });
    let begin = Instant::now();
    let outcome = launcher.run().unwrap();
    assert_matches!(outcome, Outcome::Succeeded);
    let server = receiver.recv_timeout(DEADLINE).unwrap();
    let numbers = crowd::numbers(folder.path(), ranks);
    let table = crowd::table(&numbers, server.requests(), begin.elapsed());
    eprintln!("{table}");
    for of_rank in numbers {
        let [.., threads, kibibytes] = of_rank[..] else {
            panic!("{of_rank:?}");
        };
        assert!(threads <= 8 && kibibytes <= 25 << 10, "{table}");
    }
}

#[test]
fn a_hundred_and_twenty_eight_ranks_meet_add_up_and_leave() {
    crowd_of(128);
}

#[test]
#[ignore = "256 processes: a minute of two cores"]
fn two_hundred_and_fifty_six_ranks_meet_add_up_and_leave() {
    crowd_of(256);
}
