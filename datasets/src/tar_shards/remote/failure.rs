//! Why bytes of a server could not be read, in words.

use std::io;

use ureq::http::StatusCode;

use super::MOST_REDIRECTS;

/// Why bytes could not be had.
pub(super) struct Failure {
    pub(super) problem: String,
    /// Whether the next try may have them.
    pub(super) passing: bool,
}

impl Failure {
    /// One that the next try would have too.
    pub(super) fn lasting(problem: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            passing: false,
        }
    }
}

/// What another status than that of a range means.
pub(super) fn unexpected(status: StatusCode) -> Failure {
    let (passing, check) = match status.as_u16() {
        200 => (
            false,
            "the server ignores Range, and samples are read at their places: use a server that answers ranges, or copy the \
             shards to a disk",
        ),
        401 | 403 | 407 => (
            false,
            "the server refuses access: only shards that need no credentials are read; check the address, or copy the shards to \
             a disk",
        ),
        404 | 410 => (
            false,
            "there is no such file: check the address, and that each file of a range is there",
        ),
        416 => (false, "it is empty, or has become shorter"),
        408 | 425 | 429 | 500 | 502..=504 => (true, "check the server, and try again later"),
        _ => (false, "expected 206 Partial Content: check the address"),
    };
    Failure {
        problem: format!("the server answers {status}: {check}"),
        passing,
    }
}

/// An error before there is an answer. Addresses of redirects are not shown: they may have credentials.
pub(super) fn failed(error: ureq::Error) -> Failure {
    use ureq::Error;
    let (passing, problem) = match error {
        Error::Io(error) => (true, format!("{error}: check that the server runs")),
        Error::Timeout(timeout) => (
            true,
            format!(
                "the server did not answer in time ({timeout}): check that it runs and is reached"
            ),
        ),
        Error::HostNotFound => (
            true,
            "there is no such host: check the address and the network".to_owned(),
        ),
        Error::ConnectionFailed => (
            true,
            "the connection failed: check that the server runs".to_owned(),
        ),
        Error::BodyStalled => (true, "the answer stalled".to_owned()),
        Error::TooManyRedirects => (
            false,
            format!("it is redirected more than {MOST_REDIRECTS} times: check the address"),
        ),
        Error::RequireHttpsOnly(_) => (
            false,
            "it is redirected from HTTPS to plain HTTP: check the address".to_owned(),
        ),
        Error::Tls(problem) => (false, format!("TLS: {problem}")),
        Error::Rustls(error) => (false, format!("TLS: {error}")),
        Error::Protocol(_) | Error::Http(_) => (
            false,
            "the answer is no valid HTTP: check the address".to_owned(),
        ),
        _ => (
            false,
            "the request failed: check the address, and the proxy if there is one".to_owned(),
        ),
    };
    Failure { problem, passing }
}

/// An error in the middle of an answer.
pub(super) fn passing(error: &io::Error) -> Failure {
    Failure {
        problem: format!("the answer broke off: {error}"),
        passing: true,
    }
}
