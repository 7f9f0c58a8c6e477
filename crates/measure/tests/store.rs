//! The store by itself, as `cargo xtask store` runs it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use everburn_collectives::store::{Store, StoreOptions, TcpStore};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_everburn-measure");

fn command(listen: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(["store", "--listen", listen])
        .env_remove("EVERBURN_JOB_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// The process, and the address that it prints.
fn start(mut command: Command) -> (Child, String) {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

fn connect(address: &str, token: Option<&str>) -> TcpStore {
    let options = StoreOptions {
        job_token: token.map(str::to_owned),
        ..StoreOptions::default()
    };
    TcpStore::connect(address, options).unwrap()
}

#[test]
fn it_serves_where_it_says_until_a_signal_ends_it() {
    for signal in [Signal::INT, Signal::TERM] {
        let (mut child, address) = start(command("127.0.0.1:0"));
        let (one, other) = (connect(&address, None), connect(&address, None));
        one.set("key", b"value").unwrap();
        assert_eq!(other.get("key").unwrap(), b"value");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(child.wait().unwrap().success(), "{signal:?}");
        assert!(other.add("n", 1).is_err(), "the store is gone");
    }
}

#[test]
fn where_others_can_connect_it_demands_a_token() {
    let mut refused = command("0.0.0.0:0");
    let mut refused = refused.stderr(Stdio::piped()).spawn().unwrap();
    let mut why = String::new();
    let stderr = refused.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut why).unwrap();
    assert!(!refused.wait().unwrap().success());
    assert!(why.contains("EVERBURN_JOB_TOKEN"), "{why}");

    let mut open = command("0.0.0.0:0");
    open.env("EVERBURN_JOB_TOKEN", "secret");
    let (mut child, address) = start(open);
    let (_, port) = address.rsplit_once(':').unwrap();
    let store = connect(&format!("127.0.0.1:{port}"), Some("secret"));
    assert_eq!(store.add("n", 1).unwrap(), 1);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}
