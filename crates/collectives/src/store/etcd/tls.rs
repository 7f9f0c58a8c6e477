//! TLS to etcd: whom this process trusts, and who it is there.

#[cfg(feature = "tls")]
use rustls::crypto::ring;
#[cfg(feature = "tls")]
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
#[cfg(feature = "tls")]
use rustls::sign::CertifiedKey;
use ureq::config::ConfigBuilder;
#[cfg(feature = "tls")]
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;

/// The names of the files in an address, those of `etcdctl`'s flags.
const FILES: [&str; 3] = ["cacert", "cert", "key"];

/// The PEM files that an address names after its `?`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TlsFiles {
    /// The authorities of the members' certificates; `None`: Mozilla's list.
    cacert: Option<String>,
    /// The client certificate of this process, and its key.
    own: Option<(String, String)>,
}

impl TlsFiles {
    /// Reads `cacert=FILE&cert=FILE&key=FILE`.
    pub(super) fn of_query(query: &str) -> Result<Self, String> {
        let mut found: [Option<&str>; FILES.len()] = [None; FILES.len()];
        for part in query.split('&') {
            let (name, file) = part.split_once('=').unwrap_or((part, ""));
            let known = FILES.iter().position(|known| *known == name);
            let known = known.ok_or_else(|| format!("`{name}` is none of cacert, cert and key"))?;
            if file.is_empty() {
                return Err(format!("`{name}` names no file"));
            }
            if found[known].replace(file).is_some() {
                return Err(format!("`{name}` is there twice"));
            }
        }
        let [cacert, cert, key] = found.map(|file| file.map(str::to_owned));
        let own = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("cert and key go together".to_owned()),
        };
        Ok(Self { cacert, own })
    }

    /// What follows the `?` of an address, if anything does.
    pub(super) fn query(&self) -> Option<String> {
        let own = self.own.as_ref();
        let files = [
            self.cacert.as_ref(),
            own.map(|(cert, _)| cert),
            own.map(|(_, key)| key),
        ];
        let named = FILES.iter().zip(files);
        let parts = named.filter_map(|(name, file)| Some(format!("{name}={}", file?)));
        let parts: Vec<String> = parts.collect();
        (!parts.is_empty()).then(|| parts.join("&"))
    }
}

/// Has requests trust and show what `files` have.
#[cfg(feature = "tls")]
pub(super) fn with_files(
    config: ConfigBuilder<AgentScope>,
    files: &TlsFiles,
) -> Result<ConfigBuilder<AgentScope>, String> {
    let mut tls = TlsConfig::builder();
    if let Some(file) = &files.cacert {
        tls = tls.root_certs(RootCerts::new_with_certs(&certificates(file)?));
    }
    if let Some((cert, key)) = &files.own {
        let chain = certificates(cert)?;
        let pem = read(key)?;
        let private = PrivateKey::from_pem(&pem)
            .map_err(|_| format!("`{key}` has no private key in PEM form, or an encrypted one"))?;
        check_pair(&chain, &private)
            .map_err(|reason| format!("`{cert}` and `{key}` do not go together: {reason}"))?;
        tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, private)));
    }
    Ok(config.tls_config(tls.build()))
}

/// Refuses the files of an address: there is no TLS in this program.
#[cfg(not(feature = "tls"))]
pub(super) fn with_files(
    _: ConfigBuilder<AgentScope>,
    _: &TlsFiles,
) -> Result<ConfigBuilder<AgentScope>, String> {
    Err(
        "this program was built without TLS: give everburn-collectives the feature `tls`, or take etcd://"
            .to_owned(),
    )
}

/// Whether one side does not accept the other's certificate, or its TLS.
#[cfg(feature = "tls")]
pub(super) fn is_refusal(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
        ureq::Error::Io(error) => error
            .get_ref()
            .is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>),
        _ => false,
    }
}

/// Without TLS nobody refuses a certificate.
#[cfg(not(feature = "tls"))]
pub(super) fn is_refusal(_: &ureq::Error) -> bool {
    false
}

#[cfg(feature = "tls")]
fn read(file: &str) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("`{file}` cannot be read: {error}"))
}

/// The certificates in `file`, at least one.
#[cfg(feature = "tls")]
fn certificates(file: &str) -> Result<Vec<Certificate<'static>>, String> {
    let pem = read(file)?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        let item = item.map_err(|error| format!("`{file}` is not in PEM form: {error}"))?;
        if let PemItem::Certificate(certificate) = item {
            certificates.push(certificate);
        }
    }
    match certificates.is_empty() {
        true => Err(format!("`{file}` has no certificate in PEM form")),
        false => Ok(certificates),
    }
}

/// Refuses a key that is not that of the first certificate, with which `ureq` would panic.
#[cfg(feature = "tls")]
fn check_pair(chain: &[Certificate<'static>], key: &PrivateKey<'static>) -> Result<(), String> {
    let chain = chain.iter();
    let chain = chain.map(|certificate| CertificateDer::from(certificate.der().to_vec()));
    let key = PrivateKeyDer::try_from(key.der().to_vec())?;
    CertifiedKey::from_der(chain.collect(), key, &ring::default_provider())
        .map(drop)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_once_and_a_certificate_with_its_key() {
        for query in [
            "cacert=/a/ca.pem",
            "cert=c.pem&key=k.pem",
            "cacert=a&cert=b&key=c",
        ] {
            let files = TlsFiles::of_query(query).unwrap();
            assert_eq!(files.query().as_deref(), Some(query));
        }
        assert_eq!(TlsFiles::default().query(), None);
        for (wrong, part) in [
            ("ca=x", "`ca` is none of cacert, cert and key"),
            ("", "`` is none of"),
            ("cacert", "`cacert` names no file"),
            ("cacert=", "`cacert` names no file"),
            ("key=a&key=b&cert=c", "`key` is there twice"),
            ("cert=a", "cert and key go together"),
        ] {
            let reason = TlsFiles::of_query(wrong).unwrap_err();
            assert!(reason.contains(part), "{reason}");
        }
    }
}
