use std::os::unix::ffi::OsStrExt;

use everburn_tests::AssertContains;

use super::*;

fn two_machines(rendezvous: &str) -> LaunchConfig {
    LaunchConfig {
        nodes: 2,
        node_rank: 1,
        rendezvous: Some(rendezvous.into()),
        ..LaunchConfig::new("sh", 2, "logs")
    }
}

#[test]
fn an_address_is_split_at_its_last_colon() {
    let parts = |text| two_machines(text).rendezvous_parts();
    assert_eq!(parts("node0:29500").unwrap(), Some(("node0".into(), 29500)));
    assert_eq!(parts("[::1]:29500").unwrap(), Some(("::1".into(), 29500)));
    for wrong in "node0 node0: :29500 node0:x ::1:29500 node0:0".split(' ') {
        assert!(parts(wrong).is_err(), "{wrong} must be refused");
    }
}

#[test]
fn what_can_never_work_is_refused_with_what_to_do() {
    let message = |config: LaunchConfig| config.validate().unwrap_err().to_string();
    assert!(message(LaunchConfig::new("sh", 0, "logs")).contains("`LaunchConfig::ranks = 1`"));
    let missing = message(LaunchConfig::new("no-such-program-anywhere", 1, "logs"));
    assert!(missing.contains("no-such-program-anywhere"), "{missing}");
    let alone = LaunchConfig {
        rendezvous: None,
        ..two_machines("x:1")
    };
    assert!(message(alone).contains("`LaunchConfig::rendezvous = HOST:PORT`"));
    let outside = LaunchConfig {
        node_rank: 2,
        ..two_machines("x:1")
    };
    assert!(message(outside).contains("0 to 1"));
}

#[test]
fn a_store_in_etcd_is_for_elastic_jobs_and_takes_the_place_of_machine_0s() {
    let etcd = "etcd://a:2379,b:2379".parse().unwrap();
    let elastic = LaunchConfig {
        elastic: Some(ElasticLaunch::new(2, 4)),
        ..two_machines("node0:29500")
    };
    let warning = elastic.single_point().unwrap();
    warning.assert_contains(["machine 0", "node0:29500", "LaunchConfig::store = etcd://"]);
    assert_eq!(two_machines("node0:29500").single_point(), None);
    let both = LaunchConfig {
        store: Some(etcd),
        ..elastic
    };
    let message = both.validate().unwrap_err().to_string();
    assert!(message.contains("leave one of them out"), "{message}");
    let in_etcd = LaunchConfig {
        rendezvous: None,
        ..both
    };
    in_etcd.validate().unwrap();
    assert_eq!(in_etcd.single_point(), None);
    let rigid = LaunchConfig {
        elastic: None,
        ..in_etcd
    };
    let message = rigid.validate().unwrap_err().to_string();
    assert!(
        message.contains("add `LaunchConfig::elastic = MIN:MAX`"),
        "{message}"
    );
}

#[test]
fn a_job_of_one_machine_has_a_secret_and_several_machines_need_one() {
    let config = LaunchConfig::new("sh", 2, "logs");
    let drawn = config.secret(None).unwrap();
    assert_eq!(drawn.reveal().len(), 64);
    assert_ne!(drawn, config.secret(Some("".as_ref())).unwrap());
    let inherited = config.secret(Some(" of this machine!\n".as_ref())).unwrap();
    assert_eq!(inherited.reveal(), "of this machine!");
    let given = LaunchConfig {
        job_token: Some("given by the caller".parse().unwrap()),
        ..two_machines("x:1")
    };
    let secret = given.secret(Some("of this machine!".as_ref())).unwrap();
    assert_eq!(secret.reveal(), "given by the caller");
    let none = two_machines("x:1").secret(None).unwrap_err().to_string();
    none.assert_contains(["openssl rand -hex 32", "EVERBURN_JOB_TOKEN", "2 machines"]);
    let short = config
        .secret(Some("hunter2".as_ref()))
        .unwrap_err()
        .to_string();
    assert!(short.contains("7 bytes") && short.contains("16"), "{short}");
    assert!(!short.contains("hunter2"), "{short}");
    // No other secret is drawn in its place.
    let unreadable = OsStr::from_bytes(b"a secret with \xFF in it");
    let unreadable = config.secret(Some(unreadable)).unwrap_err().to_string();
    assert!(unreadable.contains("not UTF-8"), "{unreadable}");
    assert!(!format!("{given:?}").contains("given by"), "{given:?}");
}

#[test]
fn elastic_bounds_that_make_no_sense_are_refused_with_what_to_write() {
    let message = |min, max| {
        let config = LaunchConfig {
            elastic: Some(ElasticLaunch::new(min, max)),
            ..two_machines("x:1")
        };
        config.validate().unwrap_err().to_string()
    };
    assert!(message(0, 4).contains("`LaunchConfig::elastic = 1:4`"));
    assert!(message(4, 2).contains("`LaunchConfig::elastic = 2:4`"));
    let text = message(2, 3);
    text.assert_contains(["`LaunchConfig::elastic = 2:4`", "3"]);
}

#[test]
fn threads_are_asked_for_inherited_or_shared() {
    let config = LaunchConfig::new("sh", 1_000_000, "logs");
    assert_eq!(config.resolved_threads(None), 1);
    assert_eq!(config.resolved_threads(Some("3")), 3);
    let asked = LaunchConfig {
        threads_per_rank: Some(2),
        ..config
    };
    assert_eq!(asked.resolved_threads(Some("3")), 2);
}
