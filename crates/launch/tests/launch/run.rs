//! `run`: a program that starts its own ranks. The program is this test binary.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use everburn_collectives::group::{ProcessGroup, ReduceOp};
use everburn_collectives::store::{StoreAccess, StoreOptions, TcpStoreServer};
use everburn_launch::{Rank, run, variables};
use everburn_record::task_method;
use everburn_tests::AssertContains;
use rustix::process::{Signal, getpid, kill_process};

use crate::process::{LauncherProcess, TOKEN, end_with, number_in, numbers_in, runs, wait_until};

const PART: &str = "EVERBURN_LAUNCH_TEST_RUN";
const RANKS: &str = "TEST_RANKS";
const FOLDER: &str = "DIR";

/// The entry of this binary when a test starts it as a program that calls `run`.
#[test]
#[ignore = "the process that other tests start"]
fn program() {
    let part = std::env::var(PART).expect("another test starts this one");
    let ranks = std::env::var(RANKS).unwrap().parse().unwrap();
    end_with(run(ranks, |rank| play(&part, rank)))
}

fn play(part: &str, rank: &Rank) -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::var(FOLDER)?);
    let write = |name: &str, number: i32| {
        fs::write(
            folder.join(format!("{name}.{}", rank.rank())),
            format!("{number}\n"),
        )
    };
    write("pid", i32::try_from(std::process::id())?)?;
    let group = rank.group()?;
    let sum = group.all_reduce(vec![rank.rank() as i32 + 1], ReduceOp::Sum);
    write("sum", sum.wait()?[0])?;
    match (part, rank.rank()) {
        ("adds up", _) => return Ok(()),
        ("fails", 1) => return Err("the data is gone".into()),
        // As a training calls the loss of its task.
        ("panics", 1) => {
            let facts = || "the model got input [8, 4]\n  fc Linear: weight [5, 3]".to_owned();
            let loss = || task_method::within("Task::loss", || panics_at_step(&group, 7));
            task_method::with_facts(facts, loss);
        }
        ("loses its device", 1) => lose_device(),
        ("leaves early", 1) => {
            group.set_step(7);
            return Ok(());
        }
        ("gives the group up", 1) => group.abort("it has dropped the step"),
        ("is killed", 1) => kill_process(getpid(), Signal::KILL)?,
        ("waits", _) => loop {
            std::thread::park();
        },
        _ => {}
    }
    // The others wait for rank 1, some of them without a thought of its end.
    let waited = rank.group()?.barrier().wait();
    match part {
        "fails" | "leaves early" | "gives the group up" => Ok(waited?),
        _ => {
            waited.unwrap();
            Ok(())
        }
    }
}

fn panics_at_step(group: &ProcessGroup, step: u64) {
    group.set_step(step);
    panic!("the weights went out of the window");
}

const LINE_OF_THE_PANIC: u32 = line!() - 3;

/// As CubeCL's thread of a device and the training do.
fn lose_device() {
    let thread = std::thread::spawn(|| -> u8 {
        let reason = "The device is poisoned\nCaused by:\n  Unknown: Device is lost";
        panic!("bytes: host access failed: Read({reason:?})")
    });
    assert!(thread.join().is_err());
    panic!("device runner channel disconnected before producing a result");
}

/// A command that starts this binary as the program; `folder` is also the one for temporary files.
fn command(folder: &Path, part: &str, ranks: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["run::program", "--exact", "--ignored", "--nocapture"])
        .env(PART, part)
        .env(RANKS, ranks.to_string())
        .env(FOLDER, folder)
        .env("TMPDIR", folder)
        .env_remove(variables::JOB_TOKEN)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.join("stderr")).unwrap());
    command
}

fn start(mut command: Command) -> LauncherProcess {
    LauncherProcess(command.spawn().unwrap())
}

/// The exit code of a program, and what it has said on standard error.
fn end_of(folder: &Path, part: &str, ranks: usize) -> (Option<i32>, String) {
    let status = start(command(folder, part, ranks)).wait();
    let told = fs::read_to_string(folder.join("stderr")).unwrap();
    (status.code(), told)
}

fn logs_in(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .filter(|it| it.to_string_lossy().starts_with("everburn-"))
        .count()
}

fn assert_ended(folder: &Path, rank: usize) {
    let process = number_in(folder, &format!("pid.{rank}"));
    wait_until("the rank's end", || !runs(process));
}

#[test]
fn two_ranks_meet_and_end_with_0() {
    let folder = tempfile::tempdir().unwrap();
    let (code, told) = end_of(folder.path(), "adds up", 2);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(numbers_in(folder.path(), "sum", 2), [3, 3]);
    let pids = numbers_in(folder.path(), "pid", 2);
    assert_ne!(pids[0], pids[1]);
    // Nobody needs the logs of a job that went well.
    assert_eq!(logs_in(folder.path()), 0);
}

#[test]
fn one_rank_needs_no_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = start(command(folder.path(), "adds up", 1));
    let process = program.0.id();
    assert_eq!(program.wait().code(), Some(0));
    assert_eq!(number_in(folder.path(), "pid.0"), process);
    assert_eq!(number_in(folder.path(), "sum.0"), 1);
}

#[test]
fn the_error_of_a_rank_is_shown_with_its_rank_and_ends_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let (code, told) = end_of(folder.path(), "fails", 3);
    assert_eq!(code, Some(1), "{told}");
    told.assert_contains([
        "rank 1 ended with exit code 1: the data is gone",
        "2 ranks (0, 2) lost rank 1 (exit code 75)",
        "rank-1.log",
    ]);
    // The launcher shows it, once, and each log has the error of its rank.
    assert_eq!(told.matches("the data is gone").count(), 1, "{told}");
    assert!(!told.contains("] error"), "{told}");
    let log = told
        .split_whitespace()
        .find(|word| word.contains("rank-1.log"));
    let log = log.unwrap().trim_end_matches(',');
    let errors = [
        "error: rank 1 aborted the group",
        "error: the data is gone\n",
    ];
    for (rank, error) in errors.into_iter().enumerate() {
        let log = fs::read_to_string(log.replace("rank-1", &format!("rank-{rank}"))).unwrap();
        assert!(log.contains(error), "{log}");
    }
    for rank in 0..3 {
        assert_ended(folder.path(), rank);
    }
    assert_eq!(logs_in(folder.path()), 1, "{told}");
}

#[test]
fn a_panic_is_shown_with_its_rank_its_line_and_its_method_and_ends_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let (code, told) = end_of(folder.path(), "panics", 2);
    assert_eq!(code, Some(101), "{told}");
    let named = told.find("rank 1 ended with exit code 101 (a panic), at step 7: panicked at ");
    let story = &told[named.unwrap_or_else(|| panic!("rank 1 is not named:\n{told}"))..];
    let (headline, rest) = story.split_once('\n').unwrap();
    let place = format!("panicked at {}:{LINE_OF_THE_PANIC}:", file!());
    assert!(headline.contains(&place), "{told}");
    assert!(
        headline.ends_with(": the weights went out of the window"),
        "{told}"
    );
    let mut rest = rest.lines();
    let method = rest.next().unwrap();
    assert!(
        method.starts_with("  in `") && method.ends_with("in `Task::loss`"),
        "{told}"
    );
    let facts: Vec<&str> = rest.take(2).collect();
    let expected = [
        "  the model got input [8, 4]",
        "    fc Linear: weight [5, 3]",
    ];
    assert_eq!(facts, expected, "{told}");
    assert_ended(folder.path(), 0);
}

#[test]
fn a_device_that_has_failed_is_named_in_the_first_line_of_its_rank() {
    let folder = tempfile::tempdir().unwrap();
    let (code, told) = end_of(folder.path(), "loses its device", 2);
    assert_eq!(code, Some(101), "{told}");
    let named = told.find("rank 1 ended with exit code 101 (a panic)");
    let story = &told[named.unwrap_or_else(|| panic!("rank 1 is not named:\n{told}"))..];
    let headline = story.lines().next().unwrap();
    headline.assert_contains([
        "bytes: host access failed",
        "Device is lost",
        "; the device of this rank has failed: ",
    ]);
    assert_ended(folder.path(), 0);
}

#[test]
fn a_rank_that_returns_while_others_wait_for_it_is_named_with_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let (code, told) = end_of(folder.path(), "leaves early", 2);
    assert_eq!(code, Some(75), "{told}");
    let named =
        "rank 1 ended without an error at step 7, while rank 0 waited for it: rank 0 lost rank 1";
    assert!(told.contains(named), "{told}");
    assert!(told.contains("rank 1 left its loop early"), "{told}");
    assert!(!told.contains("failed by itself"), "{told}");
}

#[test]
fn a_rank_that_gives_the_group_up_and_continues_is_to_blame_and_has_not_lost_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (code, told) = end_of(folder.path(), "gives the group up", 2);
    assert_eq!(code, Some(1), "{told}");
    let named = "rank 1 ended with exit code 1: rank 1 aborted the group";
    assert!(told.contains(named), "{told}");
    assert!(told.contains("it has dropped the step"), "{told}");
    assert!(!told.contains("rank 1 lost rank 1"), "{told}");
}

/// The other one panics too, at the lost rank, and the launcher may hear of that first.
#[test]
fn a_killed_rank_is_blamed_and_not_the_one_that_panics_for_want_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (code, told) = end_of(folder.path(), "is killed", 2);
    assert_eq!(code, Some(137), "{told}");
    told.assert_contains(["rank 1 was ended by SIGKILL: killed by a user"]);
    assert_ended(folder.path(), 0);
}

#[test]
fn an_interrupt_ends_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = start(command(folder.path(), "waits", 2));
    assert_eq!(numbers_in(folder.path(), "sum", 2), [3, 3]);
    program.signal(Signal::INT);
    assert_eq!(program.wait().code(), Some(130));
    for rank in 0..2 {
        assert_ended(folder.path(), rank);
    }
    assert_eq!(logs_in(folder.path()), 0);
}

#[test]
fn no_ranks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (code, told) = end_of(folder.path(), "adds up", 0);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("error: 0 ranks"), "{told}");
}

/// As `torchrun` and its like do. Then they say how many ranks there are.
#[test]
fn ranks_that_another_launcher_has_started_do_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let access = StoreAccess::Token(TOKEN.parse().unwrap());
    let address = "127.0.0.1:0".parse().unwrap();
    let store = TcpStoreServer::bind(address, StoreOptions::new(access)).unwrap();
    let port = store.local_addr().port().to_string();
    let ranks = ["0", "1"].map(|rank| {
        let mut command = command(folder.path(), "adds up", 5);
        command
            .env(variables::RANK, rank)
            .env(variables::WORLD_SIZE, "2")
            .env(variables::MASTER_ADDR, "127.0.0.1")
            .env(variables::MASTER_PORT, &port)
            .env(variables::AGENT_STORE, "True")
            .env(variables::JOB_TOKEN, TOKEN);
        start(command)
    });
    for mut rank in ranks {
        assert_eq!(rank.wait().code(), Some(0));
    }
    assert_eq!(numbers_in(folder.path(), "sum", 2), [3, 3]);
}
