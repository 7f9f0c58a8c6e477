//! A launcher in a process of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use everburn_launch::{LaunchConfig, LaunchEvent, Launcher, variables};

use super::{DEADLINE, FOLDER, ROLE, TOKEN, act_arguments, elastic, job, rank_job, wait_until};
use crate::signals;

const RENDEZVOUS: &str = "TEST_RENDEZVOUS";
const STORE: &str = "TEST_STORE";
const NODE_RANK: &str = "TEST_NODE_RANK";
const HEARTBEAT: &str = "TEST_HEARTBEAT_TIMEOUT";
const PATIENCE: &str = "TEST_PATIENCE";
const OPEN: &str = "TEST_OPEN";

/// Variables of a launcher's process, which [`be_launcher`] reads.
type Variables = Vec<(&'static str, String)>;

fn elastic_job(min: usize, backoff_ms: u64) -> Variables {
    vec![
        (elastic::MIN, min.to_string()),
        (elastic::BACKOFF, backoff_ms.to_string()),
    ]
}

/// One of two machines whose store is at `port`.
fn machine(node_rank: usize, port: u16) -> Variables {
    vec![
        (NODE_RANK, node_rank.to_string()),
        (RENDEZVOUS, format!("127.0.0.1:{port}")),
        (variables::JOB_TOKEN, TOKEN.to_owned()),
    ]
}

/// A launcher in a process of its own; killed when dropped.
pub struct LauncherProcess(pub Child);

impl LauncherProcess {
    /// Starts a launcher of `ranks` shells that run `script`, or of ranks with `role`.
    pub fn start(folder: &Path, ranks: usize, role: &str, script: &str) -> Self {
        Self::start_with(Vec::new(), folder, ranks, role, script)
    }

    fn start_with(
        variables: Variables,
        folder: &Path,
        ranks: usize,
        role: &str,
        script: &str,
    ) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(act_arguments()).envs(variables);
        Self::spawn(command, folder, ranks, role, script)
    }

    /// The same for shells that may take `patience_ms` to stop.
    pub fn start_with_patience(
        folder: &Path,
        ranks: usize,
        patience_ms: u64,
        script: &str,
    ) -> Self {
        let patience = vec![(PATIENCE, patience_ms.to_string())];
        Self::start_with(patience, folder, ranks, "", script)
    }

    /// The same for a shell that may take `patience_ms` to stop, and longer while it computes.
    pub fn start_with_long_steps(folder: &Path, patience_ms: u64, script: &str) -> Self {
        let given = vec![
            (HEARTBEAT, "60".to_owned()),
            (PATIENCE, patience_ms.to_string()),
        ];
        Self::start_with(given, folder, 1, "", script)
    }

    /// The same for a launcher that is started to ignore SIGHUP, as by `nohup`.
    #[cfg(target_os = "linux")]
    pub fn start_ignoring_hang_ups(folder: &Path, ranks: usize, role: &str) -> Self {
        let mut command = Command::new("sh");
        let program = std::env::current_exe().unwrap();
        command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
        command.arg(program).args(act_arguments());
        Self::spawn(command, folder, ranks, role, "")
    }

    /// The same for a launcher to which a signal comes `when` no rank has been started.
    pub fn start_with_signal(folder: &Path, when: &str) -> Self {
        let when = vec![(signals::WHEN, when.to_owned())];
        Self::start_with(when, folder, 2, "", "exec sleep 600")
    }

    /// The same for an elastic job of at least `min` ranks, which are restarted after
    /// `backoff_ms` from their second failure in a row.
    pub fn start_elastic(
        folder: &Path,
        (min, ranks): (usize, usize),
        backoff_ms: u64,
        role: &str,
        script: &str,
    ) -> Self {
        Self::start_with(elastic_job(min, backoff_ms), folder, ranks, role, script)
    }

    /// The same for an elastic job of shells of which one is enough, at whose store the test takes part: it is
    /// open, or asks for [`TOKEN`]. The ranks may take `patience_ms` to end when another has finished.
    pub fn start_with_known_store(
        folder: &Path,
        ranks: usize,
        open: bool,
        patience_ms: u64,
        script: &str,
    ) -> Self {
        let mut given = elastic_job(1, 10);
        given.push((PATIENCE, patience_ms.to_string()));
        given.push((variables::JOB_TOKEN, TOKEN.to_owned()));
        given.extend(open.then(|| (OPEN, "1".to_owned())));
        Self::start_with(given, folder, ranks, "", script)
    }

    /// The same for a machine of an elastic job of two machines with one shell each, of which one is enough, and which is
    /// restarted after `backoff_ms` from its second failure in a row.
    pub fn start_one_of_two_machines(
        folder: &Path,
        node_rank: usize,
        port: u16,
        backoff_ms: u64,
        script: &str,
    ) -> Self {
        let given = [elastic_job(1, backoff_ms), machine(node_rank, port)].concat();
        Self::start_with(given, folder, 1, "", script)
    }

    /// The same for a machine with one rank that is in groups, of a job that needs `min` ranks.
    pub fn start_elastic_machine(folder: &Path, node_rank: usize, port: u16, min: usize) -> Self {
        let given = [elastic_job(min, 10), machine(node_rank, port)].concat();
        Self::start_with(given, folder, 1, "elastic", "")
    }

    /// The same for machine `node_rank` of two with `ranks` shells each, or ranks with a role, which are given up after a second
    /// without heartbeats.
    pub fn start_machine(
        folder: &Path,
        node_rank: usize,
        port: u16,
        ranks: usize,
        (role, script): (&str, &str),
    ) -> Self {
        let mut given = machine(node_rank, port);
        given.push((HEARTBEAT, "1".to_owned()));
        Self::start_with(given, folder, ranks, role, script)
    }

    /// The same for one of two machines that meet in etcd, with one rank each that is in groups.
    pub fn start_at_etcd(folder: &Path, endpoints: &str, node_rank: usize) -> Self {
        let mut given = elastic_job(1, 10);
        given.push((STORE, format!("etcd://{endpoints}")));
        given.push((NODE_RANK, node_rank.to_string()));
        given.push((variables::JOB_TOKEN, TOKEN.to_owned()));
        Self::start_with(given, folder, 1, "elastic", "")
    }

    /// Starts it on a terminal of its own with a dashboard allowed; what the terminal shows goes
    /// to `stdout`, its settings before and after to `before` and `after`, the latter once there
    /// is a file `release`. `None` without `script`, the program that makes terminals.
    pub fn start_on_a_terminal(
        folder: &Path,
        ranks: usize,
        role: &str,
        script: &str,
    ) -> Option<Self> {
        let found = Command::new("script")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            return None;
        }
        let program = std::env::current_exe().unwrap();
        let line = format!(
            "stty -a > $DIR/before; '{}' act --exact --ignored --nocapture; code=$?; \
             until [ -e $DIR/release ]; do sleep 0.02; done; stty -a > $DIR/after; \
             exit $code",
            program.display()
        );
        let mut command = Command::new("script");
        command
            .args(["-q", "-e", "-c", &line, "/dev/null"])
            .env("TEST_DASHBOARD", "1");
        Some(Self::spawn(command, folder, ranks, role, script))
    }

    fn spawn(mut command: Command, folder: &Path, ranks: usize, role: &str, script: &str) -> Self {
        let has_token = command
            .get_envs()
            .any(|(name, _)| name == variables::JOB_TOKEN);
        if !has_token {
            command.env_remove(variables::JOB_TOKEN);
        }
        let child = command
            .env(ROLE, "launcher")
            .env("TEST_RANKS", ranks.to_string())
            .env("TEST_RANK_ROLE", role)
            .env("TEST_SCRIPT", script)
            .env(FOLDER, folder)
            .stdin(Stdio::null())
            .stdout(fs::File::create(folder.join("stdout")).unwrap())
            .stderr(fs::File::create(folder.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the launcher's end", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for LauncherProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn be_launcher() -> ! {
    let variable = |name| std::env::var(name).unwrap();
    let folder = PathBuf::from(variable(FOLDER));
    let ranks = variable("TEST_RANKS").parse().unwrap();
    let config = match variable("TEST_RANK_ROLE").as_str() {
        "" => job(&folder, ranks, &variable("TEST_SCRIPT")),
        role => rank_job(&folder, ranks, role),
    };
    let rendezvous = std::env::var(RENDEZVOUS).ok();
    let store = std::env::var(STORE).ok();
    let store = store.map(|address| address.parse().unwrap());
    let several = rendezvous.is_some() || store.is_some();
    let nodes = if several { 2 } else { 1 };
    let node_rank = std::env::var(NODE_RANK).ok();
    let seconds = |text: String| Duration::from_secs(text.parse().unwrap());
    let heartbeat = std::env::var(HEARTBEAT).ok().map(seconds);
    let patience = std::env::var(PATIENCE).ok();
    let patience = patience.map(|ms| Duration::from_millis(ms.parse().unwrap()));
    let config = LaunchConfig {
        open_store: std::env::var_os(OPEN).is_some(),
        stop_patience: patience.unwrap_or(config.stop_patience),
        dashboard: std::env::var_os("TEST_DASHBOARD").is_some(),
        elastic: elastic::from_environment(nodes * ranks),
        nodes,
        node_rank: node_rank.map_or(0, |number| number.parse().unwrap()),
        rendezvous,
        store,
        heartbeat_timeout: heartbeat,
        step_limit: heartbeat.map(|_| 10 * DEADLINE),
        ..config
    };
    let told = folder.join("told");
    let tell = move |event: &LaunchEvent| {
        let before = fs::read_to_string(&told).unwrap_or_default();
        let rank = event.rank();
        fs::write(&told, format!("{before}{rank:?} {}\n", event.text())).unwrap();
    };
    let launcher = Launcher::new(config).tell_with(tell);
    let launcher = signals::before_ranks_are_started(launcher, &folder);
    let outcome = launcher.run().unwrap();
    fs::write(folder.join("outcome"), outcome.to_string()).unwrap();
    std::process::exit(outcome.exit_code())
}
