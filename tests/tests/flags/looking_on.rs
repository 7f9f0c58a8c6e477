//! Flags about those who look on.

use everburn_tests::{DEADLINE, Everburn, Run, TOKEN, Terminal, binary, holds_within, skip};
use rustix::process::Signal;

use crate::told_of;

#[test]
fn who_knows_the_jobs_token_can_look_on_over_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--monitor", "127.0.0.1:0", "--job-token", TOKEN];
    let job = Everburn::train_for_long(folder.path(), "mlp")
        .args(["--ranks", "2", "--run-dir", "run"])
        .args(["--kernel-cache", "kernels", "--no-dashboard"])
        .args(flags)
        .start();
    let run = Run::new(folder.path().join("run"));
    let begun = holds_within(DEADLINE, || run.epochs() > 0);
    assert!(begun, "{}", job.output());
    let output = job.output();
    let told = output.split_once("can connect to ").expect(&output).1;
    let address = told.lines().next().unwrap().trim();

    let monitor = |token: &str| {
        let arguments = ["monitor", address, "--json", "--job-token", token];
        Everburn::new(folder.path(), arguments)
    };
    let refused = monitor("a token of somebody else").run();
    assert_ne!(refused.code(), 0, "{refused}");
    assert!(!refused.stdout.contains("metric"), "{refused}");
    let monitor = monitor(TOKEN).start();
    let seen = holds_within(DEADLINE, || monitor.output().contains("\"metric\""));
    assert!(seen, "{}", monitor.output());

    // What is no part of the configuration is said to each rank.
    let line = told_of(job.rank(1), "cmdline");
    for flag in ["--kernel-cache kernels", "--no-dashboard"] {
        assert!(line.contains(flag), "{line}");
    }
    assert!(!line.contains(TOKEN), "{line}");
    job.signal(Signal::INT);
    assert_eq!(job.wait().code(), 130);
}

#[test]
fn without_a_dashboard_a_terminal_shows_plain_lines() {
    let folder = tempfile::tempdir().unwrap();
    let Some(terminal) = Terminal::open(folder.path()) else {
        skip("--no-dashboard", "there is no tmux");
        return;
    };
    let program = std::path::absolute(binary()).unwrap();
    let small = everburn_tests::SMALL.join(" ");
    terminal.wait_for("a prompt", |screen| !screen.trim().is_empty());
    for ranks in ["1", "2"] {
        terminal.enter(&format!(
            "clear; '{}' train mlp --ranks {ranks} {small} --epochs 1000000 --no-dashboard; echo code=$?",
            program.display()
        ));
        terminal.wait_for("lines of epochs", |screen| {
            let lines = screen.lines().filter(|line| line.contains("/1000000  "));
            lines.count() > 2
        });
        assert_eq!(terminal.property("alternate_on"), "0", "{ranks} ranks");
        terminal.press("C-c");
        terminal.wait_for("the shell", |screen| {
            screen.lines().any(|line| line == "code=130")
        });
    }
}
