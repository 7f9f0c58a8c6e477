//! docs/launching/train.sbatch, with stand-ins for Slurm's programs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// What docs/launching/train.sbatch makes of how its step has ended: its code, and what it asked of Slurm.
fn turn_of_the_batch_script(
    folder: &Path,
    step: &str,
    variables: &[(&str, &str)],
) -> (i32, String) {
    let stub = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    stub("openssl", "echo a-secret-of-the-job");
    stub("scontrol", "echo \"$*\" >>requeued");
    stub("srun", step);
    let script = std::path::absolute("../docs/launching/train.sbatch").unwrap();
    let path = std::env::var("PATH").unwrap();
    let status = Command::new("bash")
        .arg(script)
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("SLURM_JOB_NAME", "job")
        .env("SLURM_JOB_ID", "7")
        .envs(variables.iter().copied())
        .status()
        .unwrap();
    let requeued = std::fs::read_to_string(folder.join("requeued")).unwrap_or_default();
    let _ = std::fs::remove_file(folder.join("requeued"));
    (status.code().unwrap(), requeued)
}

#[test]
fn the_batch_script_asks_for_another_turn_after_a_stop_and_for_none_after_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let turn = |step: &str| turn_of_the_batch_script(folder.path(), step, &[]);
    let report = |stopped: &str, number: u32| {
        let finished = stopped == "null";
        let text =
            format!("{{\"seconds\": {number}, \"finished\": {finished}, \"stopped\": {stopped}}}");
        format!("mkdir -p runs/job/checkpoints; echo '{text}' >runs/job/report.json")
    };
    let none = String::new();
    // A task that waited for one that was refused.
    assert_eq!(turn("exit 143"), (143, none.clone()));
    let stopped = report("\"on request after step 7\"", 1);
    let requeued = "requeue 7\n".to_owned();
    assert_eq!(turn(&stopped), (0, requeued.clone()));
    // The report is that of the turn before.
    assert_eq!(turn("exit 143"), (143, none.clone()));
    let stopped = report("\"on request after step 9\"", 2);
    assert_eq!(turn(&format!("{stopped}; exit 143")), (0, requeued.clone()));
    let failed = report("\"rank 1 was lost\"", 3);
    assert_eq!(turn(&format!("{failed}; exit 75")), (75, none.clone()));
    // All tasks were stopped while they joined; and one was refused meanwhile.
    assert_eq!(turn("exit 0"), (0, requeued));
    assert_eq!(turn("exit 2"), (2, none.clone()));
    assert_eq!(turn(&report("null", 4)), (0, none.clone()));
    // Nothing is left to train.
    assert_eq!(turn("exit 0"), (0, none));
}

#[test]
fn the_batch_script_asks_for_a_bounded_number_of_turns_and_knows_the_end_of_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let turn = |step: &str, variables: &[(&str, &str)]| {
        let (code, requeued) = turn_of_the_batch_script(folder.path(), step, variables);
        (code, !requeued.is_empty())
    };
    let count = "SLURM_RESTART_COUNT";
    assert_eq!(turn("exit 0", &[(count, "18")]), (0, true));
    assert_eq!(turn("exit 0", &[(count, "19")]), (1, false));
    assert_eq!(turn("exit 0", &[(count, "19"), ("TURNS", "50")]), (0, true));
    assert_eq!(turn("exit 0", &[("TURNS", "1")]), (1, false));
    // Some of the tasks that joined had the signal before others.
    let end = "SLURM_JOB_END_TIME";
    assert_eq!(turn("exit 75", &[(end, "1")]), (0, true));
    assert_eq!(turn("exit 75", &[(end, "99999999999")]), (75, false));
    assert_eq!(turn("exit 2", &[(end, "1")]), (2, false));
}
