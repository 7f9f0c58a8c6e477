//! Monitoring: a training on four ranks, two monitors beside it, one of which is killed, and a rank.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use everburn_tests::{DEADLINE, Everburn, Run, Terminal, holds_within, json_lines, skip_missing};
use rustix::process::Signal;

/// Longer than all that is looked at takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// A training that lasts until it is stopped.
fn train(folder: &Path, flags: &[&str]) -> everburn_tests::Job {
    Everburn::new(
        folder,
        ["train", "mnist", "--epochs", "1000000", "--run-dir", "run"],
    )
    .words(everburn_tests::SMALL)
    .args(flags)
    .start()
    .with_deadline(PATIENCE)
}

/// A monitor of that training in a terminal of this size, with its first numbers.
fn monitor(folder: &Path, size: (u16, u16)) -> Option<Terminal> {
    let terminal = Terminal::open_sized_or_skip(folder, size, "looking on")?;
    terminal.enter_everburn("monitor run; echo code=$?");
    terminal.wait_for("burn-train's dashboard", |screen| {
        ["Train epoch", "Valid epoch", "r ranks"]
            .iter()
            .all(|text| screen.contains(text))
    });
    Some(terminal)
}

/// Shows the ranks and waits until all of them work, and all is there that is told of them. A screen may be seen
/// while it is painted.
fn ranks(terminal: &Terminal, count: usize) {
    terminal.press("r");
    let parts = [
        "steps ",
        "step time of each rank",
        "spent on",
        "d data",
        "events",
        "left",
    ];
    let works = |screen: &str, rank: usize| {
        let row = [format!(" {rank} ok"), format!(" {rank} slow")];
        let is_row = |line: &str| row.iter().any(|row| line.contains(row));
        screen.lines().any(is_row)
    };
    terminal.wait_for(&format!("all of {parts:?} and {count} rows"), |screen| {
        screen.contains(&format!("{count} of {count} ranks"))
            && parts.iter().all(|part| screen.contains(part))
            && (0..count).all(|rank| works(screen, rank))
    });
}

#[test]
fn a_run_that_is_over_is_shown_with_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "1", "--run-dir", "run"];
    Everburn::train(folder.path(), "mlp").args(flags).succeed();
    let test = "a run that is over";
    let Some(terminal) = Terminal::open_sized_or_skip(folder.path(), (100, 30), test) else {
        return;
    };
    terminal.enter_everburn("monitor run");
    terminal.wait_for("the end of the run", |screen| {
        screen.contains("Valid epoch") && screen.contains("the run: finished")
    });
    terminal.press("r");
    terminal.wait_for("the ranks", |screen| screen.contains("spent on"));
    terminal.close();
}

#[test]
fn two_look_on_one_is_killed_and_so_is_a_rank() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = [(100, 30), (200, 60)];
    let flags = ["--ranks", "4", "--elastic", "2:4", "--max-restarts", "9"];
    // Few checkpoints: they are events, and would push all others off the screen.
    let flags = [&flags[..], &["--checkpoint-every", "1000epochs"]].concat();
    let mut job = train(folder.path(), &flags);
    let run = Run::new(folder.path().join("run"));
    job.wait_for("two epochs", || run.epochs() > 1);
    let [Some(small), Some(large)] = sizes.map(|size| monitor(folder.path(), size)) else {
        return;
    };
    for terminal in [&small, &large] {
        ranks(terminal, 4);
    }
    // The size changes in the middle, there and back.
    small.resize((140, 40));
    small.wait_for("a larger picture", |screen| {
        screen
            .lines()
            .filter(|line| line.chars().count() == 140)
            .count()
            > 10
    });
    small.resize((100, 30));
    small.wait_for("a smaller picture", |screen| {
        screen
            .lines()
            .filter(|line| line.chars().count() == 100)
            .count()
            > 10
    });
    // Back to the dashboard, and out; the terminal is as it was.
    large.press("r");
    // burn-train's own words would be that `q` stops the training.
    large.wait_for("the dashboard again", |screen| {
        screen.contains("Train epoch") && screen.contains("Leave the monitor.")
    });
    large.press("r");
    ranks_are_back(&large);
    small.press("q");
    let screen = small.wait_for("the shell", |screen| {
        screen.lines().any(|line| line == "code=0")
    });
    assert_eq!(small.property("alternate_on"), "0", "{screen}");
    assert_eq!(small.property("mouse_any_flag"), "0", "{screen}");

    // One monitor is killed, and nothing else notices.
    let small = monitor(folder.path(), (100, 30)).unwrap();
    small.kill_programs("monitor");
    small.wait_for("its end", |screen| screen.contains("code=137"));

    let before = run.epochs();
    job.rank(2).signal(Signal::KILL);
    large.wait_for("the loss of rank 2", |screen| {
        screen.contains("restart 1 of") && screen.contains("rank 2")
    });
    large.wait_for("all ranks again", |screen| {
        screen.contains("4 of 4 ranks") && screen.contains("have made step")
    });
    let goes_on = holds_within(DEADLINE, || run.epochs() > before);
    assert!(goes_on, "{}", large.screen());

    job.signal(Signal::INT);
    let ended = job.wait();
    large.wait_for("the end", |screen| screen.contains("stopped on request"));
    assert!(run.path.join("report.html").is_file(), "{ended}");
    // No key leaves the shell on this screen, and Ctrl-C gives the terminal back, too.
    large.press("C-z");
    large.press("C-c");
    let screen = large.wait_for("the shell", |screen| {
        screen.lines().any(|line| line == "code=130")
    });
    assert_eq!(large.property("alternate_on"), "0", "{screen}");
    assert_eq!(large.property("mouse_any_flag"), "0", "{screen}");
}

fn ranks_are_back(terminal: &Terminal) {
    terminal.wait_for("the ranks again", |screen| screen.contains("spent on"));
}

#[test]
fn a_training_shows_its_ranks_by_the_same_key() {
    let folder = tempfile::tempdir().unwrap();
    let test = "the ranks beside the dashboard";
    let Some(terminal) = Terminal::open_or_skip(folder.path(), test) else {
        return;
    };
    let small = everburn_tests::SMALL;
    terminal.enter_everburn(&format!(
        "train mnist --ranks 2 {small} --epochs 1000000 --run-dir run; echo code=$?"
    ));
    terminal.wait_for("a dashboard", |screen| screen.contains("Valid epoch"));
    ranks(&terminal, 2);
    terminal.press("r");
    terminal.wait_for("the dashboard again", |screen| {
        screen.contains("Valid epoch")
    });
    terminal.press("r");
    ranks_are_back(&terminal);
    terminal.press("C-c");
    let screen = terminal.wait_for("the shell", |screen| {
        screen.contains("stopped on request") && screen.lines().any(|line| line == "code=130")
    });
    assert_eq!(terminal.property("alternate_on"), "0", "{screen}");
}

#[test]
fn without_a_terminal_there_are_lines_of_json_of_runs_that_are_over_too() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--ranks 2 --batch-size 64 --epochs 2 --tensorboard --run-dir run".split(' ');
    Everburn::new(folder.path(), ["train", "mnist"])
        .words(everburn_tests::SMALL)
        .args(flags)
        .succeed();
    let ended = Everburn::new(folder.path(), ["monitor", "run"]).succeed();
    let kinds = [
        "run", "metric", "ranks", "event", "live", "report", "running",
    ];
    let updates = json_lines(&ended.stdout);
    for kind in kinds {
        let there = updates.iter().any(|update| update.get(kind).is_some());
        assert!(there, "no {kind}: {ended}");
    }
    // Every step of every rank adds up to what it took.
    let run = Run::new(folder.path().join("run"));
    let lines: Vec<_> = updates
        .iter()
        .filter_map(|update| update.get("ranks"))
        .collect();
    let last = lines.last().unwrap();
    assert_eq!(last["step"], run.report()["steps"]);
    for step in lines
        .iter()
        .flat_map(|line| line["ranks"].as_array().unwrap())
    {
        let part = |name: &str| step[name].as_f64().unwrap_or(0.0);
        let parts = ["waited", "data", "forward", "backward", "optimizer"].map(part);
        let sum: f64 = parts.iter().sum();
        assert!(sum <= part("seconds") * 1.001 + 1e-5, "{step}");
        assert!(parts[2] > 0.0 && parts[3] > 0.0, "{step}");
    }
    let report = run.text("report.html");
    for section in [
        "id=\"ranks\"",
        "id=\"confusion\"",
        "id=\"environment\"",
        "id=\"events\"",
    ] {
        assert!(report.contains(section), "no {section}");
    }
    let confusion = run.json("confusion.json");
    let counts = confusion["counts"].as_array().unwrap();
    let all = counts.iter().flat_map(|row| row.as_array().unwrap());
    let all: u64 = all.map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(all, run.report()["test_samples"].as_u64().unwrap());
    let events = std::fs::read_dir(run.path.join("tensorboard")).unwrap();
    assert!(events.count() >= 1);

    let refused = Everburn::new(folder.path(), ["monitor", "nowhere"]).run();
    assert_eq!(refused.code(), 2, "{refused}");
    refused.warns(["nowhere"]);
}

/// The follower of `examples/trackers` on the run in `folder`, which prints what it would log into the file `name`.
fn follow(folder: &Path, name: &str) -> Option<Child> {
    let script = std::path::absolute("../examples/trackers/follow.py").unwrap();
    let output = File::create(folder.join(name)).unwrap();
    let started = Command::new("python3")
        .arg(script)
        .arg(folder.join("run"))
        .args(["--to", "stdout", "--interval", "0.1", "--state"])
        .arg(folder.join("follow.json"))
        .stdin(Stdio::null())
        .stdout(output)
        .spawn();
    match started {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip_missing(
                "the follower of examples/trackers",
                "there is no python3",
                "python3",
            );
            None
        }
        started => Some(started.unwrap()),
    }
}

/// Waits until the follower ends by itself, and reads what it has printed.
fn followed(mut follower: Child, folder: &Path, name: &str) -> Vec<serde_json::Value> {
    let ended = holds_within(DEADLINE, || follower.try_wait().unwrap().is_some());
    assert!(ended, "the follower did not end");
    assert!(follower.wait().unwrap().success());
    json_lines(&std::fs::read_to_string(folder.join(name)).unwrap())
}

#[test]
fn a_follower_logs_each_line_once_and_ends_with_the_run() {
    let folder = tempfile::tempdir().unwrap();
    // Started before there is a folder, it waits for it.
    let Some(mut first) = follow(folder.path(), "first") else {
        return;
    };
    let mut job = Everburn::train_for_long(folder.path(), "mlp")
        .args(["--ranks", "2", "--run-dir", "run"])
        .start();
    let run = Run::new(folder.path().join("run"));
    let log = folder.path().join("first");
    job.wait_for("an epoch that is logged", || {
        run.epochs() > 0 && log.metadata().unwrap().len() > 0
    });
    assert_eq!(first.try_wait().unwrap(), None, "the run goes on");
    job.signal(Signal::INT);
    assert_eq!(job.wait().code(), 130);
    let mut logged = followed(first, folder.path(), "first");
    let metrics = run.metrics();
    assert_eq!(logged.len(), metrics.len());
    for (logged, line) in logged.iter().zip(&metrics) {
        assert_eq!(logged["step"], line["step"]);
    }
    let step = logged.remove(0);
    assert_eq!(step["train/loss"], metrics[0]["loss"]);
    assert_eq!(step["learning_rate"], metrics[0]["learning_rate"]);
    assert!(
        step["speed/samples_per_second"].as_f64().unwrap() > 0.0,
        "{step}"
    );

    // Started again, it continues after its last line. Lines that are none, or not whole, are left out.
    let mut file = File::options()
        .append(true)
        .open(run.path.join("metrics.jsonl"))
        .unwrap();
    let line =
        r#"{"kind":"test","epoch":1,"step":99999999,"loss":0.25,"accuracy":0.5,"samples":8}"#;
    write!(file, "no metrics\n{line}\n{{\"kind\":\"test\"").unwrap();
    let again = follow(folder.path(), "again").unwrap();
    let logged = followed(again, folder.path(), "again");
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert_eq!(logged[0]["test/accuracy"], 0.5);
}
