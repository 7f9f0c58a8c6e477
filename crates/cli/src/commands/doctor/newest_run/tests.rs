//! Tests of `newest_run`.

mod disk;
mod stopped;

use std::process::Command;

use everburn_record::{LiveRank, RankLine, RankStep};
use everburn_tests::{AssertContains, Run};

use super::*;

/// A folder of runs, and the run in it.
fn one_run() -> (tempfile::TempDir, std::path::PathBuf) {
    let runs = tempfile::tempdir().unwrap();
    let run = Run::begin(runs.path().join("a"));
    (runs, run.path)
}

fn write_events(run: &Path, events: &[Event]) {
    let line = |event: &Event| serde_json::to_string(event).unwrap() + "\n";
    let lines: String = events.iter().map(line).collect();
    std::fs::write(run.join("events.jsonl"), lines).unwrap();
}

/// A rank whose process is this one.
fn rank_here(rank: usize, silent_seconds: Option<f64>) -> LiveRank {
    LiveRank {
        rank,
        pid: Some(std::process::id()),
        host: proc::host_name(),
        silent_seconds,
        ..LiveRank::default()
    }
}

#[test]
fn ranks_that_the_newest_run_waits_for_are_named_while_a_process_has_it() {
    let (runs, run) = one_run();
    let config = run.join("config.toml");
    std::fs::write(&config, "model = 'mnist'\n[ranks]\nnodes = 2\n").unwrap();
    let now = unix_time_ms();
    drop(Run::new(&run).hold());
    let write_text = |text: &str, until: u64| {
        let event = Event {
            unix_time_ms: Some(now - 60_000),
            ranks: text.starts_with("waiting").then(|| vec![0]),
            waits_until_ms: Some(until),
            ..Event::new(EventKind::Warning, text)
        };
        write_events(&run, &[event]);
    };
    let of_machine =
        "waiting for rank 1 of machine 1, 290 s more; 1 of 2 ranks have joined after 10 s";
    let write = |until| write_text(of_machine, until);
    write(now + 230_000);
    assert_eq!(findings(runs.path()), [], "it has ended");
    let _owner = Run::new(&run).hold();
    let line = findings(runs.path())[0].to_string();
    assert!(line.starts_with("warn  newest run"), "{line}");
    assert!(line.contains("waiting for rank 1 of machine 1, "), "{line}");
    assert!(
        line.contains(" s more") && !line.contains("290 s"),
        "{line}"
    );
    assert!(line.contains("-> start the missing machines"), "{line}");
    write(now - 5_000);
    let line = findings(runs.path())[0].to_string();
    line.assert_contains(["waiting for rank 1 of machine 1, the time was over "]);
    let of_refused = format!(
        "{of_machine}; the store has refused 10.0.0.2 (2 times): its job token does not match"
    );
    write_text(&of_refused, now + 230_000);
    let line = findings(runs.path())[0].to_string();
    let refused = " s more; the store has refused 10.0.0.2 (2 times): its job token does not match";
    line.assert_contains([refused, "-> what was refused may be the missing machine"]);
    let of_elastic_job = "waiting for slot 1 of machine 1 (never started), 290 s more; 1 of 2 ranks have joined after 10 s; \
                          at least 2 are needed";
    write_text(of_elastic_job, now + 230_000);
    let line = findings(runs.path())[0].to_string();
    let awaited = "waiting for slot 1 of machine 1 (never started), 2";
    assert!(line.contains(awaited) && !line.contains("290 s"), "{line}");
    // It has named no ranks that have joined.
    let of_store = "the store at etcd://10.0.0.1:2379/a is not reached yet (io: refused); it is tried for 290 s more: check";
    write_text(of_store, now + 230_000);
    let line = findings(runs.path())[0].to_string();
    line.assert_contains(["is not reached yet (io: refused), 2", "-> see whether most"]);
    assert!(!line.contains("machines, or read"), "{line}");
    let of_machine_0 = "the store at node1:29500 is not reached yet (refused); it is tried for 290 s more: nobody listens there";
    write_text(of_machine_0, now + 230_000);
    let line = findings(runs.path())[0].to_string();
    line.assert_contains(["is not reached yet (refused), 2", "-> start machine 0"]);
    std::fs::write(&config, "model = 'mnist'\n[ranks]\nranks = 2\n").unwrap();
    write_text("waiting for rank 1, 290 s more", now + 230_000);
    let line = findings(runs.path())[0].to_string();
    let logs = run.join("logs");
    let advice = format!(
        "-> the process of a rank did not start, or has ended: read its log in {}",
        logs.display()
    );
    line.assert_contains(["waiting for rank 1, ", &advice]);
    assert!(!line.contains("machine"), "{line}");
}

#[test]
fn a_rank_for_which_the_others_have_waited_is_named_with_the_command_that_shows_more() {
    let (runs, run) = one_run();
    let write = |waited: f64| {
        let step = |rank, waited| RankStep {
            rank,
            seconds: 1.0,
            waited,
            ..RankStep::default()
        };
        let lines = (1..=8).map(|number| {
            let line = RankLine {
                step: number,
                ranks: vec![step(0, waited), step(1, 0.0)],
                ..RankLine::default()
            };
            serde_json::to_string(&line).unwrap() + "\n"
        });
        std::fs::write(run.join("ranks.jsonl"), lines.collect::<String>()).unwrap();
    };
    write(0.2);
    assert_eq!(findings(runs.path()), []);
    write(0.25);
    let line = findings(runs.path())[0].to_string();
    assert!(line.starts_with("warn  newest run"), "{line}");
    let what = "rank 1 was slow, and the others waited for it 25 % of their steps' time";
    let command = format!(" report {}` shows", run.display());
    line.assert_contains([what, &command]);
    let rank = LiveRank {
        alive: true,
        ..rank_here(0, None)
    };
    let training = Live {
        unix_time_ms: unix_time_ms(),
        phase: Phase::Training,
        step: 12,
        ranks: vec![rank],
        ..Live::default()
    };
    training.write(&run.join(Live::FILE)).unwrap();
    let line = findings(runs.path())[1].to_string();
    line.assert_contains(["rank 1 is slow, and the others have waited for it 25 % of their"]);
    std::fs::remove_file(run.join(Live::FILE)).unwrap();
    // They have waited for one that has failed.
    write_events(&run, &[Event::new(EventKind::Failure, "rank 1 has failed")]);
    let lines = findings(runs.path());
    assert!(
        lines.len() == 1 && !lines[0].found.contains("slow"),
        "{lines:?}"
    );
}

#[test]
fn a_run_that_was_cut_off_is_found_in_the_folder_of_runs_and_by_its_own_name() {
    let mut child = Command::new("true").spawn().unwrap();
    let ended = child.id();
    child.wait().unwrap();
    let (runs, run) = one_run();
    let write = |process: u32| {
        let rank = LiveRank {
            alive: true,
            pid: Some(process),
            ..rank_here(0, None)
        };
        let live = Live {
            unix_time_ms: unix_time_ms(),
            phase: Phase::Training,
            step: 12,
            ranks: vec![rank],
            ..Live::default()
        };
        live.write(&run.join(Live::FILE)).unwrap();
    };
    write(std::process::id());
    let line = findings(runs.path())[0].to_string();
    assert!(
        line.starts_with("ok    newest run") && line.contains("training at step 12"),
        "{line}"
    );
    write(ended);
    std::fs::write(run.join(Live::LOCK), "").unwrap();
    let line = findings(&run)[0].to_string();
    let advice = "/a has no checkpoint to continue from: the same command starts again";
    assert!(line.contains("-> ") && line.ends_with(advice), "{line}");
    assert_eq!(line.matches("starts again").count(), 1, "{line}");
    assert!(!line.contains("--resume"), "{line}");
    let config = run.join("config.toml");
    std::fs::write(&config, "[ranks]\nnodes = 2\nelastic = \"1:4\"\n").unwrap();
    let line = findings(&run)[0].to_string();
    assert!(line.contains("a-node-1/checkpoints"), "{line}");
    assert!(!line.contains("starts the run again"), "{line}");
    std::fs::write(&config, "model = 'mnist'").unwrap();
    std::fs::create_dir_all(run.join("checkpoints/epoch-0001")).unwrap();
    for (folder, label) in [
        (runs.path(), "warn  newest run"),
        (run.as_path(), "FAIL  run "),
    ] {
        let line = findings(folder)[0].to_string();
        assert!(line.starts_with(label), "{line}");
        assert!(line.contains("was cut off on "), "{line}");
        assert!(line.contains("--resume --run-dir"), "{line}");
    }
}

#[test]
fn a_run_that_continues_without_a_rank_says_why_that_is_out_and_whether_for_good() {
    let (runs, run) = one_run();
    let write = |members: &[usize], moved_before_ms: u64| {
        let now_ms = unix_time_ms();
        let live = Live {
            unix_time_ms: now_ms,
            moved_unix_ms: Some(now_ms - moved_before_ms),
            phase: Phase::Training,
            step: 5_204,
            steps: Some(172_000),
            members: members.to_vec(),
            ranks: vec![
                rank_here(0, None),
                rank_here(1, Some(20.0)),
                rank_here(2, None),
            ],
            ..Live::default()
        };
        live.write(&run.join(Live::FILE)).unwrap();
        let found = findings(runs.path());
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].to_string()
    };
    let event = |kind, text: &str| Event {
        rank: Some(1),
        ..Event::new(kind, text)
    };
    let again = event(EventKind::Restart, "rank 1 was killed; restart 1 of 3 now");
    write_events(&run, &[again]);
    let line = write(&[0, 2], 100);
    assert!(line.starts_with("ok    newest run"), "{line}");
    let lost = event(
        EventKind::Loss,
        "rank 1 was killed: it has no restarts left",
    );
    write_events(&run, &[lost]);
    let line = write(&[0, 2], 100);
    assert!(line.starts_with("warn  newest run"), "{line}");
    line.assert_contains(["-> it continues with fewer ranks"]);
    line.assert_contains([
        "training at step 5,204 of 172,000 on 2 of 3 ranks (0, 2), the last step ",
        "; without rank 1: rank 1 was killed: it has no restarts left",
    ]);
    assert!(!line.contains("gives no word"), "{line}");
    let line = write(&[0, 1, 2], 100);
    line.assert_contains(["warn  newest run", "rank 1 (process "]);
    let line = write(&[0, 2], 60_000);
    line.assert_contains(["warn  newest run", "-> no step for 60 s"]);
}

#[test]
fn a_rank_that_is_busy_while_the_others_wait_for_it_is_named_with_how_to_look_at_it() {
    let (runs, run) = one_run();
    let rank = |rank, waits_for: &[usize]| LiveRank {
        waiting_for: waits_for.to_vec(),
        ..rank_here(rank, None)
    };
    let live = |ranks| {
        let live = Live {
            unix_time_ms: unix_time_ms(),
            moved_unix_ms: Some(unix_time_ms() - 11_000),
            phase: Phase::Training,
            ranks,
            ..Live::default()
        };
        live.write(&run.join(Live::FILE)).unwrap();
        findings(runs.path())[0].to_string()
    };
    let line = live(vec![rank(0, &[1, 2]), rank(1, &[2]), rank(2, &[])]);
    let process = std::process::id();
    line.assert_contains([
        "warn  newest run",
        &format!("; ranks 0, 1 wait for rank 2 (process {process} on "),
        "), whose heartbeats arrive",
        "-> read the log of rank 2; `gdb --pid ",
        "backtrace\"` shows what its process does",
    ]);
    let each_other = live(vec![rank(0, &[1]), rank(1, &[0])]);
    each_other.assert_contains(["; ranks 0, 1 wait for each other", "-> no step for 11 s"]);
}

#[test]
fn why_a_run_has_ended_before_its_time_is_named_until_it_is_resumed() {
    use EventKind::{Failure, Resume, Start, Stop};
    let (runs, run) = one_run();
    let event = |kind, at, step, text: &str| Event {
        unix_time_ms: Some(at),
        step,
        ..Event::new(kind, text)
    };
    let written = |events: &[Event]| {
        write_events(&run, events);
        let found = findings(runs.path());
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let live = Live {
        unix_time_ms: unix_time_ms(),
        phase: Phase::Ended,
        ..Live::default()
    };
    live.write(&run.join(Live::FILE)).unwrap();
    let mut events = vec![
        event(Start, 1_000, None, "mlp begins"),
        event(
            Stop,
            2_000,
            None,
            "stopping on SIGINT, after the current step",
        ),
        event(Stop, 3_000, Some(12), "stopped on request after step 12"),
        event(
            Stop,
            4_000,
            None,
            "the job was stopped on SIGINT at machine 1",
        ),
    ];
    let stopped = &written(&events[..2])[0];
    stopped.assert_contains(["it did not finish: stopped on SIGINT"]);
    assert!(!stopped.contains("current step"), "{stopped}");
    let stopped = &written(&events)[0];
    let what = "it did not finish: stopped on request after step 12";
    stopped.assert_contains([what, "the same command"]);
    let named = findings(&run)[0].to_string();
    assert!(named.starts_with("warn  run "), "{named}");
    events.push(event(Failure, 5_000, None, "rank 1 was ended by SIGKILL"));
    let config = "model = 'mnist'\n[ranks]\nnodes = 2\n";
    std::fs::write(run.join("config.toml"), config).unwrap();
    let failed = &written(&events)[0];
    failed.assert_contains(["it has failed: rank 1 was ended by SIGKILL"]);
    assert!(failed.starts_with("warn  newest run"), "{failed}");
    let named = findings(&run)[0].to_string();
    assert!(named.starts_with("FAIL  run "), "{named}");
    failed.assert_contains(["the command of each machine, as before, starts"]);
    std::fs::create_dir_all(run.join("checkpoints/epoch-0001")).unwrap();
    let resumed = &written(&events)[0];
    let command = "continues from the checkpoint epoch-0001, on any number of ranks; on several machines, the command of each";
    assert!(resumed.contains(command), "{resumed}");
    events.push(event(Resume, 6_000, None, "mlp continues"));
    assert!(written(&events).is_empty());
    events.push(event(Stop, 7_000, Some(90), "stopped early"));
    let report = everburn_train::TrainingReport {
        finished: true,
        epochs: 3,
        steps: 90,
        ..Default::default()
    };
    let report = serde_json::to_string(&report).unwrap();
    std::fs::write(run.join("report.json"), report).unwrap();
    let finished = &written(&events)[0];
    assert!(finished.starts_with("ok    newest run"), "{finished}");
    finished.assert_contains(["it has finished, after 3 epochs and 90 steps"]);
}

#[test]
fn a_run_that_starts_has_a_line_that_says_so_before_it_waits_for_long() {
    let (runs, run) = one_run();
    let run = Run::new(run);
    drop(run.hold());
    assert_eq!(findings(runs.path()), [], "nobody starts it");
    let _owner = run.hold();
    // That of the run before a resume.
    Live::default().write(&run.path.join(Live::FILE)).unwrap();
    let line = findings(runs.path())[0].to_string();
    assert!(
        line.starts_with("ok    newest run") && line.contains("starting: "),
        "{line}"
    );
}
