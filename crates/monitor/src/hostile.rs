//! What strangers may send to a server of monitors, what a server may send to a monitor, and what updates may
//! say, for the fuzz target in `fuzz/` and for a test that drives the same function with random bytes. Only
//! there in tests and under `--cfg fuzzing`.

use std::io::{self, Read, Write};

use everburn_auth::{
    Acceptor, AuthError, CHALLENGE_BYTES, JobToken, Key, NONCE_BYTES, PROOF_BYTES,
};
use everburn_record::plain::is_unruly;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::command::json_line;
use crate::prometheus::{Request, answer};
use crate::state::RunState;
use crate::update::Update;
use crate::view::{RanksView, draw_ranks};
use crate::wire::{self, GREETING, Refusal};

/// More than a state may ever hold, in bytes.
const MOST_HELD: usize = 64 << 20;

/// Plays the other side of the monitor's protocol with arbitrary bytes; the first one says which.
///
/// # Panics
/// Where our side does what it must not: answers a stranger, shows a server's updates before it has proved
/// itself, holds too much, or hands control characters to a terminal.
pub fn monitor_wire(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    match kind % 4 {
        0 => hostile_client(rest),
        1 => hostile_server(rest),
        2 => altered_challenge(rest),
        _ => updates(rest),
    }
}

/// Reads arbitrary bytes as a scrape's request, alone and before more of them.
///
/// # Panics
/// Where a client without the credential is served, or learns more than that.
pub fn prometheus_request(bytes: &[u8]) {
    let credential = JobToken::random().expect("the system has random bytes");
    let ended = [bytes, b"\r\n\r\n"].concat();
    let request = [b"GET /metrics HTTP/1.1\r\n", &ended[..]].concat();
    for bytes in [bytes, &ended, &request] {
        let Ok(request) = Request::read(&mut &bytes[..]) else {
            continue;
        };
        let answer = answer(&request, &credential, || panic!("a stranger was served"));
        assert!(answer.refused() && answer.bytes().len() < 512);
    }
}

/// A connection whose other side says `incoming`, whatever is said to it.
#[derive(Default)]
struct ScriptedConnection<'a> {
    incoming: &'a [u8],
    outgoing: Vec<u8>,
}

impl Read for ScriptedConnection<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.incoming.read(buffer)
    }
}

impl Write for ScriptedConnection<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.outgoing.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn key() -> Key {
    Key::from_secret(b"a secret that no input can guess", "monitor")
}

/// A client without the token gets a greeting and a challenge, and no more.
fn hostile_client(bytes: &[u8]) {
    let mut connection = ScriptedConnection {
        incoming: bytes,
        ..ScriptedConnection::default()
    };
    let accepted = wire::accept(&mut connection, &key());
    assert!(accepted.is_err(), "a stranger was accepted");
    let most = GREETING.len() + CHALLENGE_BYTES;
    assert!(connection.outgoing.len() <= most);
}

/// A server without the token gets a nonce, and no more.
fn hostile_server(bytes: &[u8]) {
    let greeted = [&GREETING[..], bytes].concat();
    for incoming in [bytes, &greeted] {
        let mut connection = ScriptedConnection {
            incoming,
            ..ScriptedConnection::default()
        };
        assert!(
            wire::enter(&mut connection, &key()).is_err(),
            "a stranger was believed"
        );
        assert!(connection.outgoing.len() <= NONCE_BYTES);
    }
}

/// A server that answers with the right challenge, altered as the input says, is believed only where nothing was
/// altered.
fn altered_challenge(bytes: &[u8]) {
    struct Altering<'a> {
        nonce: Vec<u8>,
        alteration: &'a [u8],
        unread: Vec<u8>,
        sent: usize,
    }
    impl Read for Altering<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = (&self.unread[..]).read(buffer)?;
            self.unread.drain(..count);
            Ok(count)
        }
    }
    impl Write for Altering<'_> {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.sent += buffer.len();
            self.nonce.extend_from_slice(buffer);
            if let Ok(nonce) = self.nonce[..].try_into() {
                let made = Acceptor::new(&key(), GREETING, nonce);
                let (_, mut challenge) = made.map_err(io::Error::other)?;
                for (byte, change) in challenge.iter_mut().zip(self.alteration) {
                    *byte ^= change;
                }
                self.unread.extend(challenge);
            }
            Ok(buffer.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut server = Altering {
        nonce: Vec::new(),
        alteration: bytes,
        unread: GREETING.to_vec(),
        sent: 0,
    };
    let altered = bytes.iter().take(CHALLENGE_BYTES).any(|byte| *byte != 0);
    match wire::enter(&mut server, &key()) {
        Ok(()) => {
            assert!(!altered, "an altered challenge was believed");
            assert_eq!(server.sent, NONCE_BYTES + PROOF_BYTES);
        }
        Err(Refusal::Auth(AuthError::WrongSecret)) => {
            assert!(altered, "the right challenge was refused");
            assert_eq!(server.sent, NONCE_BYTES);
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Frames as the bytes are, and then lines of them as frames of their own.
fn updates(bytes: &[u8]) {
    let mut state = RunState::default();
    let mut rest = bytes;
    while let Ok((update, length)) = wire::take(&mut rest) {
        assert!(length <= bytes.len());
        if let Some(update) = update {
            check(&mut state, &update);
        }
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(update) = serde_json::from_slice::<Update>(line) {
            check(&mut state, &update);
        }
    }
    let area = Rect::new(0, 0, 100, 30);
    let mut buffer = Buffer::empty(area);
    for whole in [false, true] {
        let view = RanksView {
            whole,
            ..RanksView::default()
        };
        draw_ranks(&state, view, area, &mut buffer);
    }
    let unruly = |cell: &ratatui::buffer::Cell| cell.symbol().chars().any(is_unruly);
    assert!(!buffer.content.iter().any(unruly), "a terminal would obey");
}

fn check(state: &mut RunState, update: &Update) {
    let line = json_line(update);
    let line = line.unwrap_or_else(|| panic!("{update:?} is no JSON"));
    assert!(!line.chars().any(is_unruly), "a terminal would obey {line}");
    state.take(update, 1_000);
    assert!(state.held() <= MOST_HELD);
    // All that a screen asks for.
    let _ = (
        state.ranks(),
        state.doing(),
        state.trouble(),
        state.seconds_left(),
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts that may be updates, with numbers and strings that nobody would send.
    fn line() -> impl Strategy<Value = String> {
        let number = prop_oneof![
            0..5_u64,
            4090..4100_u64,
            Just(u64::MAX),
            Just(1 << 53),
            any::<u64>()
        ];
        let real = prop_oneof![any::<f64>(), Just(0.0), Just(f64::MAX), Just(-1.0)]
            .prop_filter("JSON has no other", |real| real.is_finite());
        (number, real, any::<String>(), 0..8).prop_map(|(n, x, text, kind)| {
            let value = match kind {
                0 => serde_json::json!({"ranks": {"step": n, "ranks": [
                    {"rank": n, "seconds": x, "waited": x}, {"rank": 1, "seconds": x}
                ]}}),
                1 => serde_json::json!({"event": {
                    "kind": "loss", "rank": n, "ranks": [n, 1], "text": text
                }}),
                2 => serde_json::json!({"live": {
                    "unix_time_ms": n, "phase": "training", "step": n, "steps": n,
                    "epochs": n, "seconds_a_step": x, "members": [n], "ranks": [
                        {"rank": n, "alive": true, "doing": text, "silent_seconds": x}
                    ]
                }}),
                3 => serde_json::json!({"metric": {
                    "kind": "step", "step": n, "loss": x, "accuracy": x, "samples": n,
                    "seconds": x, "learning_rate": x, "gradient_norm": x,
                    "metrics": {text: x, "none": null}
                }}),
                4 => serde_json::json!({"run": {
                    "name": text, "config": format!("model = {text:?}\n[ranks]\nranks = {n}")
                }}),
                5 => serde_json::json!({"report": {"stopped": text}}),
                6 => serde_json::json!({"running": n == 0}),
                _ => serde_json::json!({"event": text}),
            };
            let line = value.to_string();
            let is_update = serde_json::from_str::<Update>(&line).is_ok();
            assert_eq!(is_update, kind != 7, "{line}");
            line
        })
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_survived(mut bytes: Vec<u8>, kind in 0..4_u8) {
            bytes.insert(0, kind);
            monitor_wire(&bytes);
        }

        #[test]
        fn arbitrary_requests_are_survived(bytes: Vec<u8>, headers in "([A-Za-z-]{0,20}:? ?[ -~]{0,40}\r\n){0,9}") {
            prometheus_request(&bytes);
            prometheus_request(headers.as_bytes());
        }

        #[test]
        fn arbitrary_updates_are_survived(lines in prop::collection::vec(line(), 0..20)) {
            monitor_wire(format!("\x03{}", lines.join("\n")).as_bytes());
        }
    }

    #[test]
    fn an_unaltered_challenge_is_believed() {
        monitor_wire(&[2]);
        monitor_wire(&[2, 0, 0, 1]);
    }

    #[test]
    fn each_target_has_a_program() {
        let folder = "../../fuzz/fuzz_targets";
        for name in ["monitor_wire", "prometheus_request"] {
            let program = std::fs::read_to_string(format!("{folder}/{name}.rs")).unwrap();
            let call = format!("everburn_monitor::hostile::{name}(bytes)");
            assert!(program.contains(&call), "{program}");
        }
    }
}
