//! Ranks that find each other: several machines, ranks started by hand, and what can be wrong.

use std::net::{TcpListener, TcpStream};
use std::path::Path;

use everburn_tests::{AssertContains, Ended, Everburn, Run, TOKEN, Terminal, on_a_free_port};
use rustix::process::Signal;

/// How many seconds ranks wait for each other here: longer than a test waits for them, so that one that they would end fails.
const PATIENCE: &str = "600";

/// Starts two commands in one folder, as on machines that share a disk, and waits for both to end. They meet at a port.
fn both(start: impl Fn(&Path, usize, u16) -> Everburn) -> (tempfile::TempDir, [Ended; 2]) {
    on_a_free_port(|port| {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = [0, 1].map(|number| start(folder.path(), number, port).start());
        let first = first.wait();
        // Otherwise nobody will come to the second.
        (!first.lost_the_port()).then(|| (folder, [first, second.wait()]))
    })
}

/// Machine `number` of `nodes`, with one rank.
fn machine(folder: &Path, number: usize, nodes: usize, port: u16) -> Everburn {
    Everburn::train(folder, "mlp")
        .args(["--run-dir", "run", "--ranks", "1"])
        .args(["--nodes", &nodes.to_string()])
        .args(["--node-rank", &number.to_string()])
        .args(["--rendezvous", &format!("127.0.0.1:{port}")])
        .args(["--timeout", PATIENCE])
        .env("EVERBURN_JOB_TOKEN", TOKEN)
}

#[test]
fn two_machines_train_one_model() {
    let (folder, ended) =
        both(|folder, number, port| machine(folder, number, 2, port).args(["--epochs", "2"]));
    let [first, second] = ended.map(Ended::succeeded);
    let run = Run::new(folder.path().join("run"));
    let report = run.report();
    assert_eq!(report["world_size"], 2, "{report:#}");
    assert_eq!(report["epochs"], 2, "{report:#}");
    assert!(report["test_accuracy"].is_number(), "{report:#}");
    first.prints(["[rank 0] epoch 2/2"]);
    assert!(second.stdout.starts_with("data: "), "{second}");
    // Nothing of the two collides.
    let other = Run::new(folder.path().join("run-node-1"));
    other.text("logs/rank-1.log");
    assert!(!other.path.join("report.json").exists(), "rank 0 records");
    let resumed = Everburn::train(folder.path(), "mlp")
        .args(["--resume", "--run-dir", "run-node-1"])
        .run();
    let said = [
        "run-node-1 is the folder of machine 1",
        "the checkpoints of the run are in run on machine 0",
        "`--run-dir run`",
    ];
    resumed.failed_with(2, &said);
}

#[test]
fn machines_without_a_shared_disk_resume_by_the_same_commands() {
    let folder = tempfile::tempdir().unwrap();
    let disks = [0, 1].map(|number: usize| folder.path().join(number.to_string()));
    disks
        .iter()
        .for_each(|disk| std::fs::create_dir(disk).unwrap());
    let train = |flags: &[&str]| {
        let (_folder, ended) =
            both(|_, number, port| machine(&disks[number], number, 2, port).args(flags));
        ended
    };
    let _ = train(&["--epochs", "1"]).map(Ended::succeeded);
    let resumed = train(&["--epochs", "2", "--resume"]).map(Ended::succeeded);
    resumed[0].warns(["resuming from run/checkpoints/epoch-0001"]);
    assert_eq!(Run::new(disks[0].join("run")).report()["epochs"], 2);
    let own = |name: &str| disks[1].join(name).exists();
    assert!(own("run-node-1") && !own("run") && !own("run-node-1-node-1"));
    // A machine that is new to the run is told what it lacks.
    std::fs::remove_dir_all(disks[1].join("run-node-1")).unwrap();
    machine(&disks[1], 1, 2, 1).args(["--resume"]).refused(&[
        "no run in run to resume, and none in run-node-1",
        "config.toml of machine 0",
    ]);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let ended = Everburn::train(folder.path(), "mlp")
        .args(["--nodes", "2", "--node-rank", "0"])
        .args(["--rendezvous", &format!("127.0.0.1:{port}")])
        .env("EVERBURN_JOB_TOKEN", TOKEN)
        .run();
    let address = format!("port in use: 127.0.0.1:{port}");
    ended.failed_with(2, &[&address, "choose another port", "--rendezvous"]);
    assert!(!folder.path().join("runs").exists(), "nothing was started");
}

/// One of two ranks as a person or another launcher would start it.
fn rank_by_hand(folder: &Path, rank: usize, port: u16) -> Everburn {
    Everburn::train(folder, "mlp")
        .args(["--epochs", "1", "--run-dir", "run"])
        .args(["--timeout", PATIENCE])
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("EVERBURN_JOB_TOKEN", TOKEN)
}

#[test]
fn machines_and_ranks_without_a_secret_or_with_a_short_one_do_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Everburn::train(folder.path(), "mlp")
        .words("--nodes 2 --node-rank 1 --rendezvous 127.0.0.1:1");
    let advice = ["EVERBURN_JOB_TOKEN", "openssl rand -hex 32"];
    machine.refused(&advice);
    for token in ["", "hunter2"] {
        let rank = rank_by_hand(folder.path(), 0, 1).env("EVERBURN_JOB_TOKEN", token);
        let ended = rank.run();
        assert!(!ended.stderr.contains("hunter2"), "{ended}");
        ended.failed_with(2, &advice);
    }
    assert!(!folder.path().join("run").exists(), "nothing was started");
    assert!(!folder.path().join("runs").exists(), "nothing was started");
}

#[test]
fn ranks_started_by_hand_train_together() {
    let (folder, ended) = both(rank_by_hand);
    for (rank, ended) in ended.map(Ended::succeeded).iter().enumerate() {
        ended.warns([&format!(
            "rank {rank} of 2 (RANK, WORLD_SIZE), started by hand"
        )]);
    }
    let report = Run::new(folder.path().join("run")).report();
    assert_eq!(report["world_size"], 2, "{report:#}");
}

#[test]
fn ranks_with_other_flags_are_refused_as_flags_are() {
    let (_folder, ended) = both(|folder, rank, port| {
        rank_by_hand(folder, rank, port).args(["--seed", &rank.to_string()])
    });
    for ended in ended {
        ended.failed_with(2, &["rank 1 runs something else", "seed = 1", "seed = 0"]);
    }
}

#[test]
fn a_rank_that_nobody_joins_gives_up_and_names_who_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let ended = on_a_free_port(|port| {
        // Time enough for itself to join.
        let rank = rank_by_hand(folder.path(), 0, port).args(["--timeout", "5"]);
        let rank = rank.env("LOCAL_RANK", "0").env("LOCAL_WORLD_SIZE", "1");
        let ended = rank.run();
        (!ended.lost_the_port()).then_some(ended)
    });
    ended.failed_with(
        1,
        &[
            "only 1 of 2 ranks joined",
            "missing: rank 1 of machine 1",
            "this machine's command with another --node-rank",
        ],
    );
    // There is no launcher that would record it.
    let events = Run::new(folder.path().join("run")).text("events.jsonl");
    events.assert_contains([r#"{"kind":"failure","#, "only 1 of 2 ranks joined"]);
    let doctor = Everburn::new(folder.path(), ["doctor", "run"]).run();
    let what = "it has failed: ";
    doctor
        .stdout
        .assert_contains([what, "missing: rank 1 of machine 1"]);
}

/// Monitors the run in a terminal, where no key was pressed.
fn the_first_page_shows(folder: &Path, text: &str) {
    let Some(terminal) = Terminal::open_or_skip(folder, "the first page of a monitor") else {
        return;
    };
    terminal.enter_everburn("monitor run");
    terminal.wait_for(text, |screen| {
        screen.contains("r ranks") && screen.contains(text)
    });
    terminal.close();
}

#[test]
fn machines_that_wait_for_another_say_so_and_are_told_where_the_first_is_stopped() {
    let (first, second) = on_a_free_port(|port| {
        let folder = tempfile::tempdir().unwrap();
        let mut first = machine(folder.path(), 0, 3, port).start();
        let second = machine(folder.path(), 1, 3, port).start();
        let run = Run::new(folder.path().join("run"));
        let waits = first.holds_before_its_end("the third machine", || {
            let events = run.text_if_there("events.jsonl");
            let waits = events.contains("waiting for rank 2 of machine 2, ");
            waits && events.contains(r#""ranks":[0,1],"waits_until_ms":"#)
        });
        if waits {
            let doctor = Everburn::new(folder.path(), ["doctor", "run"]).run();
            doctor.prints(["waiting for rank 2"]);
            the_first_page_shows(folder.path(), "waiting for rank 2 of machine 2, ");
            first.signal(Signal::INT);
        }
        let first = first.wait();
        (waits || !first.lost_the_port()).then(|| (first, second.wait()))
    });
    first.failed_with(130, &["stopped on request"]);
    second.failed_with(130, &["the job was stopped on request, on another machine"]);
}

#[test]
fn a_machine_that_is_refused_is_named_with_its_reason_where_others_wait_for_it() {
    let (first, second) = on_a_free_port(|port| {
        let folder = tempfile::tempdir().unwrap();
        let mut first = machine(folder.path(), 0, 2, port).start();
        let has_store = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        first.holds_before_its_end("its store", has_store);
        // Another disk, without a run.
        let other = tempfile::tempdir().unwrap();
        let second = machine(other.path(), 1, 2, port).args(["--resume"]).run();
        let first = first.wait();
        (!first.lost_the_port()).then_some((first, second))
    });
    let why = "no run in run to resume";
    second.failed_with(2, &[why]);
    first.failed_with(
        1,
        &["machine 1 has ended before all ranks had joined: ", why],
    );
}

/// Starts two machines that differ in the value of `flag`, and checks that both are told so before
/// anything is trained.
fn machines_differ(flag: &str, values: [&str; 2], difference: [&str; 2]) {
    let (folder, ended) = both(|folder, number, port| {
        let few = ["--epochs", "1", "--log-every", "1", flag, values[number]];
        machine(folder, number, 2, port).args(few)
    });
    let [theirs, ours] = difference;
    for ended in &ended {
        ended.failed_with(2, &["rank 1 runs something else", theirs, ours]);
        ended.failed_with(2, &["start every rank with the same configuration"]);
        assert!(!ended.stdout.contains("epoch"), "it trained: {ended}");
    }
    for name in ["run", "run-node-1"] {
        let run = Run::new(folder.path().join(name));
        assert!(run.metrics().is_empty(), "{name}: {:?}", run.metrics());
        assert!(!run.checkpoint(1).exists(), "{name} has a checkpoint");
        assert!(!run.path.join("report.json").exists(), "{name} reports");
    }
}

#[test]
fn machines_with_different_seeds_are_told_the_seeds() {
    let difference = ["`seed = 2` there", "`seed = 1` on rank 0"];
    machines_differ("--seed", ["1", "2"], difference);
}

#[test]
fn machines_with_different_data_are_told_how_much_each_has() {
    let difference = ["--train-samples 700 there", "--train-samples 600 on rank 0"];
    machines_differ("--train-samples", ["600", "700"], difference);
}

#[test]
fn elastic_on_one_machine_only_is_told_on_both() {
    for elastic in [0, 1] {
        let (_folder, ended) = both(|folder, number, port| {
            let machine = machine(folder, number, 2, port).args(["--epochs", "1"]);
            match number == elastic {
                true => machine.args(["--elastic", "1:2"]),
                false => machine,
            }
        });
        for ended in ended {
            ended.failed_with(2, &["with --elastic 1:2", "without --elastic"]);
            ended.failed_with(2, &["machine 0", "machine 1"]);
        }
    }
}

#[test]
fn an_elastic_machine_tries_for_the_first_as_long_as_the_flag_says() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody is machine 0.
    let machine = machine(folder.path(), 1, 2, 1).args(["--elastic", "1:2", "--timeout", "1"]);
    let ended = machine.run();
    assert_ne!(ended.code(), 0, "{ended}");
    ended.stderr.assert_contains([
        "the launcher cannot number its ranks: the store at 127.0.0.1:1 cannot be reached",
        "check that the launcher of machine 0 runs, and --rendezvous",
    ]);
}

#[test]
fn a_machine_that_is_started_twice_in_one_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody is machine 0, so that it waits.
    let machine = || machine(folder.path(), 1, 2, 1);
    let mut first = machine().start();
    let log = folder.path().join("run-node-1/logs/rank-1.log");
    first.wait_for("its rank's log", || log.exists());
    let second = machine().run();
    assert!(!second.stderr.contains("rank 0"), "{second}");
    second.failed_with(
        2,
        &[
            "run-node-1 cannot be used: another run is using it",
            "no other launcher was started with --node-rank 1",
        ],
    );
    first.signal(Signal::KILL);
    first.wait();
}
