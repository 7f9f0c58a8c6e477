//! The store by itself, as `everburn store` runs it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use everburn::collectives::store::{Store, StoreAccess, StoreOptions, TcpStore};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_everburn");

const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "a token of the tests";

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

fn connect(address: &str, access: StoreAccess) -> TcpStore {
    TcpStore::connect(address, StoreOptions::new(access)).unwrap()
}

#[test]
fn it_serves_where_it_says_until_a_signal_ends_it() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut open = command("127.0.0.1:0");
        open.arg("--open");
        let (mut child, address) = start(open);
        let connect = || connect(&address, StoreAccess::Open);
        let (one, other) = (connect(), connect());
        one.set("key", b"value").unwrap();
        assert_eq!(other.get("key").unwrap(), b"value");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(child.wait().unwrap().success(), "{signal:?}");
        assert!(other.add("n", 1).is_err(), "the store is gone");
    }
}

#[test]
fn it_serves_nobody_before_it_is_said_to_whom() {
    for (token, expected) in [("", "--open"), ("short", "16")] {
        let mut refused = command("127.0.0.1:0");
        refused.env("EVERBURN_JOB_TOKEN", token);
        let mut refused = refused.stderr(Stdio::piped()).spawn().unwrap();
        let mut why = String::new();
        let stderr = refused.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut why).unwrap();
        assert!(!refused.wait().unwrap().success());
        for part in ["EVERBURN_JOB_TOKEN", expected] {
            assert!(why.contains(part), "{why}");
        }
    }

    let mut ours = command("0.0.0.0:0");
    ours.env("EVERBURN_JOB_TOKEN", TOKEN);
    let (mut child, address) = start(ours);
    let (_, port) = address.rsplit_once(':').unwrap();
    let access = StoreAccess::Token(TOKEN.parse().unwrap());
    let store = connect(&format!("127.0.0.1:{port}"), access);
    assert_eq!(store.add("n", 1).unwrap(), 1);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The most memory that a process has had, in bytes.
#[cfg(target_os = "linux")]
fn peak_memory(child: &Child) -> usize {
    everburn_record::proc::peak_memory_of(child.id()).unwrap() as usize
}

/// Sixteen connections with one WAIT of 131,072 long keys each, by somebody without the token: at a
/// store that demands one, and at an open one, where nobody needs one.
#[cfg(target_os = "linux")]
#[test]
fn a_flood_of_waits_leaves_the_store_small_and_serving() {
    const VALIDATE: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];
    for access in [
        StoreAccess::Token(TOKEN.parse().unwrap()),
        StoreAccess::Open,
    ] {
        let mut command = command("127.0.0.1:0");
        match access {
            StoreAccess::Token(_) => command.env("EVERBURN_JOB_TOKEN", TOKEN),
            StoreAccess::Open => command.arg("--open"),
        };
        let (mut child, address) = start(command);
        let store = connect(&address, access.clone());
        let begin = [&VALIDATE[..], &[6], &131_072_u64.to_ne_bytes()].concat();
        std::thread::scope(|scope| {
            for client in 0..16_u64 {
                let (address, begin) = (&address, &begin);
                scope.spawn(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.set_write_timeout(Some(PATIENCE)).unwrap();
                    if stream.write_all(begin).is_err() {
                        return;
                    }
                    for number in 0..131_072_u64 {
                        let key = [client.to_ne_bytes(), number.to_ne_bytes()].concat();
                        let key = key.repeat(29);
                        let item = [&(key.len() as u64).to_ne_bytes()[..], &key].concat();
                        if stream.write_all(&item).is_err() {
                            return;
                        }
                    }
                });
            }
            for _ in 0..1000 {
                store.add("n", 1).unwrap();
            }
        });
        assert_eq!(store.add("n", 1).unwrap(), 1001);
        let peak = peak_memory(&child);
        assert!(peak < 64 << 20, "{peak} bytes, {access:?}");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_flood_beyond_the_limit_of_descriptors_locks_nobody_out() {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "ulimit -n 40 && exec \"$0\" store --listen 127.0.0.1:0",
            PROGRAM,
        ])
        .env("EVERBURN_JOB_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let (mut child, address) = start(command);
    let flood: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    let store = connect(&address, StoreAccess::Token(TOKEN.parse().unwrap()));
    assert_eq!(store.add("n", 1).unwrap(), 1);
    drop(flood);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}
