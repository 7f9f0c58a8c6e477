//! Real processes for the tests: jobs of shell scripts, and this test binary as launcher or rank.

pub mod crowd;
pub mod elastic;
mod launcher;
pub mod machines;

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use everburn_collectives::store::{
    Store, StoreAccess, StoreError, StoreOptions, TcpStore, TcpStoreServer,
};
use everburn_launch::{
    JobFailure, LaunchConfig, Launcher, Outcome, RankEnvironment, ReportKind, listen_for_stop,
    variables,
};
use everburn_tests::holds_within;

pub use self::launcher::LauncherProcess;
use self::launcher::be_launcher;

/// Longer than anything here takes on a busy machine, so that a hang fails instead of hanging the suite.
pub const DEADLINE: Duration = Duration::from_secs(120);

const ROLE: &str = "EVERBURN_LAUNCH_TEST_ROLE";
const FOLDER: &str = "DIR";

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

/// The same, after a rank has joined there.
pub fn joined_at(port: u16) -> TcpStore {
    let store = connect_to(port).unwrap();
    let joined = store.wait_within(&["everburn/join/0/joined"], DEADLINE);
    joined.unwrap();
    store
}

/// Waits for `condition`.
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(
        holds_within(DEADLINE, condition),
        "{what} did not come true within {DEADLINE:?}"
    );
}

/// Ends this process as a `main` does that returns `code`: that of a test program is not ours.
pub fn end_with(code: ExitCode) -> ! {
    let code = (0..=u8::MAX).find(|&number| ExitCode::from(number) == code);
    std::process::exit(code.unwrap().into())
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

/// The numbers that each rank has written to `folder/NAME.RANK`.
pub fn numbers_in(folder: &Path, name: &str, ranks: usize) -> Vec<u32> {
    let names = (0..ranks).map(|rank| format!("{name}.{rank}"));
    names.map(|name| number_in(folder, &name)).collect()
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
            let stop = listen_for_stop(Some(&rank), |_, _| ()).unwrap();
            write_pid(&rank);
            wait_until("the request to stop", || stop.is_set());
            std::process::exit(0)
        }
        other => panic!("unknown role {other}"),
    }
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
