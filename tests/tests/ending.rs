//! However a run ends, all of it ends, and the user is told why.

use everburn_tests::{AssertContains, DEADLINE, Everburn, Job, ORPHAN_DEADLINE, Run, json_lines};
use rustix::process::Signal;

/// A training that continues until it is ended, in the middle of it: two epochs are recorded, and the checkpoint of one is written.
fn in_the_middle(folder: &std::path::Path, ranks: usize) -> (Job, Run) {
    let number = ranks.to_string();
    let mut job = Everburn::train_for_long(folder, "mnist")
        .args(["--ranks", &number, "--batch-size", "64", "--run-dir", "run"])
        .start();
    let run = Run::new(folder.join("run"));
    let recorded = run.clone();
    job.wait_for("two epochs and a checkpoint", move || {
        let mut written = (1..=2).map(|epoch| recorded.checkpoint(epoch));
        recorded.epochs() >= 2 && written.any(|folder| folder.exists())
    });
    let processes = if ranks == 1 { 1 } else { ranks + 1 };
    assert_eq!(job.processes().len(), processes, "{}", job.output());
    (job, run)
}

/// Kills one of three ranks and reads what the user is told.
fn kill_rank(rank: usize) {
    let folder = tempfile::tempdir().unwrap();
    let (job, run) = in_the_middle(folder.path(), 3);
    job.rank(rank).signal(Signal::KILL);
    let ended = job.wait_until_gone(ORPHAN_DEADLINE);
    let cause = format!("rank {rank} was ended by SIGKILL");
    let log = format!("its log: run/logs/rank-{rank}.log");
    let help = "train --resume --run-dir run` continues from the checkpoint epoch-000";
    ended.failed_with(137, &[&cause, "; the others were at step ", &log, help]);
    let live = run.json("live.json");
    assert_eq!(live["phase"], "ended", "{live:#}");
    let events = run.text("events.jsonl");
    assert_eq!(events.matches(r#""kind":"failure""#).count(), 1, "{events}");
    run.text("report.html").assert_contains(["failed"]);
    let doctor = Everburn::new(folder.path(), ["doctor", "run"]).run();
    let failed = format!("it has failed: {cause}");
    doctor.prints([&*failed, help]);
    assert_eq!(doctor.code(), 1, "{doctor}");
}

#[test]
fn rank_0_killed_ends_all_and_is_named() {
    kill_rank(0);
}

#[test]
fn the_last_rank_killed_ends_all_and_is_named() {
    kill_rank(2);
}

#[test]
fn ranks_that_cannot_be_started_are_a_failure_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    // A folder in the place of a log.
    std::fs::create_dir_all(folder.path().join("run/logs/rank-1.log")).unwrap();
    let ended = Everburn::train_for_long(folder.path(), "mlp")
        .args(["--ranks", "2", "--run-dir", "run"])
        .run();
    let cause = "the log folder cannot be used: `run/logs/rank-1.log`";
    ended.failed_with(2, &[cause]);
    let events = Run::new(folder.path().join("run")).text("events.jsonl");
    assert!(events.contains(r#""kind":"failure""#), "{events}");
    let doctor = Everburn::new(folder.path(), ["doctor", "run"]).run();
    doctor.prints([&format!("it has failed: {cause}")]);
}

#[test]
fn a_rank_that_comes_too_late_is_the_one_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let ended = Everburn::train_for_long(folder.path(), "mlp")
        .words("--ranks 3 --timeout 8 --run-dir run --chaos slow=1@step:3:9000ms")
        .run();
    let slow = "chaos: rank 1 takes 9000 ms longer per step from step 3 on";
    ended.failed_with(76, &["rank 1 ", slow]);
    let blamed = |rank: usize| {
        ended
            .stderr
            .contains(&format!("rank {rank} did not answer"))
    };
    assert!(!blamed(0) && !blamed(2), "{ended}");
    let itself = ended.stderr.contains("rank 1 ended with exit code 76");
    assert!(itself || blamed(1), "{ended}");
}

/// Of rank 0, which records the run, the other rank says so.
#[test]
fn a_rank_that_was_stopped_and_continues_in_time_is_recorded_with_its_step_and_operation() {
    let folder = tempfile::tempdir().unwrap();
    // A rank warns of the other after a third of that time, and the rest of it is left to continue that one. Few checkpoints: they
    // are events too.
    let mut job = Everburn::train_for_long(folder.path(), "mlp")
        .words("--ranks 2 --heartbeat-timeout 20 --checkpoint-every 1000epochs --run-dir run")
        .start();
    let run = Run::new(folder.path().join("run"));
    job.wait_for("an epoch", || run.epochs() > 0);
    for (stopped, warns) in [(1, 0), (0, 1)] {
        let process = job.rank(stopped);
        process.signal(Signal::STOP);
        let log = format!("logs/rank-{warns}.log");
        let warning = format!("rank {stopped}: no heartbeat for ");
        job.wait_for(&warning, || run.text_if_there(&log).contains(&warning));
        process.signal(Signal::CONT);
        let begin = format!("rank {stopped} stalled for ");
        let events = || run.text_if_there("events.jsonl");
        job.wait_for("the event", || events().contains(&begin));
        let events = json_lines(&events());
        let is_its = |event: &&serde_json::Value| {
            let text = event["text"].as_str();
            text.is_some_and(|text| text.starts_with(&begin))
        };
        let event = events.iter().find(is_its).unwrap();
        assert_eq!(event["kind"], "stall", "{event}");
        assert_eq!(event["rank"], stopped, "{event}");
        assert!(
            event["step"].is_u64() && event["lasted_ms"].is_u64(),
            "{event}"
        );
        event["text"].as_str().unwrap().assert_contains([
            " at step ",
            ", while others waited for it in ",
            ", and continues: its process was stopped (SIGSTOP; pid ",
        ]);
    }
    job.signal(Signal::INT);
    assert_eq!(job.wait().code(), 130);
    let monitored = Everburn::new(folder.path(), ["monitor", "run"]).succeed();
    monitored.prints(["rank 1 stalled for ", "rank 0 stalled for "]);
    run.text("report.html")
        .assert_contains(["rank 1 stalled for "]);
}

/// Signals a run once and checks that it stops cleanly, with a whole record. Returns it with its folder.
fn stops_cleanly(ranks: usize, signal: Signal, code: i32) -> (tempfile::TempDir, Run) {
    let folder = tempfile::tempdir().unwrap();
    let (job, run) = in_the_middle(folder.path(), ranks);
    job.signal(signal);
    let ended = job.wait_until_gone(ORPHAN_DEADLINE);
    assert_eq!(ended.code(), code, "{ended}");
    ended.prints(["stopped on request"]);
    // By a launcher, or by the process itself.
    ended.warns([
        "stopping on SIG",
        ", after the current step",
        "; once more ends ",
    ]);
    let report = run.report();
    let stopped = report["stopped"].as_str().unwrap();
    let by = match signal {
        Signal::INT => "Ctrl-C",
        Signal::USR1 => "SIGUSR1",
        Signal::USR2 => "SIGUSR2",
        _ => "SIGTERM",
    };
    let begin = format!("on request by {by} after step ");
    assert!(stopped.starts_with(&begin), "{report:#}");
    assert!(report["test_accuracy"].is_null(), "{report:#}");
    assert_eq!(report["world_size"], ranks);
    assert!(run.number("epochs") >= 2.0, "{report:#}");
    assert!(run.path.join("model.safetensors").is_file());
    // Of one rank there is no launcher.
    let events = run.text("events.jsonl");
    let is_noted = events.contains("stopping on SIG");
    assert_eq!(is_noted, ranks > 1, "{events}");
    let doctor = Everburn::new(folder.path(), ["doctor", "run"]).run();
    let stopped = format!("it did not finish: stopped {stopped}");
    let continued = "train --resume --run-dir run` continues";
    doctor.prints([&*stopped, continued]);
    (folder, run)
}

#[test]
fn ctrl_c_at_the_launcher_stops_all_ranks_after_their_step() {
    stops_cleanly(3, Signal::INT, 130);
}

#[test]
fn sigterm_at_the_launcher_stops_all_ranks_after_their_step_and_the_run_can_be_resumed() {
    let (folder, run) = stops_cleanly(2, Signal::TERM, 128 + 15);
    let epochs = run.report()["epochs"].as_u64().unwrap();
    let more = (epochs + 1).to_string();
    let arguments = ["train", "--resume", "--run-dir", "run", "--epochs", &more];
    Everburn::new(folder.path(), arguments).succeed();
    let report = run.report();
    assert_eq!(report["resumed_after_epoch"], epochs, "{report:#}");
    assert_eq!(report["epochs"], epochs + 1, "{report:#}");
    assert!(report["stopped"].is_null(), "{report:#}");
    assert!(report["test_accuracy"].is_number(), "{report:#}");
}

/// USR1 as `--signal=USR1@90` of Slurm sends it, or submitit.
#[test]
fn other_signals_at_the_launcher_or_a_single_process_stop_after_the_step() {
    stops_cleanly(2, Signal::USR1, 128 + 10);
    stops_cleanly(1, Signal::USR2, 130);
    stops_cleanly(1, Signal::TERM, 130);
}

#[test]
fn sigterm_at_one_rank_stops_all_of_them_and_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let (job, run) = in_the_middle(folder.path(), 3);
    job.rank(1).signal(Signal::TERM);
    let ended = job.wait_until_gone(ORPHAN_DEADLINE);
    ended.failed_with(130, &["the job was stopped on SIGTERM at rank 1"]);
    let said = std::fs::read_to_string(run.path.join("logs/rank-1.finished.json")).unwrap();
    assert!(said.contains("stopped"), "{said}");
    let report = run.report();
    assert!(report["test_accuracy"].is_null(), "{report:#}");
    let stopped = report["stopped"].as_str().unwrap();
    let begin = "on request by SIGTERM at rank 1 after step ";
    assert!(stopped.starts_with(begin), "{report:#}");
    let doctor = Everburn::new(folder.path(), ["doctor", "run"]).run();
    doctor.prints([stopped]);
}

#[test]
fn ctrl_c_at_a_single_process_stops_it_after_its_step() {
    stops_cleanly(1, Signal::INT, 130);
}

#[test]
fn a_run_that_ends_within_an_epoch_counts_it_as_its_progress_did() {
    let folder = tempfile::tempdir().unwrap();
    // Eight steps an epoch.
    let train = Everburn::train(folder.path(), "mlp").args(["--run-dir", "run"]);
    let ended = train.args(["--epochs", "3", "--steps", "11"]).succeed();
    ended.prints(["1 epoch and part of epoch 2  11 steps"]);
    let report = Run::new(folder.path().join("run")).report();
    assert_eq!(report["unfinished_epoch"], 2, "{report:#}");
    let ended = Everburn::line(folder.path(), "train --resume --run-dir run --steps 16").succeed();
    ended.prints(["2 epochs  16 steps"]);
}

#[test]
fn a_training_that_diverges_with_finite_losses_is_warned_of_once() {
    let folder = tempfile::tempdir().unwrap();
    let ended = Everburn::train(folder.path(), "mlp")
        .words("--learning-rate 1e9 --epochs 3 --run-dir run")
        .succeed();
    let warning = "the training loss has risen from ";
    assert_eq!(ended.stderr.matches(warning).count(), 1, "{ended}");
    ended.warns(["a lower --learning-rate (it is 1e9)"]);
    let run = Run::new(folder.path().join("run"));
    assert!(run.text("events.jsonl").contains(warning), "{ended}");
    // Nobody reads a number of thirty digits.
    let digits = |word: &str| word.chars().take_while(char::is_ascii_digit).count();
    let longest = ended.stdout.split_whitespace().map(digits).max();
    assert!(longest < Some(9), "{ended}");
}

#[test]
fn a_run_that_diverges_later_keeps_its_earlier_checkpoints() {
    for ranks in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        // Each step multiplies the weights by about -2: some epochs until they leave the numbers.
        let ended = Everburn::train(folder.path(), "mlp")
            .words("--optimizer sgd --learning-rate 0.1 --weight-decay 30 --epochs 100")
            .args(["--ranks", ranks, "--run-dir", "run"])
            .start()
            .wait_until_gone(DEADLINE);
        ended.failed_with(1, &["diverged", "a lower --learning-rate"]);
        assert!(!ended.stderr.contains("panicked"), "{ended}");
        let run = Run::new(folder.path().join("run"));
        for name in ["report.json", "model.safetensors"] {
            assert!(!run.path.join(name).exists(), "{name} of a failed run");
        }
        let epochs = run.losses("validation").len();
        assert!(epochs >= 1, "an epoch went well: {ended}");
        for checkpoint in ["best", &epochs.to_string()] {
            let arguments = ["eval", "run", "--checkpoint", checkpoint];
            let ended = Everburn::new(folder.path(), arguments).succeed();
            ended.prints(["test accuracy"]);
        }
    }
}
