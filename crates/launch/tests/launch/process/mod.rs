//! Real processes for the tests: jobs of shell scripts, and this test binary as launcher or rank.

pub mod crowd;
pub mod elastic;
pub mod machines;

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use everburn_collectives::store::{
    Store, StoreAccess, StoreError, StoreOptions, TcpStore, TcpStoreServer,
};
use everburn_launch::{
    JobFailure, LaunchConfig, LaunchEvent, Launcher, Outcome, RankEnvironment, ReportKind,
    listen_for_stop, variables,
};

use crate::signals;

/// Longer than anything here takes on a busy machine, so that a hang fails instead of hanging the suite.
pub const DEADLINE: Duration = Duration::from_secs(120);

const ROLE: &str = "EVERBURN_LAUNCH_TEST_ROLE";
const FOLDER: &str = "DIR";
const RENDEZVOUS: &str = "TEST_RENDEZVOUS";
const STORE: &str = "TEST_STORE";
const NODE_RANK: &str = "TEST_NODE_RANK";
const HEARTBEAT: &str = "TEST_HEARTBEAT_TIMEOUT";
const PATIENCE: &str = "TEST_PATIENCE";
const OPEN: &str = "TEST_OPEN";

/// The secret of jobs at whose store the test takes part.
pub const TOKEN: &str = "a token of the tests";

/// The store that a rank of the job has said is at this port.
pub fn connect(folder: &Path, access: StoreAccess) -> Result<TcpStore, StoreError> {
    let port = number_in(folder, "port");
    TcpStore::connect(&format!("127.0.0.1:{port}"), StoreOptions::new(access))
}

/// The options of a store that asks for [`TOKEN`], whose answers may take ten seconds.
pub fn known_store() -> StoreOptions {
    StoreOptions {
        timeout: Duration::from_secs(10),
        ..StoreOptions::new(StoreAccess::Token(TOKEN.parse().unwrap()))
    }
}

/// The store of a job of several machines that the test hosts in place of machine 0, and its port.
pub fn hosted_store() -> (TcpStoreServer, u16) {
    let server = TcpStoreServer::bind((Ipv4Addr::LOCALHOST, 0).into(), known_store()).unwrap();
    let port = server.local_addr().port();
    (server, port)
}

/// A client of the store at `port`.
pub fn connect_to(port: u16) -> Result<TcpStore, StoreError> {
    TcpStore::connect(&format!("127.0.0.1:{port}"), known_store())
}

/// Waits for `condition` by looking every 10 ms.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(
            Instant::now() < end,
            "{what} did not come true within {DEADLINE:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a shell has to say at its end: that it has finished, or was not needed.
const REPORTS: &str = r#"
    say() { echo "{\"rank\":$RANK,\"kind\":\"$1\",\"unix_time_ms\":1}" > $EVERBURN_FINISHED_FILE; }
    finished() { say finished; }
    not_needed() { say not_needed; }
    stopped() { say stopped; }
"#;

/// `ranks` shells that run `script` in which `$DIR` is `folder`, with short patience.
pub fn job(folder: &Path, ranks: usize, script: &str) -> LaunchConfig {
    LaunchConfig {
        args: vec!["-c".into(), format!("{REPORTS}{script}").into()],
        env: vec![(FOLDER.into(), folder.into())],
        grace: Duration::from_millis(500),
        kill_after: Duration::from_millis(500),
        ..LaunchConfig::new("/bin/sh", ranks, folder.join("logs"))
    }
}

/// `ranks` processes of this test binary that behave as [`act`] does for `role`.
pub fn rank_job(folder: &Path, ranks: usize, role: &str) -> LaunchConfig {
    let mut config = job(folder, ranks, "");
    config.program = std::env::current_exe().unwrap();
    config.args = act_arguments();
    config.env.push((ROLE.into(), role.into()));
    config
}

/// Runs the job in this process and expects it to fail.
pub fn failure_of(config: LaunchConfig) -> Box<JobFailure> {
    match Launcher::new(config).run().unwrap() {
        Outcome::Failed(failure) => failure,
        other => panic!("expected a failure, got: {other}"),
    }
}

/// Variables of a launcher's process, which [`be_launcher`] reads.
type Variables = Vec<(&'static str, String)>;

fn elastic_job(min: usize, backoff_ms: u64) -> Variables {
    vec![
        (elastic::MIN, min.to_string()),
        (elastic::BACKOFF, backoff_ms.to_string()),
    ]
}

/// One of two machines whose store is at `port`.
fn machine(node_rank: usize, port: u16, token: &str) -> Variables {
    vec![
        (NODE_RANK, node_rank.to_string()),
        (RENDEZVOUS, format!("127.0.0.1:{port}")),
        (variables::JOB_TOKEN, token.to_owned()),
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
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(act_arguments())
            .env(HEARTBEAT, "60")
            .env(PATIENCE, patience_ms.to_string());
        Self::spawn(command, folder, 1, "", script)
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

    /// The same for an elastic job of at least `min` ranks, which are restarted after `backoff_ms`.
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
    /// restarted after `backoff_ms`.
    pub fn start_one_of_two_machines(
        folder: &Path,
        node_rank: usize,
        port: u16,
        (token, backoff_ms): (&str, u64),
        script: &str,
    ) -> Self {
        let given = [elastic_job(1, backoff_ms), machine(node_rank, port, token)].concat();
        Self::start_with(given, folder, 1, "", script)
    }

    /// The same for a machine with one rank that is in groups, of a job that needs `min` ranks.
    pub fn start_elastic_machine(folder: &Path, node_rank: usize, port: u16, min: usize) -> Self {
        let given = [elastic_job(min, 10), machine(node_rank, port, TOKEN)].concat();
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
        let mut given = machine(node_rank, port, TOKEN);
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

/// Whether a process runs; one that only waits to be reaped does not.
pub fn runs(pid: u32) -> bool {
    !everburn_record::proc::has_ended(pid)
}

/// The number in `folder/name`, once it has been written.
pub fn number_in(folder: &Path, name: &str) -> u32 {
    let mut found = None;
    wait_until(name, || {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        found = text
            .strip_suffix('\n')
            .and_then(|number| number.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

fn act_arguments() -> Vec<OsString> {
    ["act", "--exact", "--ignored", "--nocapture"]
        .map(OsString::from)
        .to_vec()
}

/// What this binary does when a test starts it as a process.
pub fn act() {
    let role = std::env::var(ROLE).expect("another test starts this one");
    match role.as_str() {
        "launcher" => be_launcher(),
        "joins, and rank 3 does not" => machines::be_rank(),
        _ => {}
    }
    let rank = RankEnvironment::from_env().unwrap();
    rank.guard_against_orphaning().unwrap();
    rank.report_panics();
    match role.as_str() {
        "runs forever" => run_forever(&rank),
        "meets at the store" => {
            let token = rank.job_token.clone().unwrap();
            let access = match rank.open_store {
                true => StoreAccess::Open,
                false => StoreAccess::Token(token),
            };
            let options = StoreOptions::new(access);
            let address = format!("{}:{}", rank.master_addr, rank.master_port);
            let store = TcpStore::connect(&address, options).unwrap();
            store.set(&format!("here/{}", rank.rank), b"").unwrap();
            let other = format!("here/{}", 1 - rank.rank);
            store.wait_within(&[&other], DEADLINE).unwrap();
            rank.report_finished();
            std::process::exit(0)
        }
        "survives a panic" => {
            let attempted = everburn_record::attempt::run(|| -> u8 { panic!("attempted") });
            assert!(attempted.is_err());
            std::panic::catch_unwind(|| panic!("caught")).unwrap_err();
            rank.report_finished();
            std::process::exit(0)
        }
        "crowd" => crowd::be_rank(&rank),
        "elastic" => elastic::be_rank(&rank),
        "rank 1 fails anew each time" => {
            if rank.rank == 1 {
                let message = format!("trouble of process {}", rank.incarnation);
                rank.report(ReportKind::Own, None, &message);
                std::process::exit(5)
            }
            run_forever(&rank)
        }
        "stops when asked" => {
            let stop = listen_for_stop(true, |_, _| ()).unwrap();
            write_pid(&rank);
            wait_until("the request to stop", || stop.is_set());
            std::process::exit(0)
        }
        other => panic!("unknown role {other}"),
    }
}

fn be_launcher() -> ! {
    let variable = |name| std::env::var(name).unwrap();
    let folder = std::path::PathBuf::from(variable(FOLDER));
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

fn write_pid(rank: &RankEnvironment) {
    let folder = std::path::PathBuf::from(std::env::var(FOLDER).unwrap());
    let launcher = format!("{}\n", rank.launcher_pid.unwrap());
    fs::write(folder.join("launcher"), launcher).unwrap();
    let line = format!("{}\n", std::process::id());
    fs::write(folder.join(format!("pid.{}", rank.rank)), line).unwrap();
}

fn run_forever(rank: &RankEnvironment) -> ! {
    assert!(std::env::var(variables::ERROR_FILE).is_ok());
    write_pid(rank);
    loop {
        std::thread::park();
    }
}
