//! An etcd of three members on this machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{DEADLINE, free_port, holds_within, skip_missing};

/// How many members there are: one may be lost.
const MEMBERS: usize = 3;

/// How long one of them may take to answer the test.
const ANSWER: Duration = Duration::from_secs(10);

/// An etcd whose members are ended when this is dropped.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    /// Their data and logs.
    _folder: TempDir,
}

#[derive(Debug)]
struct Member {
    /// For clients.
    port: u16,
    process: Child,
}

impl Etcd {
    /// Starts it and waits until it answers; `None`, visibly, where etcd is not installed. `what` is what is skipped then.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn start_or_skip(what: &str) -> Option<Self> {
        let version = Command::new("etcd").arg("--version").output();
        if !version.is_ok_and(|output| output.status.success()) {
            skip_missing(what, "etcd is not installed", "etcd-server");
            return None;
        }
        // Somebody else may have taken a port meanwhile.
        let started = (0..5).find_map(|_| Self::try_start());
        Some(started.expect("etcd starts, unless its ports are taken five times"))
    }

    fn try_start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ports: Vec<(u16, u16)> = (0..MEMBERS).map(|_| (free_port(), free_port())).collect();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let named = ports.iter().enumerate();
        let cluster: Vec<String> = named
            .map(|(number, (_, peers))| format!("m{number}={}", url(*peers)))
            .collect();
        let mut this = Self {
            members: Vec::new(),
            _folder: folder,
        };
        for (number, (port, peers)) in ports.iter().enumerate() {
            let path = this._folder.path().join(format!("m{number}"));
            let arguments = [
                ("--name", format!("m{number}")),
                ("--data-dir", path.display().to_string()),
                ("--listen-client-urls", url(*port)),
                ("--advertise-client-urls", url(*port)),
                ("--listen-peer-urls", url(*peers)),
                ("--initial-advertise-peer-urls", url(*peers)),
                ("--initial-cluster", cluster.join(",")),
                ("--initial-cluster-state", "new".into()),
            ];
            let process = spawn(&arguments, &path.with_extension("log")).expect("etcd starts");
            this.members.push(Member {
                port: *port,
                process,
            });
        }
        let mut ended = false;
        let answers = holds_within(DEADLINE, || {
            let exits = this.members.iter_mut();
            ended = exits
                .map(|member| member.process.try_wait())
                .any(|exit| !matches!(exit, Ok(None)));
            let healthy = (0..MEMBERS).all(|member| this.is_healthy(member));
            ended || healthy
        });
        assert!(answers, "etcd did not answer within {DEADLINE:?}");
        (!ended).then_some(this)
    }

    /// `host:port` of each member, with a comma between them.
    pub fn endpoints(&self) -> String {
        let members = self.members.iter();
        let members: Vec<String> = members
            .map(|member| format!("127.0.0.1:{}", member.port))
            .collect();
        members.join(",")
    }

    /// The port of a member, for clients.
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].port
    }

    /// The member that the others follow.
    ///
    /// # Panics
    /// When there is none for long.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        let found = holds_within(DEADLINE, || {
            leader = (0..MEMBERS).find(|member| {
                let status = self.post_to(*member, "/v3/maintenance/status", &json!({}));
                status.is_ok_and(|it| it["leader"] == it["header"]["member_id"])
            });
            leader.is_some()
        });
        assert!(found, "etcd has no leader for {DEADLINE:?}");
        leader.expect("it was found")
    }

    /// Sends a signal to a member's process.
    ///
    /// # Panics
    /// When it has ended.
    pub fn signal(&self, member: usize, signal: Signal) {
        let process = Pid::from_child(&self.members[member].process);
        kill_process(process, signal).expect("the member runs");
    }

    /// Kills a member, and waits for its end.
    ///
    /// # Panics
    /// When that cannot be.
    pub fn kill(&mut self, member: usize) {
        let process = &mut self.members[member].process;
        process.kill().expect("the member can be killed");
        process.wait().expect("the member ends");
    }

    /// Asks the first member that answers.
    ///
    /// # Panics
    /// When none does.
    pub fn post(&self, path: &str, body: &Value) -> Value {
        let mut answers = (0..MEMBERS).map(|member| self.post_to(member, path, body));
        answers
            .find_map(Result::ok)
            .expect("a member of etcd answers")
    }

    fn post_to(&self, member: usize, path: &str, body: &Value) -> io::Result<Value> {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = self.ask(member, &request)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        match head.contains(" 200 ") {
            true => Ok(serde_json::from_str(body)?),
            false => Err(io::Error::other(answer)),
        }
    }

    fn is_healthy(&self, member: usize) -> bool {
        let answer = self.ask(member, "GET /health HTTP/1.0\r\n\r\n");
        answer.is_ok_and(|text| text.contains(r#""health":"true""#))
    }

    fn ask(&self, member: usize, request: &str) -> io::Result<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.members[member].port))?;
        connection.set_read_timeout(Some(ANSWER))?;
        connection.write_all(request.as_bytes())?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        // It may have closed its side already.
        let _ = connection.shutdown(Shutdown::Both);
        Ok(answer)
    }
}

fn spawn(arguments: &[(&str, String)], log: &Path) -> io::Result<Child> {
    let log = File::create(log)?;
    let mut command = Command::new("etcd");
    for (name, value) in arguments {
        command.args([name, value.as_str()]);
    }
    // Settings of an etcd of this machine are none of the test's.
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("ETCD_")) {
        command.env_remove(name);
    }
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            // One that has ended cannot be killed.
            let _ = member.process.kill();
            let _ = member.process.wait();
        }
    }
}
