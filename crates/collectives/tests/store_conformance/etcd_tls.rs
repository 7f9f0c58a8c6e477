//! The store in an etcd that serves clients over TLS alone.

use std::time::Duration;

use everburn_collectives::store::{
    EtcdAddress, EtcdStore, Store, StoreAccess, StoreError, StoreOptions,
};
use everburn_tests::{Etcd, assert_matches};

use crate::LONG;
use crate::etcd::{TOKEN, with_token};

/// Joins a job in the etcd at `endpoints`; `files` follow the address.
fn connect(endpoints: &str, files: &str, timeout: Duration) -> Result<EtcdStore, StoreError> {
    let address: EtcdAddress = format!("etcds://{endpoints}/job{files}").parse()?;
    let options = StoreOptions {
        timeout,
        ..with_token(TOKEN)
    };
    EtcdStore::connect(&address, &options)
}

#[test]
fn etcd_is_asked_over_tls_by_who_has_a_certificate_of_its_authority() {
    let Some(etcd) = Etcd::start_with_tls_or_skip("a store in etcd over TLS") else {
        return;
    };
    let endpoints = etcd.endpoints();
    let file = |name: &str| etcd.file(name).display().to_string();
    let ca = format!("cacert={}", file("ca.pem"));
    let own = format!("cert={}&key={}", file("rank.pem"), file("rank.key"));
    let store = connect(&endpoints, &format!("?{ca}&{own}"), LONG).unwrap();
    store.set("k", b"value").unwrap();
    let other = connect(&endpoints, &format!("?{own}&{ca}"), LONG).unwrap();
    assert_eq!(other.get("k").unwrap(), b"value");

    // Members of an authority that this process does not trust: each is asked once.
    let wrong = format!("?cacert={}&{own}", file("other.pem"));
    for files in [wrong, format!("?{own}"), String::new()] {
        let error = connect(&endpoints, &files, LONG).unwrap_err();
        assert_matches!(error, StoreError::Unauthenticated { .. });
        assert!(error.to_string().contains("`cacert`"), "{error}");
    }
    // Members that do not trust this process: they close the connection, with a word or without one.
    let error = connect(&endpoints, &format!("?{ca}"), Duration::from_secs(2)).unwrap_err();
    assert!(error.to_string().contains("`cert` and `key`"), "{error}");
    // Without TLS.
    let plain: EtcdAddress = format!("etcd://{endpoints}/job").parse().unwrap();
    let options = StoreOptions {
        timeout: Duration::from_secs(1),
        ..StoreOptions::new(StoreAccess::Open)
    };
    let error = EtcdStore::connect(&plain, &options).unwrap_err();
    assert!(error.to_string().contains("etcds://"), "{error}");
}

#[test]
fn what_is_wrong_with_the_files_of_tls_is_said_before_anybody_is_asked() {
    let Some(etcd) = Etcd::start_with_tls_or_skip("certificates that are wrong") else {
        return;
    };
    let file = |name: &str| etcd.file(name).display().to_string();
    let (pem, key) = (file("rank.pem"), file("rank.key"));
    for (files, reason) in [
        (
            "?cacert=/not/there.pem".to_owned(),
            "`/not/there.pem` cannot be read",
        ),
        (format!("?cacert={key}"), "has no certificate in PEM form"),
        (
            format!("?cert={pem}&key={pem}"),
            "has no private key in PEM form",
        ),
        (
            format!("?cert={pem}&key={}", file("member.key")),
            "do not go together",
        ),
    ] {
        let error = connect("127.0.0.1:1", &files, LONG).unwrap_err();
        assert_matches!(error, StoreError::Invalid { .. });
        assert!(error.to_string().contains(reason), "{error}");
    }
}
