//! HTTP, as much of it as a scrape needs: the head of one `GET`, and the answer, after which the connection ends.

use std::io::{self, Read};

use everburn_auth::JobToken;

/// The longest request: a line, and the headers of a client or a proxy.
pub(super) const LONGEST_HEAD: usize = 16 << 10;

/// How many headers a request may have.
const MOST_HEADERS: usize = 64;

/// The text format, version 0.0.4.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    method: String,
    path: String,
    /// The value of `Authorization`.
    authorization: Option<String>,
}

impl Request {
    /// Reads a request's head, and not a byte more than a request may have. `Err` for a connection that breaks, is too
    /// slow, or sends anything else than a request without a body.
    pub(crate) fn read(connection: &mut impl Read) -> io::Result<Self> {
        let mut head = Vec::new();
        let mut piece = [0; 1024];
        loop {
            let room = (LONGEST_HEAD - head.len()).min(piece.len());
            if room == 0 {
                return Err(malformed("the request is too long"));
            }
            let count = match connection.read(&mut piece[..room]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // The end may have begun in the piece before.
            let from = head.len().saturating_sub(3);
            head.extend_from_slice(&piece[..count]);
            if let Some(end) = find(&head[from..], b"\r\n\r\n") {
                head.truncate(from + end);
                return Self::parse(&head);
            }
        }
    }

    /// Of a head without its last two line ends.
    fn parse(head: &[u8]) -> io::Result<Self> {
        let head = std::str::from_utf8(head).map_err(|_| malformed("the request is not UTF-8"))?;
        let allowed = |c: char| c == '\t' || !c.is_control();
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let words: Vec<&str> = first.split(' ').collect();
        let [method, target, "HTTP/1.0" | "HTTP/1.1"] = words[..] else {
            return Err(malformed("the first line is not METHOD PATH HTTP/1.1"));
        };
        if method.is_empty() || !method.chars().all(is_token) || !target.starts_with('/') {
            return Err(malformed("the first line is not METHOD PATH HTTP/1.1"));
        }
        if !first.chars().all(allowed) {
            return Err(malformed("the first line has control characters"));
        }
        let mut authorization = None;
        for (number, line) in lines.enumerate() {
            let (name, value) = line
                .split_once(':')
                .filter(|(name, _)| !name.is_empty() && name.chars().all(is_token))
                .ok_or_else(|| malformed("a header is not NAME: VALUE"))?;
            if number >= MOST_HEADERS || !value.chars().all(allowed) {
                return Err(malformed("too many headers, or control characters in one"));
            }
            let value = value.trim_matches([' ', '\t']);
            let is = |header: &str| name.eq_ignore_ascii_case(header);
            if is("Transfer-Encoding") || (is("Content-Length") && value != "0") {
                return Err(malformed("a request with a body"));
            }
            if is("Authorization") && authorization.replace(value.to_string()).is_some() {
                return Err(malformed("two headers Authorization"));
            }
        }
        let path = target.split(['?', '#']).next().unwrap_or_default();
        Ok(Self {
            method: method.to_string(),
            path: path.to_string(),
            authorization,
        })
    }

    /// Whether the client has sent `Authorization: Bearer CREDENTIAL`. The comparison takes the same time wherever two
    /// differ.
    fn proves(&self, credential: &JobToken) -> bool {
        let Some((scheme, given)) = self
            .authorization
            .as_deref()
            .and_then(|value| value.split_once(' '))
        else {
            return false;
        };
        let given: Result<JobToken, _> = given.trim_start_matches(' ').parse();
        scheme.eq_ignore_ascii_case("Bearer") && given.is_ok_and(|given| given == *credential)
    }
}

/// What a client is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    status: &'static str,
    headers: &'static str,
    body: String,
}

/// Answers a request; `figures` is called only for clients with the credential. Others learn nothing, not even which
/// paths there are.
pub(crate) fn answer(
    request: &Request,
    credential: &JobToken,
    figures: impl FnOnce() -> String,
) -> Answer {
    let of = |status, headers, body: &str| Answer {
        status,
        headers,
        body: body.to_string(),
    };
    if !request.proves(credential) {
        let headers = "WWW-Authenticate: Bearer realm=\"everburn\"\r\n";
        return of(
            UNAUTHORIZED,
            headers,
            "send `Authorization: Bearer` with what `everburn monitor --prometheus-token` prints\n",
        );
    }
    if request.method != "GET" {
        return of(
            "405 Method Not Allowed",
            "Allow: GET\r\n",
            "only GET is served\n",
        );
    }
    match request.path.as_str() {
        "/metrics" => Answer {
            status: "200 OK",
            headers: "",
            body: figures(),
        },
        _ => of("404 Not Found", "", "the figures are at /metrics\n"),
    }
}

const UNAUTHORIZED: &str = "401 Unauthorized";

impl Answer {
    /// To a request that cannot be read.
    pub(crate) fn malformed(error: &io::Error) -> Self {
        Self {
            status: "400 Bad Request",
            headers: "",
            body: format!("{error}\n"),
        }
    }

    /// Whether the client had not proved that it may read the figures.
    pub(crate) fn refused(&self) -> bool {
        self.status == UNAUTHORIZED
    }

    /// All that is sent.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self {
            status,
            headers,
            body,
        } = self;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {TEXT_FORMAT}\r\nContent-Length: {length}\r\n{headers}\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        );
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A character of a method or of a header's name (RFC 9110, 5.6.2).
fn is_token(character: char) -> bool {
    character.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(character)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "a credential of this length";

    fn credential() -> JobToken {
        SECRET.parse().unwrap()
    }

    fn read(request: &str) -> io::Result<Request> {
        Request::read(&mut request.as_bytes())
    }

    fn status(request: &str) -> String {
        let answer = answer(&read(request).unwrap(), &credential(), || "figures".into());
        let served = answer.body == "figures";
        assert_eq!(served, answer.status == "200 OK");
        answer.status.to_string()
    }

    #[test]
    fn only_a_get_of_the_figures_with_the_credential_is_served() {
        let with = format!("Host: here\r\nauthorization: bearer  {SECRET} \r\n\r\n");
        for (first, expected) in [
            ("GET /metrics HTTP/1.1", "200 OK"),
            ("GET /metrics?name=a HTTP/1.0", "200 OK"),
            ("GET / HTTP/1.1", "404 Not Found"),
            ("GET /metrics/ HTTP/1.1", "404 Not Found"),
            ("HEAD /metrics HTTP/1.1", "405 Method Not Allowed"),
            ("POST /metrics HTTP/1.1", "405 Method Not Allowed"),
        ] {
            assert_eq!(status(&format!("{first}\r\n{with}")), expected, "{first}");
        }
        for headers in [
            "",
            "Authorization: \r\n",
            "Authorization: Bearer\r\n",
            "Authorization: Bearer A credential of this length\r\n",
            "Authorization: Basic a credential of this length\r\n",
            "Authorization: a credential of this length\r\n",
            "X-Authorization: Bearer a credential of this length\r\n",
        ] {
            for first in ["GET /metrics", "GET /", "POST /metrics"] {
                let request = format!("{first} HTTP/1.1\r\n{headers}\r\n");
                assert_eq!(status(&request), UNAUTHORIZED, "{request}");
            }
        }
    }

    #[test]
    fn a_damaged_request_is_refused_with_its_reason() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(LONGEST_HEAD));
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(MOST_HEADERS + 1)
        );
        for (request, reason) in [
            ("", "end of file"),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", "end of file"),
            ("GET /metrics HTTP/1.1\n\n", "end of file"),
            ("\r\n\r\n", "first line"),
            ("GET /metrics\r\n\r\n", "first line"),
            ("GET  /metrics HTTP/1.1\r\n\r\n", "first line"),
            ("GET /metrics HTTP/2.0\r\n\r\n", "first line"),
            ("GET metrics HTTP/1.1\r\n\r\n", "first line"),
            ("GET http://a/metrics HTTP/1.1\r\n\r\n", "first line"),
            ("G(T /metrics HTTP/1.1\r\n\r\n", "first line"),
            ("GET /\u{1b}[2J HTTP/1.1\r\n\r\n", "control characters"),
            ("GET / HTTP/1.1\r\nno header\r\n\r\n", "NAME: VALUE"),
            ("GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", "NAME: VALUE"),
            ("GET / HTTP/1.1\r\nA : b\r\n\r\n", "NAME: VALUE"),
            ("GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", "control characters"),
            ("GET / HTTP/1.1\r\nA: b\nc\r\n\r\n", "control characters"),
            ("GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", "body"),
            (
                "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "body",
            ),
            (
                "GET / HTTP/1.1\r\nAuthorization: a\r\nauthorization: b\r\n\r\n",
                "two headers",
            ),
            (&long, "too long"),
            (&many, "too many"),
        ] {
            let error = read(request).unwrap_err().to_string();
            assert!(error.contains(reason), "{request:?}: {error}");
        }
        let error = Request::read(&mut &b"GET /\xFF HTTP/1.1\r\n\r\n"[..]).unwrap_err();
        assert!(error.to_string().contains("UTF-8"), "{error}");
    }

    #[test]
    fn a_request_may_come_byte_by_byte_and_no_more_than_it_is_read() {
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.read(&mut buffer[..1])
            }
        }
        let mut slow = Slow(b"GET /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET");
        let request = Request::read(&mut slow).unwrap();
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("GET", "/metrics")
        );
        assert_eq!(slow.0, b"GET");
        // What never ends is read as far as the longest request goes.
        let mut endless = io::repeat(b'a').take(1 << 30);
        assert!(Request::read(&mut endless).is_err());
        assert_eq!(endless.limit(), (1 << 30) - LONGEST_HEAD as u64);
    }

    #[test]
    fn an_answer_says_its_length_and_that_it_is_the_last() {
        let answer = Answer {
            status: "404 Not Found",
            headers: "",
            body: "ä\n".to_string(),
        };
        let text = String::from_utf8(answer.bytes()).unwrap();
        assert!(text.starts_with("HTTP/1.1 404 Not Found\r\n"), "{text}");
        assert!(text.contains("Content-Length: 3\r\n") && text.contains("Connection: close\r\n"));
        assert!(text.ends_with("\r\n\r\nä\n"), "{text}");
    }
}
