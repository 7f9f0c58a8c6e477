//! Stalled ranks are named by all other ranks.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use everburn_collectives::group::{
    CollectiveError, FlightEntry, FlightState, ProcessGroup, ReduceOp,
};
use everburn_collectives::heartbeat::{Evidence, HangReport, HeartbeatMonitor, HeartbeatOptions};
use everburn_collectives::store::{HashStore, SharedStore};
use everburn_tests::{AssertContains, assert_matches};

use crate::harness::{GENEROUS, Meeting, WIRES, Wire, error, in_parallel, on_all_ranks, options};

/// An interval so long that beats are published only on request and none counts as late.
const SELDOM: Duration = GENEROUS;

/// The timeout of an operation that is known to wait for a rank that never calls.
const MOMENT: Duration = Duration::from_millis(100);

/// The interval where a heartbeat stops: a slower poll is ignored.
const OFTEN: Duration = Duration::from_millis(500);

/// A heartbeat timeout longer than a thread is descheduled.
const TIMEOUT: Duration = Duration::from_secs(4);

fn start_monitor(
    store: &SharedStore,
    group: &ProcessGroup,
    interval: Duration,
    timeout: Option<Duration>,
) -> HeartbeatMonitor {
    let options = HeartbeatOptions {
        interval,
        timeout,
        ..HeartbeatOptions::default()
    };
    let (rank, size) = (group.rank(), group.world_size());
    let monitor = HeartbeatMonitor::start(store.clone(), rank, size, options).unwrap();
    monitor.follow(group);
    monitor
}

/// Waits until `found` returns a value.
fn wait_for<T>(what: &str, found: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < GENEROUS, "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn wait_for_beat(store: &SharedStore, rank: usize, parts: &[&str]) {
    wait_for(&format!("{parts:?} of rank {rank}"), || {
        let beat = store.get(&format!("watch/{rank}")).unwrap();
        let beat = String::from_utf8(beat).unwrap();
        parts.iter().all(|part| beat.contains(part)).then_some(())
    });
}

/// Makes a rank publish a beat and poll the others' beats.
fn beat_and_poll(monitor: &HeartbeatMonitor, store: &SharedStore, group: &ProcessGroup) {
    let number = || {
        let beat = store.get(&format!("watch/{}", group.rank())).unwrap();
        let beat: serde_json::Value = serde_json::from_slice(&beat).unwrap();
        beat["number"].as_u64().unwrap()
    };
    // It polls between two beats.
    for _ in 0..2 {
        let before = number();
        monitor.follow(group);
        wait_for("beat", || (number() > before).then_some(()));
    }
}

/// Waits until the newest collective is in this state, for rank 1.
fn wait_for_state(group: &ProcessGroup, state: FlightState) {
    wait_for(&format!("{state:?} operation"), || {
        let entries = group.flight_record();
        let newest = entries.iter().max_by_key(|entry| entry.sequence)?;
        (newest.state == state && newest.waiting_for == [1]).then_some(())
    });
}

/// Rank 1 of 3 does one step and then never calls again; what the others report.
fn reports_of_a_rank_that_never_calls(
    wire: Wire,
    store: &SharedStore,
    log: Option<&Path>,
    before: impl Fn() + Sync,
) -> Vec<Option<HangReport>> {
    let (meeting, waiting) = (Meeting::of(3), Meeting::of(2));
    on_all_ranks(wire, 3, options(), |group| {
        let monitor = start_monitor(store, &group, SELDOM, None);
        group.set_step(49);
        group.barrier().wait().unwrap();
        beat_and_poll(&monitor, store, &group);
        meeting.wait();
        before();
        if group.rank() == 1 {
            meeting.wait();
            return None;
        }
        beat_and_poll(&monitor, store, &group);
        group.set_step(50);
        group.set_label(Some(2));
        let sum = group.all_reduce(vec![1f32; 5], ReduceOp::Sum);
        wait_for_state(&group, FlightState::Running);
        waiting.wait();
        let error = error(sum.wait_within(MOMENT));
        wait_for_state(&group, FlightState::Failed);
        // A report waits for the other's answer for a moment only, so that both begin at once.
        waiting.wait();
        let report = monitor.report(&error, &|member| {
            log.map(Path::to_owned).filter(|_| member == 1)
        });
        meeting.wait();
        Some(report.expect("a deadline has passed"))
    })
}

#[test]
fn a_rank_that_never_calls_is_named_by_all_others_with_step_operation_and_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank1.log");
    std::fs::write(&path, "reading\nthe disk is slow\n").unwrap();
    in_parallel(WIRES.to_vec(), |wire| {
        let store: SharedStore = Arc::new(HashStore::new());
        let log = Some(&*path);
        let reports = reports_of_a_rank_that_never_calls(wire, &store, log, || {});
        for report in reports.iter().flatten() {
            assert_eq!(
                (report.stalled, &*report.waiting),
                (Some(1), &[0, 2][..]),
                "{report}"
            );
            assert_eq!(report.has_called, Some(false), "{report}");
            let text = report.to_string();
            let gdb = format!("`gdb --pid {} --batch -ex ", std::process::id());
            text.assert_contains([
                    "rank 1 stalled at step 50: it has not called all_reduce(f32[5], sum) (collective 1)",
                    "in which ranks 0, 2 waited for it",
                    "its heartbeats arrive, so it is busy or stuck in other work",
                    &*gdb,
                    "rank 1: in its last beat, ",
                    "at step 49, in no operation; its last: barrier (collective 0, step 49), done",
                    "all_reduce(f32[5], sum) (collective 1, step 50, label 2), failed",
                    "it waited for rank 1",
                    "rank1.log:\n  | reading\n  | the disk is slow",
                ]);
        }
        assert_eq!(reports.iter().flatten().count(), 2);
    });
}

#[test]
fn a_rank_that_calls_after_the_others_gave_it_up_says_that_it_came_late() {
    in_parallel(WIRES.to_vec(), |wire| {
        let store: SharedStore = Arc::new(HashStore::new());
        let meeting = Meeting::of(2);
        on_all_ranks(wire, 2, options(), |group| {
            let monitor = start_monitor(&store, &group, SELDOM, None);
            group.set_step(7);
            if group.rank() == 0 {
                let error = error(group.barrier().wait_within(MOMENT));
                let report = monitor.report(&error, &|_| None).unwrap();
                assert_eq!((report.has_called, report.late), (None, None), "{report}");
                meeting.wait();
                return;
            }
            meeting.wait();
            wait_for("failure", || group.failure());
            let error = error(group.barrier().wait());
            let report = monitor.report(&error, &|_| None).unwrap();
            let text = report.to_string();
            let said = "rank 1 stalled at step 7: it came to barrier (collective 0) ";
            assert!(text.starts_with(said), "{text}");
            assert!(text.contains("raise `GroupOptions::timeout` if"), "{text}");
            assert!(!text.contains("stuck in"), "{text}");
            assert_eq!(report.has_called, Some(false), "{text}");
        });
    });
}

/// One waits for a message, and the other one in a collective.
#[test]
fn ranks_that_wait_for_each_other_in_two_calls_are_named_with_both() {
    in_parallel(WIRES.to_vec(), |wire| {
        let store: SharedStore = Arc::new(HashStore::new());
        let meeting = Meeting::of(2);
        let both = ["recv(f32", "barrier"];
        on_all_ranks(wire, 2, options(), |group| {
            let monitor = start_monitor(&store, &group, SELDOM, None);
            group.set_step(7);
            let waits = |group: &ProcessGroup| {
                let mut entries = group.flight_record().into_iter();
                let waits = |it: &FlightEntry| it.waiting_for == [1 - group.rank()];
                entries.any(|it| waits(&it)).then_some(())
            };
            let error = if group.rank() == 0 {
                let message = group.recv::<f32>(1, 3);
                wait_for("message", || waits(&group));
                meeting.wait();
                error(message.wait_within(MOMENT))
            } else {
                let barrier = group.barrier();
                wait_for("barrier", || waits(&group));
                meeting.wait();
                error(barrier.wait_within(MOMENT))
            };
            meeting.wait();
            let report = monitor.report(&error, &|_| None).unwrap();
            let text = report.to_string();
            let first = text.lines().next().unwrap();
            assert!(both.iter().all(|call| first.contains(call)), "{text}");
            let itself = report.waits_itself().unwrap();
            assert!(first.ends_with(&format!(", and {itself}")), "{text}");
            meeting.wait();
        });
    });
}

#[test]
fn a_rank_that_another_has_asked_to_give_a_sub_group_up_reports_the_hang_too() {
    let store: SharedStore = Arc::new(HashStore::new());
    let (meeting, waiting) = (Meeting::of(3), Meeting::of(2));
    let reports = on_all_ranks(Wire::Threads, 3, options(), |group| {
        let monitor = start_monitor(&store, &group, SELDOM, None);
        let gradients = group.duplicate("gradients").unwrap();
        gradients.barrier().wait().unwrap();
        if group.rank() == 1 {
            meeting.wait();
            return None;
        }
        let late = gradients.all_reduce(vec![1f32; 7], ReduceOp::Sum);
        wait_for_state(&gradients, FlightState::Running);
        waiting.wait();
        let error = match group.rank() {
            0 => error(late.wait_within(MOMENT)),
            _ => error(late.wait()),
        };
        assert_eq!(error.is_timeout(), group.rank() == 0, "{error}");
        wait_for_state(&gradients, FlightState::Failed);
        // Before rank 0, whose error says that a deadline has passed.
        if group.rank() == 2 {
            group.abort_because(&error, error.to_string());
        }
        drop(gradients);
        waiting.wait();
        let report = monitor.report(&error, &|_| None);
        meeting.wait();
        report
    });
    assert_eq!(reports.iter().flatten().count(), 2);
    for report in reports.iter().flatten() {
        let said = (report.stalled, &*report.waiting);
        assert_eq!(said, (Some(1), &[0, 2][..]), "{report}");
    }
}

#[test]
fn garbage_in_the_store_is_called_unreadable_and_harms_nobody() {
    let store: SharedStore = Arc::new(HashStore::new());
    let garbage = || {
        for key in ["watch/hang/0/0", "watch/hang/0/2", "watch/hang/0/1"] {
            store.set(key, b"\xff\x00{{{{").unwrap();
        }
    };
    let reports = reports_of_a_rank_that_never_calls(Wire::Threads, &store, None, garbage);
    assert_eq!(reports.iter().flatten().count(), 2);
    for report in reports.iter().flatten() {
        assert_eq!(report.stalled, Some(1), "{report}");
        assert_eq!(report.ranks[1].evidence, Evidence::Unreadable);
        let text = report.to_string();
        assert!(text.contains("rank 1: its report is unreadable"), "{text}");
        // Its own entry does not come from the store.
        assert_eq!(report.ranks[report.reporter].evidence, Evidence::Answer);
    }
}

#[test]
fn a_rank_of_many_without_heartbeats_is_lost_for_all_and_the_report_counts_the_rest() {
    const SIZE: usize = 40;
    let store: SharedStore = Arc::new(HashStore::new());
    let meeting = Meeting::of(SIZE);
    let printed = on_all_ranks(Wire::Threads, SIZE, options(), |group| {
        let monitor = start_monitor(&store, &group, OFTEN, Some(TIMEOUT));
        group.set_step(49);
        group.barrier().wait().unwrap();
        // The diagnosis uses its last beat.
        wait_for_beat(&store, group.rank(), &["\"step\":49", "barrier"]);
        meeting.wait();
        if group.rank() == 17 {
            monitor.stop_without_goodbye();
            meeting.wait();
            return false;
        }
        group.set_step(50);
        let error = error(group.barrier().wait());
        assert_eq!(error.lost_rank(), Some(17), "{error:?}");
        let text = error.to_string();
        text.assert_contains([
            "no heartbeat for",
            "(the last one was at step 49, in or after barrier",
        ]);
        let report = monitor.report(&error, &|_| None);
        let report = report.expect("a heartbeat timeout");
        assert_eq!(report.stalled, Some(17), "{report}");
        assert_eq!(report.ranks.len() + report.others, SIZE);
        assert!(report.others > 0, "{report}");
        let text = report.to_string();
        text.assert_contains([
            "more ranks: not asked",
            "rank 17 stalled at step 50: it has not called barrier",
        ]);
        meeting.wait();
        report.is_printed_here
    });
    assert_eq!(printed.iter().filter(|printed| **printed).count(), 1);
}

#[test]
fn one_rank_of_a_machine_reports_beside_what_comes_next_with_the_silence_of_before() {
    let store: SharedStore = Arc::new(HashStore::new());
    let meeting = Meeting::of(4);
    let (show, shown) = mpsc::channel();
    on_all_ranks(Wire::Threads, 4, options(), |group| {
        let monitor = start_monitor(&store, &group, OFTEN, Some(TIMEOUT));
        group.barrier().wait().unwrap();
        wait_for_beat(&store, group.rank(), &["barrier"]);
        meeting.wait();
        if group.rank() == 2 {
            monitor.stop_without_goodbye();
            meeting.wait();
            return;
        }
        let error = error(group.barrier().wait());
        let show = show.clone();
        let send = move |report: &HangReport| show.send(report.clone()).unwrap();
        monitor.report_in_background(&error, |_| None, send);
        // Every rank counts as heard of a moment ago from here on.
        monitor.follow(&group);
        meeting.wait();
    });
    drop(show);
    let reports: Vec<HangReport> = shown.into_iter().collect();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].stalled, Some(2), "{}", reports[0]);
    let stalled = reports[0].ranks.iter().find(|activity| activity.rank == 2);
    let silent_for = stalled.and_then(|activity| activity.silent_for);
    assert!(silent_for >= Some(TIMEOUT / 2), "{}", reports[0]);
}

#[test]
fn a_rank_that_ends_in_good_order_and_one_that_dies_are_no_hang() {
    let store: SharedStore = Arc::new(HashStore::new());
    let meeting = Meeting::of(2);
    on_all_ranks(Wire::Tcp, 2, options(), |group| {
        let monitor = start_monitor(&store, &group, OFTEN, None);
        group.barrier().wait().unwrap();
        meeting.wait();
        if group.rank() == 1 {
            drop(monitor);
            // Dropping it waits for its thread a moment only.
            wait_for_beat(&store, 1, &["\"goodbye\":true"]);
            group.sever();
            meeting.wait();
            return;
        }
        let error = error(group.barrier().wait());
        assert_matches!(error, CollectiveError::PeerLost { .. });
        assert!(monitor.report(&error, &|_| None).is_none());
        meeting.wait();
    });
}

#[test]
fn invalid_heartbeat_options_are_refused() {
    let store: SharedStore = Arc::new(HashStore::new());
    let hasty = HeartbeatOptions {
        timeout: Some(Duration::from_secs(1)),
        ..HeartbeatOptions::default()
    };
    let text = HeartbeatMonitor::start(store, 0, 1, hasty)
        .unwrap_err()
        .to_string();
    text.assert_contains(["the timeout at least twice the interval"]);
}
