//! Requests to the JSON gateway of whichever member answers.
//!
//! A request that has no answer is sent again, to the next member: members die, are stopped, are cut off from the
//! others, or elect a leader, and the request may have been carried out. So every request here may be carried out
//! twice without harm; see [`writes`](super::writes) for how that is so of writes.

mod watch;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use everburn_record::units;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::address::EtcdAddress;
use super::messages::Refusal;
use super::tls;
use crate::rendezvous::{RanksAwaited, WaitListener};
use crate::store::backoff::Backoff;
use crate::store::{Deadline, StoreError, random_u64};
use crate::wait_notice::WaitNotice;

/// How long one member may take to answer.
const ATTEMPT: Duration = Duration::from_secs(3);

/// An attempt gets this much even where many members share little time.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(50);

/// The first pause after no member has answered.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

const MOST_ANSWER: u64 = 64 << 20;

/// Connections that wait for the next requests.
const IDLE_CONNECTIONS: usize = 8;

/// gRPC's codes of a member that cannot answer now: it has no leader, it stops, its request took too long.
const PASSING: [i64; 2] = [4, 14];

/// The members of an etcd.
#[derive(Debug)]
pub(super) struct Gateway {
    address: String,
    urls: Vec<String>,
    agent: ureq::Agent,
    /// The member that has answered last.
    current: AtomicUsize,
    /// What to check where members cannot be reached, besides themselves.
    advice: &'static str,
    /// Who learns that none of them is reached.
    on_wait: WaitListener,
}

/// The operation of a process that joins the job.
pub(super) const CONNECT: &str = "connect";

/// What to check where no member answers.
const CHECK_MEMBERS: &str = "check that most of etcd's members run and reach each other (`etcdctl endpoint health`), and that \
                             this machine reaches them";

/// What to check where TLS may be at fault.
const ADVICE_OF_TLS: &str = "check the files of the address: `cacert` names the authority of the members' certificates, \
                             `cert` and `key` a client certificate where etcd requires one";

/// What to check where there is no TLS.
const ADVICE_WITHOUT_TLS: &str = "if they are asked over TLS, begin the address with etcds://";

/// Why a member has not done what was asked.
enum Failure {
    /// Another member may, or the same one later.
    Passing(String),
    /// Its certificate is not trusted, or it does not accept the one of this process.
    Untrusted(String),
    /// None will.
    Lasting(StoreError),
}

impl Gateway {
    /// Reads the files that the address names.
    pub(super) fn new(address: &EtcdAddress, on_wait: WaitListener) -> Result<Self, StoreError> {
        let urls = address.urls();
        // Ranks begin with different members, so that these share the load.
        let first = random_u64() as usize % urls.len();
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // A proxy for the internet has no way to the members.
            .proxy(None)
            .max_idle_connections_per_host(IDLE_CONNECTIONS)
            .user_agent(concat!("everburn/", env!("CARGO_PKG_VERSION")));
        let (config, advice) = match &address.tls {
            None => (config, ADVICE_WITHOUT_TLS),
            Some(files) => {
                let with_files = tls::with_files(config, files);
                let operation = CONNECT;
                let config =
                    with_files.map_err(|reason| StoreError::Invalid { operation, reason })?;
                (config, ADVICE_OF_TLS)
            }
        };
        Ok(Self {
            address: address.to_string(),
            urls,
            agent: config.build().new_agent(),
            current: AtomicUsize::new(first),
            advice,
            on_wait,
        })
    }

    /// The error of an etcd whose answers or keys are not as they should be.
    pub(super) fn malformed(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Protocol {
            address: self.address.clone(),
            reason: reason.into(),
        }
    }

    pub(super) fn unauthenticated(&self, reason: String) -> StoreError {
        let address = self.address.clone();
        StoreError::Unauthenticated { address, reason }
    }

    pub(super) fn unreachable(&self, operation: &'static str, reason: String) -> StoreError {
        let address = self.address.clone();
        StoreError::Unreachable {
            address,
            operation,
            reason,
        }
    }

    /// Sends `body` to one member after the other until one answers or `deadline` has passed. Who joins the job, and waits for
    /// long, says so.
    pub(super) fn call<R: DeserializeOwned>(
        &self,
        operation: &'static str,
        path: &str,
        body: &Value,
        deadline: Deadline,
    ) -> Result<R, StoreError> {
        let notice = (operation == CONNECT).then(WaitNotice::new);
        self.call_with(notice, operation, path, &body.to_string(), deadline)
    }

    fn call_with<R: DeserializeOwned>(
        &self,
        mut notice: Option<WaitNotice>,
        operation: &'static str,
        path: &str,
        body: &str,
        deadline: Deadline,
    ) -> Result<R, StoreError> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut attempts, mut untrusted) = (0_usize, 0_usize);
        let members = self.urls.len();
        let share = u32::try_from(members).unwrap_or(u32::MAX);
        loop {
            let member = self.current.load(Ordering::Relaxed) % members;
            let limit = (deadline.left() / share).clamp(SHORTEST_ATTEMPT, ATTEMPT);
            attempts += 1;
            let problem = match self.ask(operation, &self.urls[member], path, body, limit) {
                Ok(answer) => return Ok(answer),
                Err(Failure::Lasting(error)) => return Err(error),
                Err(Failure::Untrusted(problem)) => {
                    untrusted += 1;
                    // All members, one after the other.
                    if untrusted >= members {
                        let reason =
                            format!("{} over TLS: {problem}; {}", self.urls[member], self.advice);
                        return Err(self.unauthenticated(reason));
                    }
                    problem
                }
                Err(Failure::Passing(problem)) => {
                    untrusted = 0;
                    problem
                }
            };
            tracing::debug!("{} for `{operation}`: {problem}", self.urls[member]);
            // Another thread may have moved to it already.
            let _ = self.current.compare_exchange(
                member,
                (member + 1) % members,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            let left = deadline.left();
            if left.is_zero() {
                let reason = format!(
                    "tried {attempts} times in {}, last {}: {problem}; {CHECK_MEMBERS}; {}",
                    units::seconds(deadline.elapsed().as_secs_f64()),
                    self.urls[member],
                    self.advice
                );
                return Err(self.unreachable(operation, reason));
            }
            if notice
                .as_mut()
                .is_some_and(|notice| notice.is_due(deadline.elapsed()))
            {
                let text = format!(
                    "the store at {} is not reached yet ({}: {problem}); it is tried for {:.0} s more: {CHECK_MEMBERS}; {}",
                    self.address,
                    self.urls[member],
                    left.as_secs_f64(),
                    self.advice
                );
                self.on_wait.tell(&RanksAwaited {
                    joined: Vec::new(),
                    left,
                    text,
                });
            }
            if attempts.is_multiple_of(members) {
                backoff.sleep(left);
            }
        }
    }

    /// Sends `body` to one member.
    fn ask<R: DeserializeOwned>(
        &self,
        operation: &'static str,
        url: &str,
        path: &str,
        body: &str,
        limit: Duration,
    ) -> Result<R, Failure> {
        let request = self
            .agent
            .post(format!("{url}{path}"))
            .content_type("application/json")
            .config()
            .timeout_global(Some(limit))
            .build();
        let malformed = |reason: String| Failure::Lasting(self.malformed(reason));
        let passing = |error: ureq::Error| match error {
            ureq::Error::BodyExceedsLimit(_) => {
                malformed(format!("its answer has more than {MOST_ANSWER} bytes"))
            }
            error if tls::is_refusal(&error) => Failure::Untrusted(error.to_string()),
            error => Failure::Passing(error.to_string()),
        };
        let mut response = request.send(body).map_err(passing)?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(MOST_ANSWER);
        let answer = body.read_to_vec().map_err(passing)?;
        if status == 200 {
            return serde_json::from_slice(&answer).map_err(|error| {
                malformed(format!("the answer of {url}{path} cannot be read: {error}"))
            });
        }
        Err(self.refused(operation, url, path, status, &answer))
    }

    /// What an answer means that is no success.
    fn refused(
        &self,
        operation: &'static str,
        url: &str,
        path: &str,
        status: u16,
        answer: &[u8],
    ) -> Failure {
        let Ok(refusal) = serde_json::from_slice::<Refusal>(answer) else {
            let reason = format!(
                "{url}{path} answers with HTTP status {status}; check that it is the address for clients of an etcd, 3.4 or \
                 newer (etcds:// where it is asked over TLS)"
            );
            return match status {
                // Something in between, while the member is away.
                502..=504 => Failure::Passing(reason),
                _ => Failure::Lasting(self.malformed(reason)),
            };
        };
        let text = refusal.text();
        let has = |part: &str| text.contains(part);
        if PASSING.contains(&refusal.code()) || has("too many requests") {
            return Failure::Passing(text.to_owned());
        }
        if has("request is too large") || has("too many operations") || has("larger than max") {
            let advice =
                "etcd's operator sets how much it takes (--max-request-bytes, --max-txn-ops)";
            let reason = format!("{text}; {advice}");
            return Failure::Lasting(StoreError::Invalid { operation, reason });
        }
        let advice = if has("user name is empty") || has("auth token") || has("permission denied") {
            "; this etcd asks for a user and a password, which are not supported: let it take the ranks' machines without"
        } else if has("space exceeded") {
            "; this etcd is full: have its operator compact and defragment it, and clear its alarm"
        } else if has("lease not found") {
            GONE
        } else {
            ""
        };
        let reason = format!("{url} refuses: {text}{advice}");
        Failure::Lasting(self.unreachable(operation, reason))
    }
}

/// What it means that the keys of a living job are not there.
pub(super) const GONE: &str = "; the keys of this job are gone from etcd: the job has ended, no process of it has \
                               reached etcd for ten minutes, or somebody has deleted them; start the job again";

#[cfg(test)]
mod tests;
