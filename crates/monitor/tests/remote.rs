//! A run that is looked at from elsewhere: who is accepted, who is not, and what comes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use everburn_auth::{Acceptor, Dialer, JobToken};
use everburn_monitor::{MonitorError, MonitorServer, PrometheusServer, Source, Target, Update};
use everburn_record::{Event, EventKind};
use everburn_tests::AssertContains;
use tempfile::TempDir;

/// Longer than anything here takes.
const GENEROUS: Duration = Duration::from_secs(60);

const GREETING: &[u8; 19] = b"everburn-monitor 2\n";

fn token() -> JobToken {
    "correct horse battery staple".parse().unwrap()
}

fn serve(folder: &Path) -> MonitorServer {
    MonitorServer::start("127.0.0.1:0", folder, &token()).unwrap()
}

/// The folder of a run that has begun.
fn run() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    everburn_tests::Run::begin(folder.path());
    note(folder.path(), "it begins");
    folder
}

fn note(folder: &Path, text: &str) {
    let event = Event::new(EventKind::Start, text);
    let line = serde_json::to_string(&event).unwrap();
    append(folder, "events.jsonl", &line);
}

fn append(folder: &Path, name: &str, line: &str) {
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join(name))
        .unwrap();
    writeln!(file, "{line}").unwrap();
}

fn target(server: &MonitorServer) -> Target {
    Target::Server(server.address().to_string())
}

/// Polls until an update is there.
fn wait_for(source: &mut Source, wanted: impl Fn(&Update) -> bool) -> Vec<Update> {
    let (began, mut all) = (Instant::now(), Vec::new());
    while !all.iter().any(&wanted) {
        assert!(began.elapsed() < GENEROUS, "it never came: {all:?}");
        all.extend(source.poll());
        std::thread::yield_now();
    }
    all
}

fn tells(text: &str) -> impl Fn(&Update) -> bool {
    move |update| matches!(update, Update::Event(event) if event.text == text)
}

#[test]
fn several_look_on_and_what_happens_comes_to_all() {
    let folder = run();
    let server = serve(folder.path());
    let open = || target(&server).open(Some(&token())).unwrap();
    let mut sources = [
        open(),
        open(),
        Target::Folder(folder.path().into()).open(None).unwrap(),
    ];
    for source in &mut sources {
        wait_for(source, tells("it begins"));
    }
    note(folder.path(), "it goes on");
    let [mut first, second, mut local] = sources;
    // Who leaves disturbs nobody.
    drop(second);
    for source in [&mut first, &mut local] {
        wait_for(source, tells("it goes on"));
    }
}

fn connect(server: &MonitorServer) -> TcpStream {
    connect_to(server.address())
}

fn connect_to(address: SocketAddr) -> TcpStream {
    let connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(GENEROUS)).unwrap();
    connection.set_write_timeout(Some(GENEROUS)).unwrap();
    connection
}

/// All that is said until the connection is closed.
fn rest(connection: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match connection.read_to_end(&mut said) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => {
            panic!("the connection was not closed: {error}")
        }
        _ => said,
    }
}

/// The greeting, and the answer to `nonce`.
fn challenge(connection: &mut TcpStream, nonce: &[u8; 32]) -> [u8; 64] {
    let (mut greeting, mut challenge) = ([0; 19], [0; 64]);
    connection.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, GREETING);
    connection.write_all(nonce).unwrap();
    connection.read_exact(&mut challenge).unwrap();
    challenge
}

#[test]
fn a_monitor_with_another_token_or_none_is_refused_on_loopback_too() {
    let folder = run();
    let server = serve(folder.path());
    let error = target(&server).open(None).unwrap_err();
    assert!(matches!(error, MonitorError::TokenNeeded { .. }), "{error}");
    let words = error.to_string();
    words.assert_contains(["EVERBURN_JOB_TOKEN", "folder"]);
    for other in [
        "Correct horse battery staple",
        "correct horse battery staple ",
    ] {
        let error = target(&server)
            .open(Some(&other.parse().unwrap()))
            .unwrap_err();
        assert!(matches!(error, MonitorError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("--job-token"), "{error}");
    }
}

#[test]
fn a_stranger_learns_nothing_of_the_run() {
    let folder = run();
    let server = serve(folder.path());
    let mut stranger = connect(&server);
    challenge(&mut stranger, &[b'x'; 32]);
    stranger.write_all(&[b'y'; 32]).unwrap();
    assert_eq!(rest(&mut stranger), b"");
}

#[test]
fn a_proof_is_worth_nothing_a_second_time() {
    let folder = run();
    let server = serve(folder.path());
    // All that a monitor sends, as somebody may have recorded it.
    let dialer = Dialer::new(&token().key("monitor"), GREETING).unwrap();
    let nonce = *dialer.nonce();
    let mut first = connect(&server);
    let proof = dialer.answer(&challenge(&mut first, &nonce)).unwrap();
    first.write_all(&proof).unwrap();
    let mut frame = [0; 4];
    first.read_exact(&mut frame).unwrap();
    let mut again = connect(&server);
    challenge(&mut again, &nonce);
    again.write_all(&proof).unwrap();
    assert_eq!(rest(&mut again), b"");
}

/// Runs `server` on the first connection that a monitor makes, and returns how the monitor ended and what the
/// server has found.
fn monitor_of<R: Send + 'static>(
    server: impl FnOnce(TcpStream) -> R + Send + 'static,
) -> (MonitorError, R) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let (connection, _) = listener.accept().unwrap();
        connection.set_read_timeout(Some(GENEROUS)).unwrap();
        server(connection)
    });
    let error = Target::Server(address).open(Some(&token())).unwrap_err();
    (error, serving.join().unwrap())
}

#[test]
fn a_server_that_does_not_know_the_token_gets_a_nonce_and_shows_nothing() {
    let (error, sent) = monitor_of(|mut connection| {
        let mut nonce = [0; 32];
        connection.write_all(GREETING).unwrap();
        connection.read_exact(&mut nonce).unwrap();
        let other: JobToken = "another token of this length".parse().unwrap();
        let key = other.key("monitor");
        let (_, challenge) = Acceptor::new(&key, GREETING, &nonce).unwrap();
        connection.write_all(&challenge).unwrap();
        // Something to be shown, before anything was proved.
        let update = br#"{"running":true}"#;
        let _ = connection.write_all(&[&[16, 0, 0, 0], &update[..]].concat());
        rest(&mut connection)
    });
    assert!(matches!(error, MonitorError::Refused { .. }), "{error}");
    assert_eq!(sent, b"");
}

#[test]
fn a_server_that_lets_everybody_in_is_refused() {
    // As servers of the protocol before this one did.
    let (error, _) = monitor_of(|mut connection| {
        connection.write_all(b"everburn-monitor 1\n").unwrap();
        let _ = connection.write_all(&[[7; 32].as_slice(), &[1]].concat());
        rest(&mut connection)
    });
    assert!(error.to_string().contains("another version"), "{error}");
}

#[test]
fn a_folder_without_a_run_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let error =
        MonitorServer::start("127.0.0.1:0", &folder.path().join("none"), &token()).unwrap_err();
    assert!(error.to_string().contains("none"), "{error}");
}

#[test]
fn strangers_that_stay_do_not_keep_a_monitor_out() {
    let folder = run();
    let server = serve(folder.path());
    let strangers: Vec<_> = (0..100).map(|_| connect(&server)).collect();
    let mut source = target(&server).open(Some(&token())).unwrap();
    wait_for(&mut source, tells("it begins"));
    drop(strangers);
}

#[test]
fn a_server_that_ends_is_missed_and_one_that_comes_back_is_found() {
    // Somebody else may take the port between its end and the next server, though not each time.
    assert!((0..5).any(|_| is_missed_and_found()));
}

/// Whether the port was still free when the server came back.
fn is_missed_and_found() -> bool {
    let folder = run();
    let server = serve(folder.path());
    let address = server.address().to_string();
    let mut source = target(&server).open(Some(&token())).unwrap();
    wait_for(&mut source, tells("it begins"));
    drop(server);
    wait_for(&mut source, |update| *update == Update::Reached(false));
    let error = Target::Server(address.clone())
        .open(Some(&token()))
        .unwrap_err();
    assert!(matches!(error, MonitorError::Unreachable { .. }), "{error}");
    note(folder.path(), "it is back");
    let Ok(_server) = MonitorServer::start(&address, folder.path(), &token()) else {
        return false;
    };
    let updates = wait_for(&mut source, tells("it is back"));
    assert!(updates.contains(&Update::Reset));
    true
}

#[test]
fn another_program_at_the_address_is_named() {
    let (error, ()) = monitor_of(|mut connection| {
        connection.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
    });
    assert!(error.to_string().contains("SSH-2.0"), "{error}");
}

/// What a server of figures answers to these bytes.
fn asked(server: &PrometheusServer, request: &str) -> String {
    let mut connection = connect_to(server.address());
    connection.write_all(request.as_bytes()).unwrap();
    String::from_utf8(rest(&mut connection)).unwrap()
}

fn scrape(server: &PrometheusServer, credential: &str) -> String {
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {credential}\r\n\r\n");
    asked(server, &request)
}

fn measure(folder: &Path, step: u64) {
    let line = format!("{{\"kind\":\"step\",\"epoch\":1,\"step\":{step},\"loss\":0.5}}");
    append(folder, "metrics.jsonl", &line);
}

#[test]
fn each_scrape_has_the_newest_figures() {
    let folder = run();
    let server = PrometheusServer::start("127.0.0.1:0", folder.path(), &token()).unwrap();
    let credential = PrometheusServer::credential(&token());
    for step in [1, 2] {
        measure(folder.path(), step);
        let answer = scrape(&server, credential.reveal());
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let at_step = format!("\neverburn_step {step}\n");
        answer.assert_contains([
            "\r\nContent-Type: text/plain; version=0.0.4",
            &at_step,
            "\neverburn_loss{split=\"train\"} 0.5\n",
        ]);
    }
}

#[test]
fn a_scrape_without_the_credential_learns_nothing_and_the_jobs_token_is_none() {
    let folder = run();
    measure(folder.path(), 1);
    let server = PrometheusServer::start("127.0.0.1:0", folder.path(), &token()).unwrap();
    let other: JobToken = "another token of this length".parse().unwrap();
    for credential in [token(), PrometheusServer::credential(&other)] {
        let answer = scrape(&server, credential.reveal());
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(!answer.contains("everburn_step"), "{answer}");
    }
    let answer = asked(&server, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    let answer = asked(&server, "EHLO\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    // A request with more behind it than is read is answered all the same.
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20 << 10));
    assert!(!asked(&server, &long).contains("everburn_step"));
}

#[test]
fn connections_that_ask_nothing_do_not_keep_a_scrape_out() {
    let folder = run();
    let server = PrometheusServer::start("127.0.0.1:0", folder.path(), &token()).unwrap();
    let silent: Vec<_> = (0..100).map(|_| connect_to(server.address())).collect();
    let answer = scrape(&server, PrometheusServer::credential(&token()).reveal());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(silent);
    // It ends, and with it what is not done.
    let mut pending = connect_to(server.address());
    drop(server);
    assert_eq!(rest(&mut pending), b"");
}
