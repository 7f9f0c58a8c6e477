//! `everburn-bench gpu-check` without a GPU: the processor against itself, with small models. What is found, written,
//! skipped, cut off and refused is the same as with one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use everburn_tests::{AssertContains, Ended, Everburn, skip};
use serde_json::Value;

/// What a check has left behind.
struct CheckRun {
    folder: tempfile::TempDir,
    ended: Ended,
}

fn check<'a>(flags: impl IntoIterator<Item = &'a str>) -> CheckRun {
    check_in(tempfile::tempdir().unwrap(), flags)
}

fn check_in<'a>(folder: tempfile::TempDir, flags: impl IntoIterator<Item = &'a str>) -> CheckRun {
    let always = ["gpu-check", "--device", "flex", "--quick", "--out", "found"];
    let ended = Everburn::bench(folder.path(), always)
        .args(flags)
        .start()
        .with_deadline(Duration::from_secs(540))
        .wait();
    CheckRun { folder, ended }
}

impl CheckRun {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("found").join(name)
    }

    fn json(&self) -> Value {
        read_json(&self.path("gpu-check.json"))
    }

    fn page(&self) -> String {
        std::fs::read_to_string(self.path("gpu-check.md")).unwrap()
    }

    /// State and note of each row among the checks.
    fn rows(&self) -> Vec<(String, String, String)> {
        let json = self.json();
        let rows = json["checks"].as_array().unwrap().iter();
        let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_string();
        rows.map(|row| (text(row, "name"), text(row, "state"), text(row, "note")))
            .collect()
    }

    fn state_of(&self, name: &str) -> String {
        let rows = self.rows();
        let found = rows.iter().find(|row| row.0 == name);
        found
            .unwrap_or_else(|| panic!("{name} in {rows:?}"))
            .1
            .clone()
    }
}

fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_processor_agrees_with_itself_and_what_needs_a_gpu_is_skipped() {
    let found = check(["--python", "none"]);
    assert_eq!(found.ended.code(), 0, "{}", found.ended);
    let json = found.json();
    assert_eq!(json["verdict"], "passed");
    for (name, state, note) in found.rows() {
        if name.contains("NCCL") {
            assert_eq!(state, "skipped", "{name}");
            assert_eq!(note, "NCCL is for GPUs, and this is flex");
        } else if name.contains("recorded") {
            assert_eq!(state, "skipped", "{name}");
        } else {
            assert_eq!(state, "passed", "{name}: {note}");
        }
    }
    for benchmark in json["benchmarks"].as_array().unwrap() {
        let name = benchmark["name"].as_str().unwrap();
        let ours = &benchmark["everburn"];
        assert!(
            ours["per_second"].as_f64().unwrap() > 0.0,
            "{name}: {benchmark:#}"
        );
        assert_eq!(benchmark["eager"]["state"], "skipped");
    }
    let machine = &json["machine"];
    assert!(machine["burn"].as_str().unwrap().starts_with("0."));
    let page = found.page();
    assert!(page.contains("**passed**"), "{page}");
    page.assert_contains(["| NCCL, 1 rank |  | 2e-5 | SKIPPED |"]);
    assert!(found.path("gpu-check.log").is_file());
}

#[test]
fn what_is_wrong_is_found_and_ends_with_1_and_the_rest_is_still_checked() {
    let (forward, backward) = ("forward pass of mnist", "backward pass of mnist");
    let wrong = [
        ("forward", "numbers", forward, backward),
        ("backward", "numbers", backward, forward),
        ("losses", "numbers,training", "steps of mnist", forward),
    ];
    for (plant, sections, failed, passed) in wrong {
        let flags = ["--sections", sections, "--python", "none", "--plant", plant];
        let found = check(flags);
        assert_eq!(found.ended.code(), 1, "{plant}: {}", found.ended);
        assert_eq!(found.state_of(failed), "failed", "{plant}");
        assert_eq!(found.state_of(passed), "passed", "{plant}");
        assert_eq!(found.json()["verdict"], "failed");
        assert!(found.page().contains("**FAILED**"));
    }
}

#[test]
fn gradients_of_several_ranks_that_are_too_large_by_a_hundredth_are_found() {
    let found = check("--sections ranks --python none --plant ranks".split(' '));
    assert_eq!(found.ended.code(), 1, "{}", found.ended);
    for (name, state, note) in found.rows() {
        let is_skipped = name.contains("NCCL");
        let expected = if is_skipped { "skipped" } else { "failed" };
        assert_eq!(state, expected, "{name}: {note}");
    }
}

#[test]
fn what_crashes_costs_nothing_else_though_one_process_may_do_both() {
    for (plant, crashed, said) in [
        (
            "crash-in-training",
            "steps",
            "planted: this training crashes",
        ),
        // The part before another of its process leaves that a process, in which it crashes, too.
        ("crash", "", "planted: this part crashes"),
    ] {
        let flags = "--sections numbers,training --python none --plant".split(' ');
        let found = check(flags.chain([plant]));
        assert_eq!(found.ended.code(), 1, "{}", found.ended);
        let rows = found.rows();
        assert_eq!(rows.len(), 6 + 3);
        for (name, state, note) in rows {
            if name.starts_with(crashed) {
                assert_eq!(state, "failed", "{name}");
                assert!(note.contains(said), "{name}: {note}");
            } else {
                assert_eq!(state, "passed", "{name}: {note}");
            }
        }
    }
}

#[test]
fn a_part_that_hangs_is_killed_at_its_limit() {
    let flags = "--sections numbers --python none --plant hang --task-limit 2";
    let found = check(flags.split(' '));
    assert_eq!(found.ended.code(), 1, "{}", found.ended);
    let rows = found.rows();
    assert_eq!(rows.len(), 6);
    for (name, state, note) in rows {
        assert_eq!(state, "failed", "{name}");
        let seconds = note.strip_prefix("killed after ");
        let seconds = seconds.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        // It takes a while on a busy machine, and hangs for ever otherwise.
        assert!(seconds.is_some_and(|seconds| seconds >= 2.0), "{note}");
    }
}

#[test]
fn what_is_not_reached_in_time_is_not_passed() {
    let flags = "--sections numbers,ranks --python none --plant hang --budget 10";
    let found = check(flags.split(' '));
    assert_eq!(found.ended.code(), 1, "{}", found.ended);
    let rows = found.rows();
    let states: Vec<_> = rows.iter().map(|row| row.1.as_str()).collect();
    let unreached = states.iter().filter(|state| **state == "not-reached");
    // What was cut off while it ran is not known to be wrong.
    assert_eq!(unreached.count(), rows.len() - 3, "{rows:?}");
    assert_eq!(found.state_of("NCCL, 1 rank"), "skipped");
    assert_eq!(found.json()["verdict"], "incomplete");
}

#[test]
fn what_was_reached_is_kept_when_the_check_itself_is_killed() {
    // A check may end while this process has no core to see what it has reached.
    for _ in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["gpu-check", "--device", "flex", "--quick", "--out", "found"];
        let mut job = Everburn::bench(folder.path(), flags)
            .args(["--sections", "numbers", "--python", "none"])
            .start();
        let path = folder.path().join("found/gpu-check.json");
        let one_passed = || {
            path.is_file()
                && read_json(&path)["checks"]
                    .as_array()
                    .is_some_and(|rows| rows.iter().any(|row| row["state"] == "passed"))
        };
        if !job.holds_before_its_end("a row that has passed", one_passed) {
            continue;
        }
        job.signal(rustix::process::Signal::KILL);
        drop(job);
        let json = read_json(&path);
        assert_ne!(json["verdict"], "failed");
        assert!(json["checks"].as_array().unwrap().len() == 6);
        return;
    }
    panic!("it has ended five times before it could be killed");
}

#[test]
fn a_check_that_is_asked_to_end_ends_its_parts_first() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["gpu-check", "--device", "flex", "--quick", "--out", "found"];
    let mut job = Everburn::bench(folder.path(), flags)
        .words("--sections numbers --python none --plant hang")
        .start();
    let log = folder.path().join("found/gpu-check.log");
    let part = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let line = text.lines().find(|line| line.contains("] $ "))?;
        line.strip_prefix('[')?
            .split_once(']')?
            .0
            .parse::<u32>()
            .ok()
    };
    job.wait_for("a part that hangs", || part().is_some());
    let part = part().unwrap();
    assert!(!everburn_record::proc::has_ended(part));
    job.signal(rustix::process::Signal::TERM);
    let ended = job.wait();
    assert_eq!(ended.code(), 130, "{ended}");
    ended.warns(["interrupted"]);
    assert!(everburn_record::proc::has_ended(part), "{ended}");
}

/// A stand-in for a Python with PyTorch, in shell.
fn peer(folder: &Path, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("python");
    let probe = "#!/bin/sh\nif [ \"$1\" = -c ]; then exit ${PROBE:-0}; fi\n";
    std::fs::write(&path, format!("{probe}{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn pytorchs_numbers_stand_beside_ours() {
    let folder = tempfile::tempdir().unwrap();
    let python = peer(
        folder.path(),
        r#"echo "a library says something"
echo '{"kind": "versions", "text": "torch 9.9"}'
echo '{"kind": "rate", "name": "mnist, batch 64", "side": "eager", "per_second": 1e-6}'
echo '{"kind": "rate", "name": "mnist, batch 64", "side": "compiled", "per_second": 1e9}'
echo '{"kind": "failure", "name": "mnist, batch 512", "side": "compiled", "reason": "no compiler"}'"#,
    );
    let found = check_in(
        folder,
        ["--sections", "throughput,peers", "--python", &python],
    );
    let json = found.json();
    assert_eq!(json["machine"]["pytorch"], "torch 9.9", "{}", found.ended);
    let benchmarks = json["benchmarks"].as_array().unwrap();
    assert_eq!(benchmarks[0]["eager"]["per_second"], 1e-6);
    assert_eq!(benchmarks[1]["compiled"]["state"], "skipped");
    assert_eq!(benchmarks[1]["compiled"]["note"], "no compiler");
    assert_eq!(benchmarks[2]["eager"]["state"], "not-reached");
    assert_eq!(
        (json["verdict"].as_str(), found.ended.code()),
        (Some("incomplete"), 1)
    );
    found.page().assert_contains(["met (1.00x PyTorch)"]);
}

#[test]
fn a_python_without_pytorch_is_skipped_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let python = peer(folder.path(), "").to_string();
    std::fs::write(
        &python,
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n",
    )
    .unwrap();
    let found = check_in(folder, ["--sections", "peers", "--python", &python]);
    assert_eq!(found.ended.code(), 0, "{}", found.ended);
    let found = check("--sections throughput,peers --python /no/such/python".split(' '));
    assert_eq!(found.ended.code(), 0, "{}", found.ended);
    let note = found.json()["benchmarks"][0]["eager"]["note"].to_string();
    note.assert_contains(["/no/such/python cannot be started"]);
}

#[test]
fn without_a_gpu_the_check_is_refused_with_what_is_missing() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        return skip("the refusal without a GPU", "there is one");
    }
    let folder = tempfile::tempdir().unwrap();
    let ended = Everburn::bench(folder.path(), ["gpu-check"]).start().wait();
    assert_eq!(ended.code(), 2, "{ended}");
    ended.warns(["cuda:0 cannot be used"]);
}
