//! An etcd of three members on this machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
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
    /// Their data, logs and certificates.
    folder: TempDir,
}

#[derive(Debug)]
struct Member {
    /// For clients.
    port: u16,
    /// Where it says by plain HTTP that it is healthy.
    health: u16,
    process: Child,
}

impl Etcd {
    /// Starts it and waits until it answers; `None`, visibly, where etcd is not installed. `what` is what is skipped then.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn start_or_skip(what: &str) -> Option<Self> {
        is_installed(what, "etcd", "--version", "etcd-server").then(|| Self::start(false))
    }

    /// The same, where clients are served over TLS alone, and only those with a certificate of the authority `ca.pem`. In
    /// [`file`](Self::file) are `ca.pem`, `rank.pem` with `rank.key` for a client, and `other.pem`, another authority.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn start_with_tls_or_skip(what: &str) -> Option<Self> {
        let is_there = is_installed(what, "etcd", "--version", "etcd-server")
            && is_installed(what, "openssl", "version", "openssl");
        is_there.then(|| Self::start(true))
    }

    fn start(with_tls: bool) -> Self {
        // Somebody else may have taken a port meanwhile.
        let started = (0..5).find_map(|_| Self::try_start(with_tls));
        started.expect("etcd starts, unless its ports are taken five times")
    }

    fn try_start(with_tls: bool) -> Option<Self> {
        let mut this = Self {
            members: Vec::new(),
            folder: tempfile::tempdir().expect("a temporary folder"),
        };
        if with_tls {
            write_certificates(this.folder.path());
        }
        let ports: Vec<[u16; 3]> = (0..MEMBERS)
            .map(|_| [(); 3].map(|()| free_port()))
            .collect();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let named = ports.iter().enumerate();
        let cluster: Vec<String> = named
            .map(|(number, [_, peers, _])| format!("m{number}={}", url(*peers)))
            .collect();
        for (number, [port, peers, health]) in ports.iter().enumerate() {
            let path = this.file(&format!("m{number}"));
            let clients = match with_tls {
                true => format!("https://127.0.0.1:{port}"),
                false => url(*port),
            };
            let mut arguments = vec![
                ("--name", format!("m{number}")),
                ("--data-dir", path.display().to_string()),
                ("--listen-client-urls", clients.clone()),
                ("--advertise-client-urls", clients),
                ("--listen-peer-urls", url(*peers)),
                ("--initial-advertise-peer-urls", url(*peers)),
                ("--initial-cluster", cluster.join(",")),
                ("--initial-cluster-state", "new".into()),
                ("--listen-metrics-urls", url(*health)),
            ];
            if with_tls {
                let file = |name: &str| this.file(name).display().to_string();
                arguments.extend([
                    ("--cert-file", file("member.pem")),
                    ("--key-file", file("member.key")),
                    ("--trusted-ca-file", file("ca.pem")),
                    ("--client-cert-auth", "true".into()),
                ]);
            }
            let process = spawn(&arguments, &path.with_extension("log")).expect("etcd starts");
            this.members.push(Member {
                port: *port,
                health: *health,
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

    /// The path of a file of its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
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
        let answer = ask(self.members[member].port, &request)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        match head.contains(" 200 ") {
            true => Ok(serde_json::from_str(body)?),
            false => Err(io::Error::other(answer)),
        }
    }

    fn is_healthy(&self, member: usize) -> bool {
        let answer = ask(self.members[member].health, "GET /health HTTP/1.0\r\n\r\n");
        answer.is_ok_and(|text| text.contains(r#""health":"true""#))
    }
}

/// Whether `program` is there; skips `what` where it is not.
fn is_installed(what: &str, program: &str, version: &str, debian_package: &str) -> bool {
    let output = Command::new(program).arg(version).output();
    let is_there = output.is_ok_and(|output| output.status.success());
    if !is_there {
        skip_missing(what, &format!("{program} is not installed"), debian_package);
    }
    is_there
}

/// Writes two authorities, `ca` and `other`, and certificates of the first, `member` for the members and `rank` for a
/// client: NAME.pem, and NAME.key with the key.
fn write_certificates(folder: &Path) {
    let leaf = ["-CA", "ca.pem", "-CAkey", "ca.key"];
    let leaf = [
        &leaf[..],
        &["-addext", "basicConstraints=critical,CA:FALSE"],
    ]
    .concat();
    let of_member = ["-addext", "subjectAltName=IP:127.0.0.1"];
    for (name, more) in [
        ("ca", Vec::new()),
        ("other", Vec::new()),
        ("member", [&leaf[..], &of_member].concat()),
        ("rank", leaf),
    ] {
        let output = Command::new("openssl")
            .current_dir(folder)
            .args(["req", "-x509", "-nodes", "-newkey", "ec", "-days", "9"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-subj", &format!("/CN={name}")])
            .args(["-out", &format!("{name}.pem")])
            .args(["-keyout", &format!("{name}.key")])
            .args(more)
            .output();
        let output = output.expect("openssl starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl: {said}");
    }
}

fn ask(port: u16, request: &str) -> io::Result<String> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.set_read_timeout(Some(ANSWER))?;
    connection.write_all(request.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    // It may have closed its side already.
    let _ = connection.shutdown(Shutdown::Both);
    Ok(answer)
}

fn spawn(arguments: &[(&str, String)], log: &Path) -> io::Result<Child> {
    let log = File::create(log)?;
    let mut command = Command::new("etcd");
    for (name, value) in arguments {
        command.arg(format!("{name}={value}"));
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
