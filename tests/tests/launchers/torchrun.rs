//! Ranks of `torchrun`, and the variables that it sets.

use std::path::{Path, PathBuf};

use everburn_tests::{Everburn, Run, on_a_free_port};

use super::three_steps;

/// What a person sets for the only rank of a world, and a shell may have left over.
const ALONE: [(&str, &str); 4] = [
    ("RANK", "0"),
    ("WORLD_SIZE", "1"),
    ("MASTER_ADDR", "127.0.0.1"),
    ("MASTER_PORT", "0"),
];

#[test]
fn a_world_of_one_starts_the_ranks_that_are_asked_for_and_one_of_torchrun_stays_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = |command: Everburn, ranks: u64| {
        let ended = command.envs(ALONE).succeed();
        let report = Run::new(folder.path().join("run")).report();
        assert_eq!(report["world_size"], ranks, "{ended}");
        ended
    };
    let resume = |steps: &str| {
        let arguments = ["train", "--resume", "--run-dir", "run", "--steps", steps];
        Everburn::new(folder.path(), arguments)
    };
    run(three_steps(folder.path()).args(["--ranks", "2"]), 2);
    let ended = run(resume("5"), 2);
    let line = "the run has 2 ranks, which this process starts, the only one by WORLD_SIZE=1";
    ended.warns([line]);
    let ended = run(resume("7").env("TORCHELASTIC_RUN_ID", "x"), 1);
    ended.warns(["the run has 2 ranks, and continues on 1, as many as torchrun has started"]);
}

#[test]
fn flags_that_start_ranks_are_refused_in_torchruns_with_what_works() {
    let folder = tempfile::tempdir().unwrap();
    let machines = ["--nodes", "2", "--node-rank", "0"];
    for (world_size, flags) in [("2", &["--ranks", "2"][..]), ("1", &machines[..])] {
        let command = three_steps(folder.path()).args(flags).envs(ALONE);
        let more = [
            ("WORLD_SIZE", world_size),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "x"),
            ("EVERBURN_OPEN_STORE", "1"),
            ("EVERBURN_LAUNCHER", "none"),
        ];
        let ended = command.envs(more).run();
        let help =
            "leave --ranks and the flags of machines out, for torchrun has started the ranks";
        let named = match flags {
            ["--ranks", _] => "--ranks is given, but this is a rank already",
            _ => "--nodes, --node-rank are given, but this is a rank already",
        };
        ended.failed_with(2, &[named, help]);
        assert!(!ended.stderr.contains("EVERBURN_LAUNCHER"), "{ended}");
    }
}

/// The `torchrun` beside the Python that EVERBURN_PYTHON names.
fn torchrun() -> PathBuf {
    let python = std::env::var_os("EVERBURN_PYTHON");
    let python = python.expect("EVERBURN_PYTHON names a Python that has torch");
    let torchrun = Path::new(&python).with_file_name("torchrun");
    assert!(torchrun.is_file(), "there is no {}", torchrun.display());
    torchrun
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn ranks_of_torchrun_train_over_its_store() {
    let torchrun = torchrun();
    let folder = tempfile::tempdir().unwrap();
    let start = |ranks: &str, arguments: &[&str], run: &str| {
        let arguments = [&["--nproc-per-node", ranks], arguments].concat();
        Everburn::train(folder.path(), "mnist")
            .words("--steps 50 --epochs 10 --batch-size 64 --timeout 20")
            .args(["--run-dir", run])
            .by(folder.path(), &torchrun, arguments)
            .env("OMP_NUM_THREADS", "1")
            .env("EVERBURN_OPEN_STORE", "1")
            .run()
    };
    let check = |run: &str, ranks: u64| {
        let report = Run::new(folder.path().join(run)).report();
        assert_eq!(report["world_size"], ranks, "{report:#}");
        assert_eq!(report["steps"], 50, "{report:#}");
    };
    // By itself it takes a port of its own choice.
    let ended = start("2", &["--standalone", "--no-python"], "standalone").succeeded();
    ended.warns(["started by torchrun", "the launcher's store"]);
    check("standalone", 2);
    // With three ranks or more, some wait in its store while others look for what they wait for.
    start("4", &["--standalone", "--no-python"], "four").succeeded();
    check("four", 4);
    // As on several machines, at an address that is given.
    let ended = on_a_free_port(|port| {
        let ended = start(
            "2",
            &["--master-port", &port.to_string(), "--no-python"],
            "given",
        );
        (!ended.lost_the_port()).then_some(ended)
    });
    let ended = ended.succeeded();
    ended.warns(["meet at 127.0.0.1:"]);
    check("given", 2);
}
