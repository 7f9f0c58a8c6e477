use clap::Parser;
use everburn_tests::AssertContains;

use super::*;
use crate::collectives::rows::tests::measured as of_tests;
use crate::peers::FoundPeer;
use crate::quantity::Bytes;

fn measured(ranks: usize, transport: &str, bytes: u64) -> CollectiveMeasurement {
    let gloo: &[&[f64]] = &[&[400.0; 5]];
    let peers = [(Peer::Gloo, gloo)];
    let mut measured = of_tests(transport, &[&[100.0; 5]], &peers, Ground::default());
    measured.way.ranks = ranks;
    measured.task.bytes = Bytes(bytes);
    measured
}

fn found(peer: Peer) -> FoundPeer {
    FoundPeer::of_tests(peer, "MPI 2")
}

#[test]
fn repetitions_are_those_of_the_reference() {
    let sizes = [1 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20, 4 << 30];
    assert_eq!(sizes.map(repeats), [2000, 2000, 152, 6, 5, 5]);
}

#[test]
fn a_panel_has_each_curve_once() {
    let mut all = Vec::new();
    for ranks in [2, 4] {
        for bytes in [1 << 10, 1 << 20] {
            all.extend(["shm", "tcp"].map(|transport| measured(ranks, transport, bytes)));
        }
    }
    for line in &mut all {
        let times = Times(vec![vec![200.0; 5]]);
        let peer = Peer::Mpi;
        line.peers.push(PeerTimes { peer, times });
    }
    let panels = panels(&all, &[found(Peer::Gloo), found(Peer::Mpi)]);
    let titles: Vec<_> = panels.iter().map(|panel| panel.title.as_str()).collect();
    assert_eq!(titles, ["all_reduce, 2 ranks", "all_reduce, 4 ranks"]);
    for panel in &panels {
        let names: Vec<_> = panel
            .curves
            .iter()
            .map(|curve| curve.name.as_str())
            .collect();
        assert_eq!(names, ["shm", "gloo of pytorch MPI 2", "MPI 2", "tcp"]);
        assert!(panel.curves.iter().all(|curve| curve.points.len() == 2));
    }
    let gloo = &panels[0].curves[1];
    assert!(gloo.peer);
    assert_eq!(gloo.points[0], (1 << 10, 1024.0 / 400.0 / 1e3));
}

#[test]
fn the_slowest_rank_is_what_the_others_wait_for() {
    let answer = |rate: f64| json!({ "bytes_per_second": rate });
    assert_eq!(slowest(&[json!({}), answer(3.0), answer(2.0)]), Ok(2.0));
    assert!(slowest(&[json!({}), answer(0.0)]).is_err());
    assert!(slowest(&[]).is_err());
}

#[test]
fn progress_names_the_line_and_its_peer() {
    let line = progress(&measured(2, "shm", 1_000_000));
    assert_eq!(
        line,
        "[2 ranks, shm, auto] all_reduce 1000000: 100 us, 10.000 GB/s  (gloo 400 us, 2.500 GB/s)"
    );
}

#[test]
fn the_notes_name_what_bounds_an_exchange() {
    let options = CollectivesBench::parse_from(["bench collectives"]);
    let mut large = measured(2, "shm", 1 << 20);
    large.ground.add_copies(11e9, 9.5e9);
    large.ground.add_copies(12e9, 8e9);
    let results = CollectiveResults {
        measured: vec![measured(2, "shm", 1 << 10), large.clone(), large],
        ..CollectiveResults::default()
    };
    let alone = notes(&results, &options, &[]);
    alone.assert_contains([
        "memcpy of 1M: 12.000 GB/s by one rank, 9.500 GB/s by each of 2 at once",
    ]);
    alone.assert_contains(["all_reduce\n         2(n-1)/n x bytes (flat"]);
    assert_eq!(alone.matches("memory:").count(), 1, "{alone}");
    assert!(!alone.contains("peer:"), "{alone}");
    let peers = [found(Peer::Mpi), found(Peer::Gloo)];
    let beside = notes(&results, &options, &peers);
    beside.assert_contains([
        "peer:    MPI 2, in the same rounds by the same rules; ours/mpi is",
        "peer:    gloo of pytorch MPI 2",
        "\"ours/fastest\"",
    ]);
    let one = notes(&results, &options, &peers[..1]);
    assert!(!one.contains("fastest"), "{one}");
}
