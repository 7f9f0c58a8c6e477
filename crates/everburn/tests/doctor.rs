//! An examination of the ways between ranks, as `everburn doctor --ranks` starts it.

use std::process::Command;

use everburn_tests::{TOKEN, Talker};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_everburn");

/// A store, and its port.
fn store() -> (Talker, String) {
    let mut command = Command::new(PROGRAM);
    command.env("EVERBURN_JOB_TOKEN", TOKEN).arg("store");
    let mut store = Talker::start(&mut command);
    let line = store.line();
    let (_, port) = line.trim().rsplit_once(':').unwrap();
    let port = port.to_owned();
    (store, port)
}

/// Ranks of an examination, by what they are started with.
fn examiners(count: usize, world_size: usize, port: &str, more: &[&str]) -> Vec<Talker> {
    let examiner = |rank: usize| {
        let mut command = Command::new(PROGRAM);
        command
            .arg("doctor-rank")
            .args(more)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world_size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port)
            .env("TORCHELASTIC_USE_AGENT_STORE", "True")
            .env_remove("EVERBURN_LAUNCHER_PID")
            .env("EVERBURN_JOB_TOKEN", TOKEN);
        Talker::start(&mut command)
    };
    (0..count).map(examiner).collect()
}

#[test]
fn an_examination_finds_the_same_on_every_rank() {
    let (store, port) = store();
    let mut ranks = examiners(3, 3, &port, &["--bytes", "100000"]);
    let answers: Vec<Value> = ranks.iter_mut().map(Talker::answer).collect();
    for (rank, answer) in answers.iter().enumerate() {
        assert_eq!(answer["rank"], rank, "{answer}");
        assert_eq!(answer["found"], answers[0]["found"]);
    }
    let found = answers[0]["found"].as_array().unwrap();
    let all = |name: &str| -> Vec<&Value> {
        let lists = found.iter().flat_map(|of| of[name].as_array().unwrap());
        lists.collect()
    };
    assert_eq!(all("reach").len(), 6);
    assert!(all("reach").iter().all(|reach| reach["error"].is_null()));
    // Three pairs, two ways, told by both.
    assert_eq!(all("pairs").len(), 12);
    for pair in all("pairs") {
        assert_eq!((&pair["wrong"], &pair["error"]), (&json!(0), &Value::Null));
        assert!(pair["bytes_per_second"].as_f64().unwrap() > 0.0, "{pair}");
        assert!(pair["round_trip_us"].as_f64().unwrap() > 0.0, "{pair}");
    }
    assert!(found[2]["clock"]["error_us"].as_f64().unwrap() > 0.0);
    ranks.into_iter().for_each(Talker::finish);
    drop(store);
}

#[test]
fn an_examination_names_the_rank_that_did_not_come() {
    let (store, port) = store();
    let mut ranks = examiners(2, 3, &port, &["--timeout", "5"]);
    for rank in &mut ranks {
        let error = rank.answer()["error"].to_string();
        assert!(error.contains("missing: rank 2"), "{error}");
    }
    ranks.into_iter().for_each(Talker::finish);
    drop(store);
}

#[test]
fn the_report_has_every_pair_over_every_way_and_what_is_wrong_last() {
    let output = Command::new(PROGRAM)
        .args(["doctor", "--ranks", "3", "--timeout", "120"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let ways = |way: &str| {
        let of = |line: &&str| line.contains(" - ") && line.contains(way) && line.ends_with("ok");
        text.lines().filter(of).count()
    };
    assert_eq!((ways("shared memory"), ways("TCP")), (3, 3), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.contains(" checked, "), "{text}");
    assert!(!text.contains("cargo"), "{text}");
}

#[test]
fn a_machine_that_slurm_has_given_to_no_job_leads_to_those_of_a_job() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sbatch"), "").unwrap();
    let examined = |job: Option<&str>| {
        let mut command = Command::new(PROGRAM);
        command.arg("doctor").env("PATH", folder.path());
        command.env("EVERBURN_CALLED_AS", "everburn");
        command.env_remove("SLURM_JOB_ID");
        command.envs(job.map(|job| ("SLURM_JOB_ID", job)));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let outside = examined(None);
    let first = outside.lines().next().unwrap();
    assert!(first.starts_with("warn  machine "), "{outside}");
    assert!(
        first.ends_with(", outside of an allocation of Slurm"),
        "{outside}"
    );
    assert!(outside.contains("`srun everburn doctor`"), "{outside}");
    let inside = examined(Some("7"));
    assert!(inside.starts_with("ok    machine "), "{inside}");
    assert!(!inside.contains("srun everburn"), "{inside}");
}

#[test]
fn beside_a_run_that_has_failed_this_machine_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let programs = tempfile::tempdir().unwrap();
    std::fs::write(programs.path().join("sbatch"), "").unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("config.toml", "model = 'mlp'\n");
    let examined = || {
        let mut command = Command::new(PROGRAM);
        command.env("PATH", programs.path());
        command.env_remove("SLURM_JOB_ID");
        let output = command.arg("doctor").arg(folder.path()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let are_ok = |text: &str| text.lines().filter(|line| line.starts_with("ok  ")).count();
    let well = examined();
    assert!(are_ok(&well) > 0 && !well.contains("not shown"), "{well}");
    let warning = "outside of an allocation of Slurm";
    assert!(well.contains(warning), "{well}");
    write(
        "live.json",
        r#"{"phase":"ended","failure":"rank 0 has failed"}"#,
    );
    let failed = examined();
    assert!(failed.starts_with("FAIL  run "), "{failed}");
    assert_eq!(are_ok(&failed), 0, "{failed}");
    assert!(!failed.contains(warning), "{failed}");
    let last = failed.lines().last().unwrap();
    assert!(
        last.contains(" of this machine are not shown, `"),
        "{failed}"
    );
}

#[test]
fn a_machine_beyond_the_last_is_refused() {
    let mut command = Command::new(PROGRAM);
    let more = ["--nodes", "2", "--node-rank", "2"];
    let command = command.args(["doctor", "--rendezvous", "127.0.0.1:1"]);
    let output = command.args(more).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("numbered from 0"), "{why}");
}
