//! Many ranks on few cores.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use everburn_collectives::store::{StoreOptions, TcpStoreServer};
use everburn_launch::{Launcher, Outcome};

use crate::process::{DEADLINE, crowd, rank_job};

/// `ranks` processes meet, connect, add up and leave.
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
    assert!(matches!(outcome, Outcome::Succeeded), "{outcome}");
    let server = receiver.recv_timeout(DEADLINE).unwrap();
    let numbers = crowd::numbers(folder.path(), ranks);
    eprintln!(
        "{}",
        crowd::table(&numbers, server.requests(), begin.elapsed())
    );
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

#[test]
#[ignore = "for comparison with the larger crowds"]
fn sixty_four_ranks_meet_add_up_and_leave() {
    crowd_of(64);
}
