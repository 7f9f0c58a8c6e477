//! The batch scripts of docs/launching, with stand-ins for Slurm's programs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// One task per rank, which `srun` starts.
const TASKS: &str = "train.sbatch";

/// One task per node, which starts the ranks.
const LAUNCHERS: &str = "launchers.sbatch";

/// What a script of docs/launching makes of how its step has ended: its code, and what it asked of Slurm.
fn turn_of_a_batch_script(
    script: &str,
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
    stub(
        "scontrol",
        "if [ \"$1\" = show ]; then printf 'n1\\nn2\\n'; else [ -z \"${REFUSED:-}\" ] && echo \"$*\" >>requeued; fi",
    );
    stub("srun", step);
    let script = std::path::absolute(Path::new("../docs/launching").join(script)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let status = Command::new("bash")
        .arg(script)
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("SLURM_JOB_NAME", "job")
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_JOB_NODELIST", "n[1-2]")
        .envs(variables.iter().copied())
        .status()
        .unwrap();
    let requeued = std::fs::read_to_string(folder.join("requeued")).unwrap_or_default();
    let _ = std::fs::remove_file(folder.join("requeued"));
    (status.code().unwrap(), requeued)
}

/// A step that has written a report of this kind.
fn report(stopped: &str, number: u32) -> String {
    let finished = stopped == "null";
    let text =
        format!("{{\"seconds\": {number}, \"finished\": {finished}, \"stopped\": {stopped}}}");
    // A checkpoint, with which the next turn resumes.
    format!("mkdir -p runs/job/checkpoints/epoch-1; echo '{text}' >runs/job/report.json")
}

#[test]
fn the_batch_script_asks_for_another_turn_after_a_stop_and_for_none_after_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let turn = |step: &str| turn_of_a_batch_script(TASKS, folder.path(), step, &[]);
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
        let (code, requeued) = turn_of_a_batch_script(TASKS, folder.path(), step, variables);
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
    // Slurm gives none to a job that was updated to Requeue=0.
    assert_eq!(turn("exit 0", &[("REFUSED", "1")]), (0, false));
}

#[test]
fn a_signal_to_the_batch_shell_is_passed_on_to_srun_and_waited_for() {
    let stopped = report("\"on request by SIGUSR1 after step 7\"", 1);
    // A rank that is stopped ends with 0, a launcher with the number of the signal.
    for (script, code) in [(TASKS, 0), (LAUNCHERS, 138)] {
        let folder = tempfile::tempdir().unwrap();
        let step = format!(
            "stop() {{ {stopped}; exit {code}; }}; trap stop USR1; kill -USR1 $PPID
             for _ in {{1..3000}}; do sleep 0.02; done; exit 3"
        );
        let turn = turn_of_a_batch_script(script, folder.path(), &step, &[]);
        assert_eq!(turn, (0, "requeue 7\n".to_owned()), "{script}");
    }
}

#[test]
fn the_batch_script_of_launchers_decides_by_the_report_and_not_by_143() {
    let folder = tempfile::tempdir().unwrap();
    let turn_with = |step: &str, variables: &[(&str, &str)]| {
        let (code, requeued) = turn_of_a_batch_script(LAUNCHERS, folder.path(), step, variables);
        (code, !requeued.is_empty())
    };
    let turn = |step: &str| turn_with(step, &[]);
    // One launcher was refused, and --kill-on-bad-exit has sent SIGTERM to the other.
    assert_eq!(turn("exit 143"), (143, false));
    assert_eq!(turn("exit 2"), (2, false));
    let stopped = report("\"on request by SIGTERM after step 7\"", 1);
    assert_eq!(turn(&format!("{stopped}; exit 143")), (0, true));
    // The report is that of the turn before.
    assert_eq!(turn("exit 143"), (143, false));
    let end = ("SLURM_JOB_END_TIME", "1");
    for code in [75, 138, 143] {
        assert_eq!(turn_with(&format!("exit {code}"), &[end]), (0, true));
    }
    assert_eq!(turn_with("exit 138", &[]), (138, false));
    assert_eq!(turn_with("exit 2", &[end]), (2, false));
    let last = ("SLURM_RESTART_COUNT", "19");
    assert_eq!(turn_with("exit 143", &[end, last]), (1, false));
    assert_eq!(
        turn_with("exit 143", &[end, last, ("TURNS", "50")]),
        (0, true)
    );
    let failed = report("\"rank 1 was lost\"", 2);
    assert_eq!(turn(&format!("{failed}; exit 75")), (75, false));
    assert_eq!(turn(&report("null", 3)), (0, false));
    // Nothing is left to train.
    assert_eq!(turn("exit 0"), (0, false));
    // An elastic job has finished without a launcher that was lost.
    let lost = |number| format!("{}; exit 137", report("null", number));
    let elastic = [("ELASTIC", "4:8")];
    assert_eq!(turn_with(&lost(4), &elastic), (0, false));
    assert_eq!(turn_with("exit 137", &elastic), (137, false));
    assert_eq!(turn(&lost(5)), (137, false));
}

#[test]
fn the_batch_script_of_launchers_gives_each_the_flags_of_its_node() {
    let folder = tempfile::tempdir().unwrap();
    let command = |variables: &[(&str, &str)], of_srun: &str, elastic: &str, run: &str| {
        let step = "while [ \"$1\" != sh ]; do printf '%s ' \"$1\"; shift; done >of_srun\n\
                    printf '#!/bin/bash\\necho \"$*\" >command\\n' >everburn; chmod +x everburn\n\
                    SLURM_NNODES=2 SLURM_NODEID=1 \"$@\"";
        turn_of_a_batch_script(LAUNCHERS, folder.path(), step, variables);
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("of_srun"), format!("{of_srun} --label "));
        let flags = "train mnist --data mnist --epochs 3 --checkpoint-every 10min --ranks 4 --nodes 2 --node-rank 1 \
                     --rendezvous n1:15007";
        let expected = format!("{flags}{elastic} --run-dir {run}");
        assert_eq!(read("command").trim_end(), expected);
    };
    let fails = "--kill-on-bad-exit=1";
    command(&[], fails, "", "runs/job");
    let array = [("SLURM_ARRAY_TASK_ID", "3")];
    command(&array, fails, "", "runs/job-3");
    std::fs::create_dir_all(folder.path().join("runs/job/checkpoints/epoch-1")).unwrap();
    command(&[], fails, "", "runs/job --resume");
    command(&array, fails, "", "runs/job-3");
    let continues = "--kill-on-bad-exit=0 --no-kill --wait=0";
    let elastic = [("ELASTIC", "4:8")];
    command(&elastic, continues, " --elastic 4:8", "runs/job --resume");
}
