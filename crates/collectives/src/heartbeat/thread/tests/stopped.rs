//! Ranks that were stopped, or still are.

use std::process::Command;

use everburn_tests::{AssertContains, StoppedProcess};

use super::*;
use crate::heartbeat::report;

#[test]
fn a_rank_that_did_not_run_blames_itself() {
    let (_store, heartbeat) = heartbeat(2);
    let waited = Duration::from_secs(40);
    let slept_until = |seconds: u64| {
        lock(&heartbeat.state).sleeps_until = Some(runtime::now() - Duration::from_secs(seconds));
        heartbeat.pause_in(Some(waited))
    };
    // Not before it has slept for too long, and not for a part of the wait.
    assert_eq!(slept_until(0), None);
    assert_eq!(slept_until(10), None);
    assert!(slept_until(30).is_some_and(|pause| pause.as_secs() == 30));
    // It is known from then on, and not measured again; a wait that began after it is another matter.
    assert!(heartbeat.pause_in(Some(waited)).is_some());
    assert_eq!(heartbeat.pause_in(Some(Duration::ZERO)), None);
    assert_eq!(heartbeat.pause_in(None), None);
}

#[test]
fn a_rank_that_the_others_gave_up_while_it_did_not_run_blames_itself() {
    let options = HeartbeatOptions {
        timeout: Some(Duration::from_secs(30)),
        ..HeartbeatOptions::default()
    };
    let heartbeat = Arc::new(Heartbeat::new(Arc::new(HashStore::new()), 1, 2, options));
    let mut groups = ProcessGroup::over_threads(2, GroupOptions::default());
    let (own, other) = (groups.remove(1), groups.remove(0));
    heartbeat.follow(Followed::of(Some(&own), 1, 2));
    // It was stopped in its own work, so that its call fails at once.
    other.abort("rank 1 was given up");
    let error = own.barrier().wait().unwrap_err();
    let report = || report::report(&heartbeat, &error, &|_| None);
    assert!(report().is_none());
    let slept_until = |seconds: u64| {
        lock(&heartbeat.state).sleeps_until = Some(runtime::now() - Duration::from_secs(seconds));
    };
    slept_until(20);
    assert!(report().is_none(), "the others wait longer");
    // They count from its last beat, an interval earlier perhaps, and find a new one an interval later.
    slept_until(28);
    let report = report().expect("it did not run");
    assert_eq!(report.stalled_member(), Some(1), "{report}");
    let text = report.to_string();
    assert!(text.starts_with("rank 1 itself has not run"), "{text}");
}

#[test]
fn how_long_a_pause_must_be_follows_the_heartbeat_timeout() {
    let after = |timeout: u64| {
        let timeout = Duration::from_secs(timeout);
        let options = HeartbeatOptions {
            interval: (timeout / 4).min(HeartbeatOptions::default().interval),
            timeout: Some(timeout),
            ..HeartbeatOptions::default()
        };
        let heartbeat = Heartbeat::new(Arc::new(HashStore::new()), 1, 2, options);
        let after = heartbeat.given_up_after().unwrap();
        lock(&heartbeat.state).sleeps_until = Some(runtime::now() - after);
        assert!(heartbeat.pause_in(None) >= Some(after));
        after.as_secs()
    };
    // Less than it by the two intervals, and a busy machine alone is no reason.
    assert_eq!([60, 10, 4, 1].map(after), [58, 8, 2, 1]);
}

#[test]
fn a_rank_that_is_still_stopped_is_named_and_not_the_one_that_was_continued() {
    let stopped = StoppedProcess::start(Command::new("sleep").arg("600"));
    let (store, heartbeat) = heartbeat(4);
    let followed = Followed::of(None, 1, 4);
    heartbeat.follow(followed.clone());
    let host = heartbeat.host.clone().unwrap();
    // All beats have just come, that of rank 2 from a machine on which another process has the number.
    for (member, pid, host) in [
        (0, std::process::id(), &*host),
        (2, stopped.id(), "elsewhere"),
        (3, stopped.id(), &*host),
    ] {
        let beat = Beat {
            life: 1,
            number: 1,
            pid: Some(pid),
            host: Some(host.to_owned()),
            ..Beat::default()
        };
        store.set(&beat_key(member), &beat.encode()).unwrap();
    }
    heartbeat.poll().unwrap();
    assert_eq!(heartbeat.known_stopped(), [3]);
    let mut reports = last_beats(&heartbeat, &followed);
    reports[1] = RankReport::answer(Beat {
        waiting_for: vec![2],
        stopped: heartbeat.known_stopped(),
        ..heartbeat.beat_of(Some(&followed))
    });
    let report = diagnose(&heartbeat, &followed, &reports, &|_| None);
    let text = report.to_string();
    assert_eq!(report.stalled, Some(3), "{text}");
    let pid = stopped.id();
    let what =
        format!("it was stopped (SIGSTOP, pid {pid} on {host}), and the others have given it up");
    assert!(text.contains(&what), "{text}");
    text.assert_contains(["started by hand stays stopped until it is killed"]);
    assert!(!text.contains("kill -CONT"), "{text}");
    let beat_of = |host: &str| Beat {
        pid: Some(pid),
        host: Some(host.to_owned()),
        ..Beat::default()
    };
    let early = heartbeat.how_to_continue(&beat_of(&host));
    early.assert_contains([&format!("`kill -CONT {pid}` on this machine")]);
    assert_eq!(heartbeat.how_to_continue(&beat_of("elsewhere")), "");
    assert!(!text.contains("heartbeats arrive"), "{text}");
    let paused = HangReport {
        own_pause: Some(Duration::from_secs(47)),
        ..report
    };
    let text = paused.to_string();
    let first = text.lines().next().unwrap();
    assert!(first.contains("; rank 3 was stopped (SIGSTOP,"), "{text}");
}
