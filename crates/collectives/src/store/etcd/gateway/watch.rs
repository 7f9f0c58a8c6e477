//! Waits for a write of a key, in place of reads again and again.

use std::io::{BufRead, BufReader, Read as _};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Gateway;
use crate::store::etcd::messages::{self, Watched};

/// The longest line of a stream that is read: one with the value of one key.
const LONGEST_LINE: u64 = 4 << 20;

impl Gateway {
    /// Waits until `key` is written in `revision` or later, for `limit` at most. Whoever waits reads the key again then: a
    /// member that is cut off from the others says nothing.
    ///
    /// # Errors
    /// Why this member cannot say when that is.
    pub(in crate::store::etcd) fn watch(
        &self,
        key: &[u8],
        revision: i64,
        limit: Duration,
    ) -> Result<(), String> {
        let member = self.current.load(Ordering::Relaxed) % self.urls.len();
        let request = self
            .agent
            .post(format!("{}/v3/watch", self.urls[member]))
            .content_type("application/json")
            .config()
            .timeout_global(Some(limit))
            .build();
        let mut response = match request.send(messages::watch(key, revision).to_string()) {
            Ok(response) => response,
            Err(ureq::Error::Timeout(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let status = response.status().as_u16();
        if status != 200 {
            return Err(format!("HTTP status {status}"));
        }
        let mut lines = BufReader::new(response.body_mut().as_reader());
        wait_for_event(&mut lines)
    }
}

/// Reads `lines` up to the first with an event, or up to the end of their time.
fn wait_for_event(lines: &mut impl BufRead) -> Result<(), String> {
    loop {
        let mut line = Vec::new();
        let read = lines.take(LONGEST_LINE).read_until(b'\n', &mut line);
        // A timeout of ureq's is within an error of another kind.
        match read.map_err(ureq::Error::from) {
            Err(ureq::Error::Timeout(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
            Ok(0) => return Err("the stream has ended".to_owned()),
            Ok(_) => {}
        }
        let watched = serde_json::from_slice::<Watched>(&line);
        let watched = watched.map_err(|error| error.to_string())?;
        if !watched.result.events.is_empty() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::*;

    /// A stream whose time is over after its text.
    struct TimedOut<'a>(&'a [u8]);

    impl Read for TimedOut<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(ureq::Error::Timeout(ureq::Timeout::Global).into_io()),
                read => Ok(read),
            }
        }
    }

    const CREATED: &str = r#"{"result":{"header":{"revision":"4"},"created":true}}"#;

    #[test]
    fn a_wait_ends_with_an_event_or_with_its_time() {
        let event = r#"{"result":{"header":{},"events":[{"kv":{"key":"YQ==","value":"MQ=="}}]}}"#;
        let after = format!("{CREATED}\n{event}\nno JSON\n");
        assert_eq!(wait_for_event(&mut after.as_bytes()), Ok(()));
        let mut silent = BufReader::new(TimedOut(CREATED.as_bytes()));
        assert_eq!(wait_for_event(&mut silent), Ok(()));
    }

    #[test]
    fn a_stream_that_ends_or_is_none_is_an_error() {
        for (stream, expected) in [
            (format!("{CREATED}\n"), "the stream has ended"),
            ("<html>\n".to_owned(), "expected value"),
        ] {
            let error = wait_for_event(&mut stream.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
