//! `etcd://host:2379,host:2379/job`, or `etcds://` over TLS: where etcd is, and which of its jobs is meant.

use std::fmt;
use std::str::FromStr;

use super::tls::TlsFiles;
use crate::store::{StoreError, join_address, split_address};

/// What an address of etcd begins with.
const SCHEME: &str = "etcd://";

/// The same where its members are asked over TLS.
const TLS_SCHEME: &str = "etcds://";

/// More members than an etcd has: five are many.
const MOST_ENDPOINTS: usize = 32;

const LONGEST_NAME: usize = 128;

/// Where etcd is, and the name of a job in it.
///
/// `etcds://` connects over TLS. PEM files may follow: `?cacert=FILE`, the authority of the members' certificates (default:
/// Mozilla's list), and `cert=FILE&key=FILE`, the client certificate of this process.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::store::EtcdAddress;
///
/// let address: EtcdAddress = "etcd://10.0.0.1:2379,10.0.0.2:2379/digits".parse()?;
/// assert_eq!(address.endpoints()[1], ("10.0.0.2".to_owned(), 2379));
/// assert_eq!(address.job(), Some("digits"));
/// assert!("etcd://10.0.0.1".parse::<EtcdAddress>().is_err()); // no port
///
/// let over_tls: EtcdAddress = "etcds://a:2379/digits?cacert=ca.pem&cert=rank.pem&key=rank.key".parse()?;
/// assert_eq!(over_tls.job(), Some("digits"));
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    endpoints: Vec<(String, u16)>,
    job: Option<String>,
    /// What TLS takes, where members are asked over it; `None`: plain HTTP.
    pub(super) tls: Option<TlsFiles>,
}

impl EtcdAddress {
    /// Whether `text` means an etcd, rightly written or not.
    #[must_use]
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with(SCHEME) || text.starts_with(TLS_SCHEME)
    }

    /// Host and port of each member that may be asked; at least one.
    #[must_use]
    pub fn endpoints(&self) -> &[(String, u16)] {
        &self.endpoints
    }

    /// The name of the job. `None`: it is made from the job's secret.
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        self.job.as_deref()
    }

    pub(super) fn urls(&self) -> Vec<String> {
        let scheme = match self.tls {
            Some(_) => "https",
            None => "http",
        };
        let urls = self.endpoints.iter();
        urls.map(|(host, port)| format!("{scheme}://{}", join_address(host, *port)))
            .collect()
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints = self.endpoints.iter();
        let endpoints = endpoints.map(|(host, port)| join_address(host, *port));
        let endpoints: Vec<String> = endpoints.collect();
        let scheme = match self.tls {
            Some(_) => TLS_SCHEME,
            None => SCHEME,
        };
        write!(f, "{scheme}{}", endpoints.join(","))?;
        if let Some(job) = &self.job {
            write!(f, "/{job}")?;
        }
        match self.tls.as_ref().and_then(TlsFiles::query) {
            Some(query) => write!(f, "?{query}"),
            None => Ok(()),
        }
    }
}

impl FromStr for EtcdAddress {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let refused = |reason: String| StoreError::Invalid {
            operation: "connect",
            reason: format!(
                "`{text}` is no address of etcd: {reason}; write etcd://host:2379,host:2379/job-name"
            ),
        };
        let plain = text.strip_prefix(SCHEME);
        let rest = plain.or_else(|| text.strip_prefix(TLS_SCHEME));
        let rest = rest.ok_or_else(|| refused(format!("it does not begin with {SCHEME}")))?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        if rest.contains("://") {
            let reason = "its members are host:port alone: leave http:// out, and for https:// write \
                          etcds://host:2379,host:2379";
            return Err(refused(reason.into()));
        }
        if rest.contains('@') {
            let reason =
                "user and password are not supported: let etcd take the ranks' machines without";
            // Not shown: it has a password.
            return Err(StoreError::Invalid {
                operation: "connect",
                reason: format!("the address of etcd has an `@`: {reason}"),
            });
        }
        let tls = match (plain, query) {
            (Some(_), Some(_)) => {
                return Err(refused("files of TLS go with etcds://".into()));
            }
            (Some(_), None) => None,
            (None, None) => Some(TlsFiles::default()),
            (None, Some(query)) => Some(TlsFiles::of_query(query).map_err(&refused)?),
        };
        let (members, job) = match rest.split_once('/') {
            Some((members, "")) => (members, None),
            Some((members, job)) => (members, Some(job)),
            None => (rest, None),
        };
        if let Some(job) = job {
            check_name(job).map_err(&refused)?;
        }
        let members: Vec<&str> = members.split(',').map(str::trim).collect();
        if members.len() > MOST_ENDPOINTS {
            let count = members.len();
            return Err(refused(format!(
                "it has {count} members, and at most {MOST_ENDPOINTS} are taken"
            )));
        }
        let endpoint = |member: &&str| match split_address(member) {
            Ok((host, port)) if port > 0 => Ok((host.to_owned(), port)),
            _ => Err(refused(format!("`{member}` is not host:port"))),
        };
        let endpoints = members.iter().map(endpoint);
        Ok(Self {
            endpoints: endpoints.collect::<Result<_, _>>()?,
            job: job.map(str::to_owned),
            tls,
        })
    }
}

/// No slash: the keys of one job must not be below those of another.
fn check_name(job: &str) -> Result<(), String> {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if job.len() > LONGEST_NAME {
        return Err(format!(
            "the job's name has {} bytes, and at most {LONGEST_NAME} are taken",
            job.len()
        ));
    }
    match job.bytes().all(usual) {
        true => Ok(()),
        false => Err(format!(
            "the job's name `{job}` has other characters than letters, digits and `.`, `_`, `-`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_members_and_perhaps_a_name() {
        let parse = |text: &str| text.parse::<EtcdAddress>().unwrap();
        let one = parse("etcd://[::1]:2379/");
        assert_eq!(
            (one.endpoints(), one.job()),
            (&[("::1".into(), 2379)][..], None)
        );
        assert_eq!(one.urls(), ["http://[::1]:2379"]);
        let three = "etcd://a:1,b:2,c:3/run_7.x";
        assert_eq!(parse(three).to_string(), three);
        assert_eq!(parse(&one.to_string()), one);
        for over_tls in [
            "etcds://a:1",
            "etcds://a:1,b:2/run?cacert=/etc/ca@1.pem&cert=c&key=k",
        ] {
            let address = parse(over_tls);
            assert_eq!(address.to_string(), over_tls);
            assert_eq!(address.urls()[0], "https://a:1");
        }
        assert!(EtcdAddress::is_meant_by("etcds://a") && !EtcdAddress::is_meant_by("etc://a"));
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said() {
        for (wrong, part) in [
            ("etcd://a", "`a` is not host:port"),
            ("etcd://a:0", "`a:0`"),
            ("etcd://", "host:2379"),
            ("etcd://a:1,", "`` is not host:port"),
            ("etcd://http://a:1", "leave http:// out"),
            ("etcd://https://a:1", "etcds://"),
            ("etcd://a:1?cacert=x", "go with etcds://"),
            ("etcds://a:1?ca=x", "`ca` is none of"),
            ("etcd://a:1/x/y", "`x/y` has other characters"),
            ("tcp://a:1", "does not begin with etcd://"),
        ] {
            let error = wrong.parse::<EtcdAddress>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let many = format!("etcd://{}", vec!["a:1"; 33].join(","));
        let error = many.parse::<EtcdAddress>().unwrap_err().to_string();
        assert!(error.contains("33 members"), "{error}");
        let long = format!("etcd://a:1/{}", "x".repeat(129));
        assert!(long.parse::<EtcdAddress>().is_err());
        let secret = "etcd://root:pass@a:1".parse::<EtcdAddress>().unwrap_err();
        assert!(!secret.to_string().contains("pass@"), "{secret}");
    }
}
