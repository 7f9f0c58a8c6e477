//! A process of another user of the machine: it finds every port of a job and knows no secret.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::processes::{Process, processes_marked};
use crate::wait::LOOK_EVERY;

/// What PyTorch's client sends first: the opcode and a magic number.
const VALIDATE: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];

const SET: u8 = 1;
const GET: u8 = 3;
const WAIT: u8 = 6;
const LIST_KEYS: u8 = 17;

/// What a client that knows the secret sends first, and what a store sends to all others.
const AUTH: u8 = 0xEB;

/// The length of a challenge: a nonce and a proof.
const CHALLENGE: usize = 64;

/// How long an answer is waited for that should not come.
const PATIENCE: Duration = Duration::from_millis(200);

/// How many connections wait for keys at once, and for how many keys each.
const WAITS: (usize, u64) = (16, 2_000);

/// What a stranger tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// All that it can.
    Everything,
    /// To read and to wait, which an open store allows, and to change nothing.
    Reading,
}

/// What a stranger has seen and done until a job ended.
#[derive(Debug, Default)]
pub struct Siege {
    /// The ports that it has found.
    pub ports: HashSet<u16>,
    /// Those of them on which a process without a rank listens: the launcher's, which serves the store.
    pub launchers_ports: HashSet<u16>,
    /// The ports that have refused it in words, or asked for a proof.
    pub refused: HashSet<u16>,
    /// Answers that contain names of the job's keys.
    pub keys_listed: Vec<String>,
    /// What was found under these keys.
    pub values_read: Vec<String>,
    /// The most memory that a process of the job without a rank (its launcher) has held, in bytes.
    pub launchers_peak: u64,
}

/// Attacks every port of the processes that carry `mark`, again and again until `ended`: lists keys, reads or
/// sets them, waits for keys that never come, says nothing, says anything.
pub(crate) fn besiege(mark: &str, attack: Attack, ended: &AtomicBool) -> Siege {
    let mut siege = Siege::default();
    let mut silent = Vec::new();
    while !ended.load(Ordering::Acquire) {
        let mut processes = processes_marked(mark);
        // An attack takes a while: the launcher's store, which is what a stranger wants, is tried first.
        processes.sort_by_key(|process| process.rank);
        let mut listening = Vec::new();
        for process in &processes {
            let ports = listening_ports(process);
            if process.rank.is_none() {
                siege.launchers_peak = siege.launchers_peak.max(peak_memory(process));
                siege.launchers_ports.extend(&ports);
            }
            listening.extend(ports);
        }
        for port in listening {
            siege.ports.insert(port);
            match attack {
                Attack::Everything => siege.attack(port),
                Attack::Reading => siege.read(port),
            }
            // Half-open connections, of which the oldest go when there are many.
            silent.extend(TcpStream::connect((Ipv4Addr::LOCALHOST, port)));
        }
        let too_many = silent.len().saturating_sub(512);
        silent.drain(..too_many);
        // The job needs the cores, too.
        std::thread::sleep(LOOK_EVERY);
    }
    siege
}

impl Siege {
    fn attack(&mut self, port: u16) {
        self.say(port, &[&VALIDATE[..], &[LIST_KEYS]].concat());
        for key in [
            "/everburn/elastic/finished",
            "/everburn/elastic/given_up",
            "/everburn/mesh/last",
        ] {
            let mut set = VALIDATE.to_vec();
            set.push(SET);
            for text in [key, "1"] {
                append(&mut set, text.as_bytes());
            }
            set.push(LIST_KEYS);
            self.say(port, &set);
        }
        // What a rank says to another one, and to its store, with a proof that is none.
        self.say(port, &[b"EVERBURN".as_slice(), &[2; 96]].concat());
        self.say(port, &[AUTH; 97]);
        self.wait_for_keys(port);
    }

    fn read(&mut self, port: u16) {
        let listed = self.say(port, &[&VALIDATE[..], &[LIST_KEYS]].concat());
        let mut gets = VALIDATE.to_vec();
        for key in strings(&listed) {
            gets.push(GET);
            append(&mut gets, key);
        }
        if gets.len() > VALIDATE.len() {
            let values = send_and_read(port, &gets);
            let values = String::from_utf8_lossy(&values).into_owned();
            self.values_read
                .extend(Some(values).filter(|it| !it.is_empty()));
        }
        self.wait_for_keys(port);
    }

    /// Sends `bytes`, and notes and returns the answer.
    fn say(&mut self, port: u16, bytes: &[u8]) -> Vec<u8> {
        let heard = send_and_read(port, bytes);
        let text = String::from_utf8_lossy(&heard);
        if text.contains("everburn") {
            self.keys_listed.push(text.into_owned());
        } else if heard.last() == Some(&AUTH) || heard.len() == CHALLENGE {
            self.refused.insert(port);
        }
        heard
    }

    fn wait_for_keys(&mut self, port: u16) {
        let (connections, keys) = WAITS;
        let mut message = VALIDATE.to_vec();
        message.push(WAIT);
        message.extend(keys.to_ne_bytes());
        for number in 0..keys {
            let mut key = number.to_ne_bytes().to_vec();
            key.resize(500, b'k');
            append(&mut message, &key);
        }
        let streams: Vec<_> = (0..connections)
            .flat_map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)))
            .collect();
        for mut stream in &streams {
            let prepared = stream.set_write_timeout(Some(PATIENCE));
            prepared.expect("a timeout that is not zero");
            // An error is the other side's way of hanging up.
            let _ = stream.write_all(&message);
        }
    }
}

/// Sends `bytes` to `port` and returns what comes until the other side is silent or hangs up.
fn send_and_read(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut heard = Vec::new();
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
        return heard;
    };
    for prepared in [
        stream.set_read_timeout(Some(PATIENCE)),
        stream.set_write_timeout(Some(PATIENCE)),
    ] {
        prepared.expect("a timeout that is not zero");
    }
    // Errors are the other side's ways of hanging up.
    let _ = stream.write_all(bytes);
    let _ = stream.take(1 << 20).read_to_end(&mut heard);
    heard
}

/// Appends a string as PyTorch's store reads and writes it.
fn append(message: &mut Vec<u8>, text: &[u8]) {
    message.extend((text.len() as u64).to_ne_bytes());
    message.extend(text);
}

/// The strings of a list as a store sends it; those that are whole.
fn strings(list: &[u8]) -> Vec<&[u8]> {
    let number = |bytes: &[u8; 8]| usize::try_from(u64::from_ne_bytes(*bytes)).ok();
    let mut found = Vec::new();
    let Some((_, mut rest)) = list.split_first_chunk::<8>() else {
        return found;
    };
    while let Some((length, more)) = rest.split_first_chunk() {
        let Some((text, more)) = number(length).and_then(|length| more.split_at_checked(length))
        else {
            break;
        };
        found.push(text);
        rest = more;
    }
    found
}

/// The TCP ports of loopback or of all addresses on which `process` listens.
fn listening_ports(process: &Process) -> Vec<u16> {
    let folder = format!("/proc/{}", process.pid.as_raw_nonzero());
    let descriptors = std::fs::read_dir(format!("{folder}/fd"))
        .into_iter()
        .flatten();
    let sockets: HashSet<String> = descriptors
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            let inode = target.to_str()?.strip_prefix("socket:[")?;
            Some(inode.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = std::fs::read_to_string(format!("{folder}/net/tcp")).unwrap_or_default();
    let listens = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (columns.get(1)?, columns.get(3)?, columns.get(9)?);
        let ours = *state == "0A" && sockets.contains(*inode);
        let port = local.rsplit_once(':')?.1;
        u16::from_str_radix(port, 16).ok().filter(|_| ours)
    };
    table.lines().filter_map(listens).collect()
}

/// The most memory that `process` has held so far, in bytes; 0 when it has ended.
fn peak_memory(process: &Process) -> u64 {
    let process = process.pid.as_raw_nonzero().get().cast_unsigned();
    everburn_record::proc::peak_memory_of(process).unwrap_or(0)
}
