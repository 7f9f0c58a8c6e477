//! Tar files on a server, read by HTTP ranges.
//!
//! A shard is never held whole, nor stored. To index it, its bytes are read from front to back in requests
//! that grow from 64 KiB to 64 MiB: what is near is passed over by reading on, which costs less than another request, and a
//! request begins behind what is far. A sample then is a request of its bytes. A server must therefore answer ranges: without
//! them each sample would cost the shard up to its place.
//!
//! Every wait has a deadline. Failures that may pass are tried again, from the byte that was read last, a few times. Each
//! answer says the length of the shard and its `ETag` or `Last-Modified`; a shard that is no longer the one that was indexed
//! is refused.

mod failure;

use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::{HeaderMap, HeaderName, StatusCode, header};

use self::failure::{Failure, failed, passing, unexpected};
use crate::download::{Deadlines, config};

/// The bytes that the first request of an index asks for, and each one after what was far.
const FIRST_REQUEST: u64 = 64 << 10;

/// The most bytes that a request asks for.
const LARGEST_REQUEST: u64 = 64 << 20;

/// What is at most this far is reached by reading on: its bytes take about as long as another request.
const NEAR: u64 = 1 << 20;

/// Enough for a download site that passes on to the nearest server.
const MOST_REDIRECTS: u32 = 5;

/// Connections that wait for the next sample, one for each thread that reads samples.
const IDLE_CONNECTIONS: usize = 16;

/// How a server is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) deadlines: Deadlines,
    /// How often bytes are asked for before it is an error.
    pub(super) tries: u32,
    /// The pause before the second try. Each one after is twice as long.
    pub(super) pause: Duration,
}

impl Patience {
    /// Ends in seconds where a server answers errors, and in little more than a minute where it is silent: below the
    /// timeout of the ranks that wait for this one.
    pub(super) const USUAL: Self = Self {
        deadlines: Deadlines::FILE,
        tries: 5,
        pause: Duration::from_millis(250),
    };
}

/// A shard on a server.
#[derive(Debug)]
pub(super) struct RemoteFile {
    agent: ureq::Agent,
    patience: Patience,
    url: Arc<str>,
    identity: Identity,
}

/// What tells a file from another one under the same address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    length: u64,
    etag: Option<String>,
    modified: Option<String>,
}

/// What asks for the shards of a data set. No address may turn to plain HTTP on the way if all of them are encrypted.
pub(super) fn agent(patience: &Patience, https_only: bool) -> ureq::Agent {
    config(&patience.deadlines)
        .https_only(https_only)
        .http_status_as_error(false)
        .max_redirects(MOST_REDIRECTS)
        .max_redirects_will_error(true)
        .max_idle_connections(IDLE_CONNECTIONS)
        .max_idle_connections_per_host(IDLE_CONNECTIONS)
        .build()
        .new_agent()
}

impl RemoteFile {
    /// Asks for the length of a shard, and whether the server answers ranges.
    pub(super) fn open(agent: &ureq::Agent, patience: Patience, url: &str) -> io::Result<Self> {
        let mut failures = 0;
        let identity = loop {
            let answer = ask(agent, url, &(0..1)).and_then(|(identity, mut body)| {
                // Read to its end, so that the connection is used again.
                let read = body.read_to_end(&mut Vec::new());
                read.map(|_| identity).map_err(|error| passing(&error))
            });
            match answer {
                Ok(identity) => break identity,
                Err(failure) => patience.after(failure, &mut failures)?,
            }
        };
        Ok(Self {
            agent: agent.clone(),
            patience,
            url: url.into(),
            identity,
        })
    }

    /// The bytes of the file.
    pub(super) fn length(&self) -> u64 {
        self.identity.length
    }

    /// All of it, for the index.
    pub(super) fn reader(&self) -> BufReader<RemoteReader<'_>> {
        let reader = RemoteReader::of(self, 0..self.length(), FIRST_REQUEST);
        BufReader::with_capacity(FIRST_REQUEST as usize, reader)
    }

    /// The bytes of a sample.
    pub(super) fn read(&self, offset: u64, size: u64) -> io::Result<Vec<u8>> {
        let end = offset.saturating_add(size).min(self.length());
        let mut content = Vec::new();
        RemoteReader::of(self, offset..end, LARGEST_REQUEST).read_to_end(&mut content)?;
        match content.len() as u64 == size {
            true => Ok(content),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn ask(&self, range: &Range<u64>) -> Result<ureq::BodyReader<'static>, Failure> {
        let (identity, body) = ask(&self.agent, &self.url, range)?;
        match self.identity.changed(&identity) {
            None => Ok(body),
            Some(change) => Err(Failure::lasting(format!(
                "it has changed since the training began: {change}; train on files that stay, or start again"
            ))),
        }
    }
}

impl Identity {
    fn of(headers: &HeaderMap, length: u64) -> Self {
        Self {
            length,
            etag: text(headers, header::ETAG),
            modified: text(headers, header::LAST_MODIFIED),
        }
    }

    /// What tells it from another answer: the tag, where both have one, and the date only where they have not.
    fn changed(&self, now: &Self) -> Option<String> {
        let differ = |what: &str, was: &Option<String>, is: &Option<String>| match (was, is) {
            (Some(was), Some(is)) if was != is => Some(format!(
                "its {what} was {}, and is {}",
                was.escape_debug(),
                is.escape_debug()
            )),
            _ => None,
        };
        if self.length != now.length {
            return Some(format!(
                "it had {} bytes, and has {}",
                self.length, now.length
            ));
        }
        match (&self.etag, &now.etag) {
            (Some(_), Some(_)) => differ("ETag", &self.etag, &now.etag),
            _ => differ("Last-Modified", &self.modified, &now.modified),
        }
    }
}

impl Patience {
    /// Waits for the next try; the error, if there is none.
    fn after(&self, failure: Failure, failures: &mut u32) -> io::Result<()> {
        *failures += 1;
        if !failure.passing {
            return Err(io::Error::other(failure.problem));
        }
        if *failures >= self.tries {
            let problem = format!("{} ({failures} tries)", failure.problem);
            return Err(io::Error::other(problem));
        }
        tracing::debug!("try {failures} of {}: {}", self.tries, failure.problem);
        std::thread::sleep(self.pause * 2_u32.saturating_pow(*failures - 1));
        Ok(())
    }
}

/// Reads a range of a shard, in requests of bounded size.
pub(super) struct RemoteReader<'a> {
    file: &'a RemoteFile,
    position: u64,
    /// Where reading ends.
    end: u64,
    /// The bytes that the next request asks for.
    request: u64,
    /// The request that is being answered, and where it ends.
    answer: Option<(ureq::BodyReader<'static>, u64)>,
    failures: u32,
}

impl<'a> RemoteReader<'a> {
    fn of(file: &'a RemoteFile, range: Range<u64>, request: u64) -> Self {
        Self {
            file,
            position: range.start,
            end: range.end,
            request,
            answer: None,
            failures: 0,
        }
    }

    /// Reads from the answer, or asks for one.
    fn attempt(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        let (body, end) = match &mut self.answer {
            Some(answer) => answer,
            none => {
                let end = self.end.min(self.position.saturating_add(self.request));
                none.insert((self.file.ask(&(self.position..end))?, end))
            }
        };
        let left = *end - self.position;
        let most = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = body.read(&mut buffer[..most]);
        let read = read.map_err(|error| passing(&error))?;
        if read == 0 {
            return Err(Failure {
                problem: format!("the answer is cut off, {left} bytes before its end"),
                passing: true,
            });
        }
        self.position += read as u64;
        if self.position == *end {
            // Its end is read too, so that the connection is used again.
            let more = body.read(&mut [0]);
            self.answer = None;
            self.request = (self.request * 2).min(LARGEST_REQUEST);
            self.failures = 0;
            if matches!(more, Ok(1..)) {
                let problem = "the server sends more bytes than were asked for";
                return Err(Failure::lasting(problem));
            }
        }
        Ok(read)
    }

    /// Reads on up to a place in the answer; `false` if it ends before.
    fn pass(&mut self, to: u64) -> io::Result<bool> {
        let reached = self.answer.as_ref().map(|(_, end)| to.min(*end));
        let mut left = reached.map_or(0, |reached| reached - self.position);
        let mut buffer = vec![0; left.min(FIRST_REQUEST) as usize];
        while left > 0 {
            let most = buffer.len().min(left as usize);
            left -= self.read(&mut buffer[..most])? as u64;
        }
        Ok(self.position == to)
    }
}

impl Read for RemoteReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.position >= self.end {
            return Ok(0);
        }
        loop {
            match self.attempt(buffer) {
                Ok(read) => return Ok(read),
                Err(failure) => {
                    self.answer = None;
                    self.file.patience.after(failure, &mut self.failures)?;
                }
            }
        }
    }
}

impl Seek for RemoteReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
        };
        let target = target.ok_or(io::ErrorKind::InvalidInput)?;
        let near = target >= self.position && target - self.position <= NEAR;
        if near && self.pass(target)? {
            return Ok(target);
        }
        if target != self.position {
            self.answer = None;
            self.failures = 0;
        }
        if !near {
            self.request = FIRST_REQUEST;
        }
        self.position = target;
        Ok(target)
    }
}

/// Asks for bytes, and checks that the answer has them and no others.
fn ask(
    agent: &ureq::Agent,
    url: &str,
    range: &Range<u64>,
) -> Result<(Identity, ureq::BodyReader<'static>), Failure> {
    let last = range.end - 1;
    let response = agent
        .get(url)
        .header(header::RANGE, format!("bytes={}-{last}", range.start))
        .header(header::ACCEPT_ENCODING, "identity")
        .call()
        .map_err(failed)?;
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return Err(unexpected(response.status()));
    }
    let headers = response.headers();
    if let Some(encoding) = text(headers, header::CONTENT_ENCODING)
        && !encoding.eq_ignore_ascii_case("identity")
    {
        let encoding = encoding.escape_debug();
        return Err(Failure::lasting(format!(
            "the server sends its bytes in the encoding {encoding}: serve them as they are"
        )));
    }
    let content = text(headers, header::CONTENT_RANGE).unwrap_or_default();
    let Some((first, until, length)) = content_range(&content) else {
        return Err(Failure::lasting(format!(
            "the answer has no usable range: Content-Range is `{}`, expected `bytes {}-{last}/LENGTH`",
            content.escape_debug(),
            range.start
        )));
    };
    if first != range.start || until != last.min(length.saturating_sub(1)) {
        return Err(Failure::lasting(format!(
            "the server sends the bytes {first} to {until} of {length}, and {} to {last} were asked for",
            range.start
        )));
    }
    let identity = Identity::of(headers, length);
    Ok((identity, response.into_body().into_reader()))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let value = headers.get(name)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// The numbers of `bytes 0-99/1000`.
fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, length) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let number = |text: &str| text.trim().parse::<u64>().ok();
    Some((number(first)?, number(last)?, number(length)?))
}

#[cfg(test)]
mod tests;
