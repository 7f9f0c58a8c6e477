//! Ranks that are stopped.

use everburn_launch::variables;
use everburn_tests::StoppedProcess;

use super::*;

#[test]
fn a_run_all_of_whose_ranks_are_stopped_is_found_until_it_continues() {
    let (runs, run) = one_run();
    let text = "all ranks of this machine are stopped: `kill -CONT 12`";
    let event = Event {
        unix_time_ms: Some(2_000),
        ..Event::new(EventKind::Stall, text)
    };
    write_events(&run, std::slice::from_ref(&event));
    let write = |unix_time_ms| {
        let live = Live {
            unix_time_ms,
            phase: Phase::Training,
            ..Live::default()
        };
        live.write(&run.join(Live::FILE)).unwrap();
    };
    write(1_000);
    let line = findings(runs.path())[0].to_string();
    assert!(line.contains("kill -CONT 12"), "{line}");
    write(3_000);
    assert_eq!(findings(runs.path()), []);
    // They were continued a moment ago.
    write(1_000);
    let continued = Event {
        unix_time_ms: Some(2_500),
        lasted_ms: Some(12_000),
        ..Event::new(EventKind::Stall, "rank 1 stalled for 12 s, and continues")
    };
    write_events(&run, &[event, continued]);
    assert_eq!(findings(runs.path()), []);
}

#[test]
fn a_rank_that_is_stopped_is_named_with_its_process_and_how_it_continues() {
    let (runs, run) = one_run();
    let child = StoppedProcess::start(Command::new("sleep").arg("60"));
    let stopped = LiveRank {
        pid: Some(child.id()),
        ..rank_here(1, Some(15.0))
    };
    let live = |phase| Live {
        unix_time_ms: unix_time_ms(),
        phase,
        ranks: vec![rank_here(0, None), stopped.clone()],
        ..Live::default()
    };
    let path = run.join(Live::FILE);
    live(Phase::Training).write(&path).unwrap();
    let lines = findings(runs.path());
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = lines[0].to_string();
    let advice = format!("kill -CONT {}", child.id());
    line.assert_contains(["rank 1 (process ", &advice]);
    let ended = live(Phase::Ended);
    ended.write(&path).unwrap();
    assert_eq!(findings(runs.path()), []);
    Live::end(&path, Some("rank 0 lost rank 1")).unwrap();
    let line = findings(runs.path())[0].to_string();
    let killed = format!(
        "lost rank 1; rank 1 (process {0}) is still stopped (SIGSTOP): `kill -KILL {0}` ends it",
        child.id()
    );
    line.assert_contains([&killed]);
    drop(child);
    let line = findings(runs.path())[0].to_string();
    assert!(!line.contains("still stopped"), "{line}");
}

#[test]
fn the_folder_of_another_machine_shows_its_stopped_ranks_and_where_the_state_of_all_is() {
    let (runs, run) = one_run();
    let own = runs.path().join("a-node-1");
    std::fs::create_dir_all(own.join("logs")).unwrap();
    std::fs::write(own.join("config.toml"), "[ranks]\nnodes = 2\n").unwrap();
    drop(Run::new(&own).hold());
    assert_eq!(findings(&own), [], "it has ended");
    let _owner = Run::new(&own).hold();
    let line = findings(&own)[0].to_string();
    let state = format!(
        "the state of all ranks is in {} on machine 0",
        run.display()
    );
    assert!(
        line.starts_with("ok    run ") && line.contains(&state),
        "{line}"
    );
    let mut sleep = Command::new("sleep");
    sleep.env(variables::ERROR_FILE, own.join("logs/rank-3.error.json"));
    let child = StoppedProcess::start(sleep.arg("60"));
    let line = findings(&own)[0].to_string();
    let id = child.id();
    let stopped = format!("rank 3 (process {id}) is stopped (SIGSTOP): kill -CONT {id}");
    assert!(
        line.starts_with("warn  run ") && line.contains(&stopped),
        "{line}"
    );
}

#[test]
fn a_rank_that_is_stopped_is_found_where_no_heartbeats_have_noticed() {
    let (runs, run) = one_run();
    let _owner = Run::new(&run).hold();
    std::fs::create_dir(run.join("logs")).unwrap();
    let mut sleep = Command::new("sleep");
    sleep.env(variables::ERROR_FILE, run.join("logs/rank-1.error.json"));
    let child = StoppedProcess::start(sleep.arg("60"));
    let live = Live {
        unix_time_ms: unix_time_ms() + 60_000,
        phase: Phase::Training,
        members: vec![0, 1],
        ranks: vec![rank_here(0, None)],
        ..Live::default()
    };
    live.write(&run.join(Live::FILE)).unwrap();
    let line = findings(runs.path())[0].to_string();
    let id = child.id();
    line.assert_contains([format!(
        "rank 1 (process {id}) is stopped (SIGSTOP): kill -CONT {id}"
    )]);
    drop(child);
    let line = findings(runs.path())[0].to_string();
    assert!(line.starts_with("ok    newest run"), "{line}");
}
