//! Flags about those who look on.

use std::io::{Read, Write};

use everburn_tests::{
    AssertContains, DEADLINE, Everburn, Run, TOKEN, Terminal, binary, holds_within,
};
use rustix::process::Signal;

#[test]
fn who_knows_the_jobs_token_can_look_on_over_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--monitor", "127.0.0.1:0", "--job-token", TOKEN];
    let mut job = Everburn::train_for_long(folder.path(), "mlp")
        .words("--ranks 2 --run-dir run --kernel-cache kernels --no-dashboard")
        .args(flags)
        .start();
    let run = Run::new(folder.path().join("run"));
    job.wait_for("an epoch", || run.epochs() > 0);
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
    let line = job.rank(1).file("cmdline");
    line.assert_contains(["--kernel-cache kernels", "--no-dashboard"]);
    assert!(!line.contains(TOKEN), "{line}");
    job.signal(Signal::INT);
    assert_eq!(job.wait().code(), 130);
}

#[test]
fn prometheus_reads_the_figures_of_a_run_with_its_credential() {
    let folder = tempfile::tempdir().unwrap();
    Everburn::train(folder.path(), "mlp")
        .args(["--run-dir", "refused", "--prometheus", "127.0.0.1:0"])
        .refused(&[
            "--prometheus 127.0.0.1:0 needs a job token",
            "--prometheus-token",
        ]);
    let printed = Everburn::new(folder.path(), ["monitor", "--prometheus-token"])
        .env("EVERBURN_JOB_TOKEN", TOKEN)
        .succeed();
    let credential = printed.stdout.trim();
    assert!(credential.len() == 64 && credential != TOKEN, "{printed}");

    let mut job = Everburn::train_for_long(folder.path(), "mlp")
        .words("--ranks 2 --run-dir run --prometheus 127.0.0.1:0")
        .args(["--job-token", TOKEN])
        .start();
    let run = Run::new(folder.path().join("run"));
    job.wait_for("an epoch", || run.epochs() > 0);
    let output = job.output();
    let told = output.split_once("figures at http://").expect(&output).1;
    let address = told.split_once("/metrics").expect(&output).0;
    let scrape = |credential: &str| {
        let mut connection = std::net::TcpStream::connect(address).unwrap();
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {credential}\r\n\r\n"
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(scrape(TOKEN).starts_with("HTTP/1.1 401 "));
    // Heartbeats come a little later than the first epoch.
    let wanted = [
        "everburn_running 1",
        "everburn_loss{split=\"train\"} ",
        "everburn_loss{split=\"validation\"} ",
        "everburn_accuracy{split=\"train\"} ",
        "everburn_learning_rate 0.001",
        "everburn_samples_per_second ",
        "everburn_restarts_total 0",
        "everburn_rank_step_seconds{rank=\"1\"} ",
        "everburn_rank_communication_ratio{rank=\"1\"} ",
        "everburn_rank_memory_bytes{rank=\"1\"} ",
        "everburn_rank_heartbeat_age_seconds{rank=\"1\"} ",
    ];
    let has_all = || {
        let answer = scrape(credential);
        wanted.iter().all(|line| answer.contains(line))
    };
    assert!(holds_within(DEADLINE, has_all), "{}", scrape(credential));
    job.signal(Signal::INT);
    assert_eq!(job.wait().code(), 130);
}

#[test]
fn without_a_dashboard_a_terminal_shows_plain_lines() {
    let folder = tempfile::tempdir().unwrap();
    let Some(terminal) = Terminal::open_or_skip(folder.path(), "--no-dashboard") else {
        return;
    };
    let program = std::path::absolute(binary()).unwrap();
    let small = everburn_tests::SMALL;
    terminal.wait_for("a prompt", |screen| !screen.trim().is_empty());
    for ranks in ["1", "2"] {
        terminal.enter(&format!(
            "clear; '{}' train mlp --ranks {ranks} {small} --epochs 1000000 --no-dashboard; echo code=$?",
            program.display()
        ));
        terminal.wait_for("lines of epochs, and none of the run before", |screen| {
            let lines = screen.lines().filter(|line| line.contains("/1000000  "));
            lines.count() > 2 && !screen.lines().any(|line| line.starts_with("code="))
        });
        assert_eq!(terminal.property("alternate_on"), "0", "{ranks} ranks");
        terminal.press("C-c");
        terminal.wait_for("the shell", |screen| {
            screen.lines().any(|line| line == "code=130")
        });
    }
}
