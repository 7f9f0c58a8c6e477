//! A run that is looked at from elsewhere: who is let in, who is not, and what comes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use everburn_monitor::{MonitorError, MonitorServer, Source, Target, Update};
use everburn_report::{Event, EventKind};

/// Longer than anything here takes.
const GENEROUS: Duration = Duration::from_secs(60);

fn run(folder: &Path) {
    std::fs::write(folder.join("config.toml"), "model = 'mnist'").unwrap();
    note(folder, "it begins");
}

fn note(folder: &Path, text: &str) {
    let event = Event::new(EventKind::Start, text);
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join("events.jsonl"))
        .unwrap();
    writeln!(file, "{}", serde_json::to_string(&event).unwrap()).unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let token = Some("secret".to_string());
    let server = MonitorServer::start("127.0.0.1:0", folder.path(), token).unwrap();
    let open = || target(&server).open(Some("secret")).unwrap();
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

#[test]
fn who_does_not_know_the_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let token = Some("secret".to_string());
    let server = MonitorServer::start("127.0.0.1:0", folder.path(), token).unwrap();
    for token in [None, Some(""), Some("Secret"), Some("secret ")] {
        let error = target(&server).open(token).unwrap_err();
        assert!(matches!(error, MonitorError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("--job-token"), "{error}");
    }
    let mut stranger = TcpStream::connect(server.address()).unwrap();
    stranger.set_read_timeout(Some(GENEROUS)).unwrap();
    stranger.write_all(&[b'x'; 32]).unwrap();
    let mut said = Vec::new();
    // Reset or closed: nothing of the run in either case.
    let _ = stranger.read_to_end(&mut said);
    let text = String::from_utf8_lossy(&said);
    assert!(!text.contains("mnist"), "{text}");
    assert!(said.len() <= 19 + 32 + 1, "{}", said.len());
}

#[test]
fn an_address_of_others_wants_a_token() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    for token in [None, Some(String::new())] {
        let error = MonitorServer::start("0.0.0.0:0", folder.path(), token).unwrap_err();
        assert!(matches!(error, MonitorError::TokenNeeded { .. }), "{error}");
    }
    let error = MonitorServer::start("127.0.0.1:0", &folder.path().join("none"), None).unwrap_err();
    assert!(error.to_string().contains("none"), "{error}");
}

#[test]
fn a_server_that_ends_is_missed_and_one_that_comes_back_is_found() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let server = MonitorServer::start("127.0.0.1:0", folder.path(), None).unwrap();
    let address = server.address().to_string();
    let mut source = target(&server).open(None).unwrap();
    wait_for(&mut source, tells("it begins"));
    drop(server);
    wait_for(&mut source, |update| *update == Update::Reached(false));
    let error = Target::Server(address.clone()).open(None).unwrap_err();
    assert!(matches!(error, MonitorError::Unreachable { .. }), "{error}");
    note(folder.path(), "it is back");
    // Somebody else may have taken the port meanwhile; then this is not the test for it.
    let Ok(_server) = MonitorServer::start(&address, folder.path(), None) else {
        return;
    };
    let updates = wait_for(&mut source, tells("it is back"));
    assert!(updates.contains(&Update::Reset));
}

#[test]
fn what_is_no_server_of_ours_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        connection.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
    });
    let error = Target::Server(address).open(None).unwrap_err();
    assert!(error.to_string().contains("SSH-2.0"), "{error}");
    answering.join().unwrap();
}
