//! Ranks that other launchers start: the variables that `mpirun` and `srun` set, made up, and the real
//! `torchrun`.

#[path = "launchers/batch_script.rs"]
mod batch_script;
#[path = "launchers/begin.rs"]
mod begin;
#[path = "launchers/torchrun.rs"]
mod torchrun;

use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;

use everburn_tests::{Ended, Everburn, Job, ORPHAN_DEADLINE, Run, TOKEN, on_a_free_port, skip};
use rustix::process::Signal;
use tempfile::TempDir;

/// Three steps on synthetic digits, for which ranks wait a minute at the most.
fn three_steps(folder: &Path) -> Everburn {
    Everburn::train(folder, "mnist").args(["--steps", "3", "--run-dir", "run", "--timeout", "60"])
}

/// Starts two ranks of `command` with what `variables` says for each and for a port, until the port is theirs.
fn two_ranks<V>(
    command: impl Fn(&Path) -> Everburn,
    variables: impl Fn(usize, u16) -> V,
) -> (TempDir, [Ended; 2])
where
    V: IntoIterator<Item = (&'static str, String)>,
{
    on_a_free_port(|port| {
        let folder = tempfile::tempdir().unwrap();
        let jobs = [0, 1].map(|rank| {
            let command = command(folder.path()).env("EVERBURN_JOB_TOKEN", TOKEN);
            command.envs(variables(rank, port)).start()
        });
        let ended = jobs.map(Job::wait);
        (!ended.iter().any(Ended::lost_the_port)).then_some((folder, ended))
    })
}

/// The same of a training; checks that the ranks have trained together.
fn two_ranks_train<V>(variables: impl Fn(usize, u16) -> V) -> [Ended; 2]
where
    V: IntoIterator<Item = (&'static str, String)>,
{
    let (folder, ended) = two_ranks(three_steps, variables);
    let ended = ended.map(Ended::succeeded);
    let report = Run::new(folder.path().join("run")).report();
    assert_eq!(report["world_size"], 2, "{report:#}");
    assert_eq!(report["steps"], 3, "{report:#}");
    assert!(
        !folder.path().join("run/logs").exists(),
        "it would be empty"
    );
    ended
}

/// Checks that rank 0 has said in one line who started it, and rank 1 has not.
fn only_rank_0_says(ended: &[Ended; 2], what: &str) {
    let lines = |ended: &Ended| {
        let lines = ended.stderr.lines();
        lines.filter(|line| line.contains("started by")).count()
    };
    assert!(ended[0].stderr.contains(what), "{}", ended[0]);
    assert_eq!(ended.each_ref().map(lines), [1, 0], "{}", ended[1]);
}

#[test]
fn ranks_of_mpirun_train_together() {
    let ended = two_ranks_train(|rank, port| {
        [
            ("OMPI_COMM_WORLD_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_SIZE", "2".into()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2".into()),
            ("PMIX_RANK", rank.to_string()),
            ("MASTER_PORT", port.to_string()),
        ]
    });
    let line =
        "rank 0 of 2 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), started by mpirun (Open MPI)";
    only_rank_0_says(&ended, line);
}

#[test]
fn a_rank_that_sigterm_ends_while_others_are_to_join_ends_at_once_and_leaves_the_earlier_run() {
    stopped_while_it_joins(143, |port| {
        vec![
            ("OMPI_COMM_WORLD_RANK", "0".into()),
            ("OMPI_COMM_WORLD_SIZE", "2".into()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0".into()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2".into()),
            ("MASTER_PORT", port.to_string()),
        ]
    });
    // The code of `srun` is then that of a task which was refused.
    stopped_while_it_joins(0, |port| {
        let mut variables = of_srun(0, 1).to_vec();
        variables.push(("MASTER_PORT", port.to_string()));
        variables
    });
}

fn stopped_while_it_joins(code: i32, variables: impl Fn(u16) -> Vec<(&'static str, String)>) {
    let (folder, ended) = on_a_free_port(|port| {
        let folder = tempfile::tempdir().unwrap();
        let command = three_steps(folder.path()).env("EVERBURN_JOB_TOKEN", TOKEN);
        let command = command.envs(variables(port));
        // The folder has a run already.
        std::fs::create_dir_all(folder.path().join("run/checkpoints/epoch-1")).unwrap();
        std::fs::write(folder.path().join("run/config.toml"), "earlier").unwrap();
        let mut job = command.start();
        // Rank 0 has the store, in which it waits for rank 1.
        let waits = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let waits = job.holds_before_its_end("the store of rank 0", waits);
        job.signal(Signal::TERM);
        let ended = job.wait_until_gone(ORPHAN_DEADLINE);
        (waits && !ended.lost_the_port()).then_some((folder, ended))
    });
    assert_eq!(ended.code(), code, "{ended}");
    ended.warns(["rank 0 stopped on SIGTERM before its first step: nothing was trained"]);
    // It has its folder again.
    ended.prints(["now in run~1"]);
    ended.warns(["no step was recorded: run contains the earlier run again"]);
    assert!(!folder.path().join("run~1").exists(), "{ended}");
    assert_eq!(
        Run::new(folder.path().join("run")).text("config.toml"),
        "earlier"
    );
}

#[test]
fn the_signal_that_stops_ranks_of_srun_is_named_by_its_rank_and_in_the_report() {
    let (folder, ended) = on_a_free_port(|port| {
        let folder = tempfile::tempdir().unwrap();
        let [mut first, second] = [0, 1].map(|rank| {
            Everburn::train_for_long(folder.path(), "mnist")
                .args(["--run-dir", "run", "--timeout", "60"])
                .env("EVERBURN_JOB_TOKEN", TOKEN)
                .envs(of_srun(rank, port))
                .start()
        });
        let run = Run::new(folder.path().join("run"));
        let trains = first.holds_before_its_end("an epoch", || run.epochs() >= 1);
        if trains {
            first.signal(Signal::USR2);
        }
        let ended = [first, second].map(Job::wait);
        trains.then_some((folder, ended))
    });
    let [first, second] = ended.map(Ended::succeeded);
    let line =
        "stopping on SIGUSR2, after the current step, with a checkpoint: rank 0 has the signal";
    first.warns([line]);
    first.prints([
        "the job, started again with --resume --run-dir run, continues from the checkpoint",
    ]);
    assert!(!second.stderr.contains("stopping on"), "{second}");
    let report = Run::new(folder.path().join("run")).report();
    let stopped = report["stopped"].as_str().unwrap();
    let begin = "on request by SIGUSR2 after step ";
    assert!(stopped.starts_with(begin), "{report:#}");
}

/// What `srun` tells one of two tasks on one node, of a job whose number makes `port` the store's.
fn of_srun(rank: usize, port: u16) -> [(&'static str, String); 9] {
    [
        ("SLURM_JOB_ID", port.to_string()),
        ("SLURM_STEP_ID", "0".into()),
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_LOCALID", rank.to_string()),
        ("SLURM_NODEID", "0".into()),
        ("SLURM_NTASKS", "2".into()),
        ("SLURM_STEP_NUM_TASKS", "2".into()),
        ("SLURM_STEP_TASKS_PER_NODE", "2".into()),
        ("SLURM_STEP_NODELIST", "localhost".into()),
    ]
}

#[test]
fn ranks_of_srun_train_together_on_a_port_derived_from_the_job() {
    let ended = two_ranks_train(of_srun);
    only_rank_0_says(
        &ended,
        "rank 0 of 2 (SLURM_PROCID, SLURM_STEP_NUM_TASKS), started by srun",
    );
    only_rank_0_says(&ended, "a port derived from SLURM_JOB_ID and SLURM_STEP_ID");
}

#[test]
fn a_finder_under_srun_leaves_no_folder_of_checkpoints() {
    let words = "--find-learning-rate --train-samples 106 --validation-samples 10 --batch-size 32 --run-dir run --timeout 60";
    let finder = |folder: &Path| Everburn::train(folder, "mlp").words(words);
    let (folder, ended) = two_ranks(finder, of_srun);
    let ended = ended.map(Ended::succeeded);
    let run = folder.path().join("run");
    assert!(run.join("learning-rate.json").is_file(), "{}", ended[0]);
    assert!(!run.join("checkpoints").exists(), "{}", ended[0]);
}

#[test]
fn the_only_task_of_srun_says_that_it_starts_the_ranks_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    three_steps(folder.path()).args(["--ranks", "2"]).succeed();
    let only = of_srun(0, 1).map(|(name, value)| match name {
        "SLURM_NTASKS" | "SLURM_STEP_NUM_TASKS" | "SLURM_STEP_TASKS_PER_NODE" => (name, "1".into()),
        _ => (name, value),
    });
    let line = "the run has 2 ranks, which this process starts, the only task of srun (Slurm)";
    for (more, ranks) in [
        (&["--steps", "5"][..], 2),
        (&["--steps", "7", "--ranks", "1"], 1),
    ] {
        let command = Everburn::line(folder.path(), "train --resume --run-dir run").args(more);
        let ended = command.envs(only.clone()).succeed();
        let report = Run::new(folder.path().join("run")).report();
        assert_eq!(report["world_size"], ranks, "{ended}");
        assert_eq!(ended.stderr.contains(line), ranks == 2, "{ended}");
        let is_listed = ended.stdout.contains("ranks = 1 (was 2)");
        assert_eq!(is_listed, ranks == 1, "{ended}");
    }
}

#[test]
fn nodes_that_a_task_of_srun_is_given_are_answered_with_its_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let command = three_steps(folder.path()).args(["--nodes", "2"]);
    let command = command.envs(of_srun(0, 1));
    let help = "srun (Slurm) has started 2 ranks: leave --nodes out; or have it start one task per node, with --node-rank \
                $SLURM_NODEID --rendezvous HOST:PORT";
    command
        .env("EVERBURN_JOB_TOKEN", TOKEN)
        .refused(&["--nodes 2 without --node-rank", help]);
}

#[test]
fn flags_of_the_launcher_that_are_variables_under_srun_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, help) in [
        (
            &["--job-token", "a-secret-of-the-job"][..],
            "--job-token is a flag of Everburn's launcher: export EVERBURN_JOB_TOKEN",
        ),
        (&["--open-store"][..], "export EVERBURN_OPEN_STORE=1"),
    ] {
        let command = three_steps(folder.path()).args(flags);
        command
            .envs(of_srun(0, 1))
            .refused(&["EVERBURN_JOB_TOKEN is not set", help]);
    }
}

#[test]
fn pods_of_a_kubernetes_job_train_together() {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy().into_owned();
    if (host.as_str(), 0).to_socket_addrs().is_err() {
        let why = format!("this machine does not know its own name, {host}");
        return skip("pods_of_a_kubernetes_job_train_together", &why);
    }
    let ended = two_ranks_train(|rank, port| {
        [
            ("JOB_COMPLETION_INDEX", rank.to_string()),
            ("WORLD_SIZE", "2".into()),
            ("MASTER_ADDR", host.clone()),
            ("MASTER_PORT", port.to_string()),
        ]
    });
    only_rank_0_says(&ended, "started by Kubernetes (indexed job)");
}

#[test]
fn flags_and_commands_that_are_none_of_a_rank_are_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let hydra = [
        ("PMI_RANK", "0"),
        ("PMI_SIZE", "2"),
        ("MPI_LOCALNRANKS", "2"),
        ("MASTER_PORT", "29500"),
    ];
    let cases = [
        (
            three_steps(folder.path())
                .envs(hydra)
                .env("EVERBURN_JOB_TOKEN", TOKEN)
                .args(["--ranks", "2"]),
            "leave --ranks out; or start one process per machine",
        ),
        (
            three_steps(folder.path())
                .env("RANK", "0")
                .env("WORLD_SIZE", "2")
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", "29500")
                .env("EVERBURN_JOB_TOKEN", TOKEN)
                .args(["--ranks", "2"]),
            "this is a rank already",
        ),
        (
            Everburn::new(folder.path(), ["verify", "mlp"]).envs(hydra),
            "this command runs in one process, and this is one of several",
        ),
    ];
    for (command, message) in cases {
        let ended = command.refused(&[message]);
        assert!(ended.stdout.is_empty(), "nothing was started: {ended}");
    }
    assert!(!folder.path().join("run").exists());
}

#[test]
fn a_batch_script_and_a_task_that_launches_ranks_itself_are_no_ranks() {
    let batch_script = [
        ("ENVIRONMENT", "BATCH"),
        ("SLURM_JOB_ID", "7"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let start = || three_steps(folder.path()).envs(batch_script);
    let world_size = || {
        let report = Run::new(folder.path().join("run")).report();
        report["world_size"].as_u64().unwrap()
    };
    let alone = start().succeed();
    alone.warns(["SLURM_NTASKS is 4, but srun has not started this process"]);
    assert_eq!(world_size(), 1);
    let pod = three_steps(folder.path()).env("JOB_COMPLETION_INDEX", "3");
    let pod = pod.succeed();
    let note = "JOB_COMPLETION_INDEX is 3, but WORLD_SIZE is not set: this pod trains alone";
    pod.warns([note]);
    let step = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
    start().envs(step).args(["--ranks", "2"]).succeed();
    assert_eq!(world_size(), 2);
}
