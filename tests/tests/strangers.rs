//! Nobody joins a job, changes its result or fills its memory without knowing its secret.

use std::path::Path;

use everburn_tests::{Attack, Everburn, Run, Siege};
use rustix::process::Signal;

/// How much memory the process that serves a job's store may hold, in bytes.
const STORE_MEMORY: u64 = 64 << 20;

/// A training of a few seconds.
fn train(folder: &Path, name: &str, flags: &[&str]) -> Everburn {
    Everburn::new(folder, ["train", "mlp", "--data", "synthetic"])
        .args(["--train-samples", "2000", "--test-samples", "40"])
        .args(["--batch-size", "20", "--epochs", "9", "--steps", "600"])
        .words("--virtual-ranks 2 --hash-every 1")
        .args(["--run-dir", name])
        .args(flags)
}

fn hashes(folder: &Path, name: &str) -> String {
    Run::new(folder.join(name)).text("hashes.jsonl")
}

fn nothing_was_had(siege: &Siege) {
    the_store_stood(siege);
    assert!(
        !siege.launchers_ports.is_disjoint(&siege.refused),
        "the store was not tried: {siege:?}"
    );
    assert!(siege.keys_listed.is_empty(), "{siege:?}");
}

/// The port of the launcher's store was found, and its memory is bounded.
fn the_store_stood(siege: &Siege) {
    assert!(
        !siege.launchers_ports.is_empty(),
        "no port of the store was found: {siege:?}"
    );
    assert!(siege.launchers_ports.is_subset(&siege.ports), "{siege:?}");
    assert!(siege.launchers_peak > 0, "no launcher was seen: {siege:?}");
    assert!(siege.launchers_peak < STORE_MEMORY, "{siege:?}");
}

#[test]
fn a_job_under_attack_ends_with_the_bits_of_an_undisturbed_one() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "undisturbed", &[]).succeed();
    let expected = hashes(folder.path(), "undisturbed");
    assert_eq!(expected.lines().count(), 600);
    for (name, flags) in [
        ("ranks", vec!["--ranks", "2", "--transport", "tcp"]),
        ("elastic", vec!["--ranks", "2", "--elastic", "1:2"]),
    ] {
        let (ended, siege) = train(folder.path(), name, &flags)
            .start()
            .wait_under_siege(Attack::Everything);
        let ended = ended.succeeded();
        nothing_was_had(&siege);
        assert_eq!(hashes(folder.path(), name), expected, "{name}: {ended}");
    }

    // Who reads an open store and waits there neither disturbs the job nor learns its secret.
    let secret = "a secret that nobody else knows";
    let flags = ["--ranks", "2", "--transport", "tcp", "--open-store"];
    let (ended, siege) = train(folder.path(), "open", &flags)
        .env("EVERBURN_JOB_TOKEN", secret)
        .start()
        .wait_under_siege(Attack::Reading);
    let ended = ended.succeeded();
    the_store_stood(&siege);
    assert!(
        !siege.keys_listed.is_empty(),
        "nothing was listed: {siege:?}"
    );
    assert!(!siege.values_read.is_empty(), "nothing was read: {siege:?}");
    for told in siege.keys_listed.iter().chain(&siege.values_read) {
        assert!(!told.contains(secret), "{told}");
    }
    assert_eq!(hashes(folder.path(), "open"), expected, "{ended}");
}

#[test]
fn the_secret_is_in_no_command_line_and_in_no_file_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let secret = "a secret that nobody else knows";
    // It continues until it has been looked at.
    let flags = ["--ranks", "2", "--steps", "1000000", "--epochs", "1000000"];
    let run = train(folder.path(), "run", &flags).env("EVERBURN_JOB_TOKEN", secret);
    let mut job = run.start();
    let recorded = Run::new(folder.path().join("run"));
    job.wait_for("the first epoch", || recorded.epochs() > 0);
    let processes = job.processes();
    assert_eq!(processes.len(), 3, "{}", job.output());
    for process in processes {
        let line = process.file("cmdline");
        assert!(!line.is_empty(), "it has ended");
        assert!(!line.contains(secret), "{line}");
    }
    job.signal(Signal::INT);
    let ended = job.wait();
    assert_eq!(ended.code(), 130, "{ended}");
    assert!(!ended.to_string().contains(secret), "{ended}");
    let mut folders = vec![folder.path().to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read(&path).unwrap();
            let found = text
                .windows(secret.len())
                .any(|part| part == secret.as_bytes());
            assert!(!found, "{}", path.display());
        }
    }
}

#[test]
fn a_secret_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ended = train(
        folder.path(),
        "run",
        &["--ranks", "2", "--job-token", "hunter2"],
    )
    .refused(&["7 bytes", "16", "openssl rand -hex 32"]);
    assert!(!ended.stderr.contains("hunter2"), "{ended}");
    assert!(!folder.path().join("run").exists());
}

#[test]
fn a_drawn_token_is_not_printed_where_output_may_be_stored() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "run", &["--steps", "1"]).succeed();
    let ended = Everburn::line(folder.path(), "monitor run --listen 127.0.0.1:0").refused(&[
        "--listen 127.0.0.1:0",
        "job token",
        "openssl rand -hex 32",
    ]);
    assert!(!ended.stdout.contains("EVERBURN_JOB_TOKEN"), "{ended}");
}
