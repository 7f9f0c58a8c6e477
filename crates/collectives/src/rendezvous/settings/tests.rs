use everburn_tests::{AssertContains, assert_matches, lookup};

use super::*;

fn gather(
    init_method: &str,
    request: &RendezvousRequest,
    variables: &[(&str, &str)],
) -> Result<Settings, RendezvousError> {
    Settings::gather(init_method, request, Variables::of(&lookup(variables)))
}

fn message(init_method: &str, request: &RendezvousRequest, vars: &[(&str, &str)]) -> String {
    gather(init_method, request, vars).unwrap_err().to_string()
}

const MINE: &str = "the secret of this job";
const THEIRS: &str = "the secret of another";

const WHOLE: [(&str, &str); 5] = [
    ("EVERBURN_JOB_TOKEN", THEIRS),
    ("RANK", "1"),
    ("WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node0"),
    ("MASTER_PORT", "29500"),
];

fn ranks(rank: usize, world_size: usize) -> RendezvousRequest {
    RendezvousRequest {
        rank: Some(rank),
        world_size: Some(world_size),
        ..RendezvousRequest::default()
    }
}

#[test]
fn a_world_beyond_all_measure_is_refused() {
    let text = message("tcp://127.0.0.1:1", &ranks(1, usize::MAX), &[]);
    text.assert_contains(["18446744073709551615", "at most 65536"]);
}

#[test]
fn all_missing_variables_are_named_with_what_sets_them() {
    let text = message("env://", &RendezvousRequest::default(), &[]);
    text.assert_contains([
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "torchrun",
    ]);
    let text = message("env://", &ranks(0, 2), &[("MASTER_PORT", "1")]);
    assert!(text.contains("MASTER_ADDR"), "{text}");
    assert!(
        !text.contains("RANK (") && !text.contains("MASTER_PORT"),
        "{text}"
    );
}

#[test]
fn malformed_values_are_named_with_their_text() {
    for (name, value) in [
        ("RANK", "one"),
        ("WORLD_SIZE", "-2"),
        ("MASTER_PORT", "99999"),
        ("LOCAL_RANK", "0x1"),
    ] {
        let mut variables = vec![(name, value)];
        variables.extend(WHOLE);
        let text = message("env://", &RendezvousRequest::default(), &variables);
        assert!(text.contains(name) && text.contains(value), "{text}");
    }
}

#[test]
fn ranks_are_on_machines_where_each_has_as_many() {
    let per_machine = |rank: usize, variables: &[(&str, &str)]| {
        let mut all = variables.to_vec();
        all.push(("EVERBURN_JOB_TOKEN", MINE));
        let settings = gather("tcp://node0:1", &ranks(rank, 4), &all).unwrap();
        settings.ranks_per_machine
    };
    let here = |size, rank| [("LOCAL_WORLD_SIZE", size), ("LOCAL_RANK", rank)];
    assert_eq!(per_machine(3, &here("2", "1")), Some(2));
    assert_eq!(per_machine(3, &here("1", "0")), Some(1));
    // One machine; machines of different sizes; ranks numbered across machines; not known.
    for variables in [
        here("4", "3"),
        here("3", "2"),
        here("2", "0"),
        here("0", "0"),
    ] {
        assert_eq!(per_machine(3, &variables), None, "{variables:?}");
    }
    assert_eq!(per_machine(3, &[("LOCAL_WORLD_SIZE", "2")]), None);
    // By variables of another launcher.
    let request = RendezvousRequest {
        local: Some((1, 2)),
        ..ranks(3, 4)
    };
    let settings = gather("tcp://node0:1", &request, &[("EVERBURN_JOB_TOKEN", MINE)]).unwrap();
    assert_eq!(settings.ranks_per_machine, Some(2));
    assert_eq!(settings.local_rank, Some(1));
}

#[test]
fn the_request_wins_over_the_environment() {
    let request = RendezvousRequest {
        job_token: Some(MINE.parse().unwrap()),
        ..ranks(3, 4)
    };
    let mut variables = vec![("LOCAL_RANK", "2"), ("EVERBURN_JOB_TOKEN", THEIRS)];
    variables.extend(WHOLE);
    let settings = gather("env://", &request, &variables).unwrap();
    assert_eq!((settings.rank, settings.world_size), (3, 4));
    assert_eq!(settings.local_rank, Some(2));
    assert_eq!(settings.job_token, Some(MINE.parse().unwrap()));
    let settings = gather("env://", &RendezvousRequest::default(), &variables).unwrap();
    assert_eq!((settings.rank, settings.world_size), (1, 2));
    assert_eq!(settings.job_token, Some(THEIRS.parse().unwrap()));
}

#[test]
fn ranks_that_meet_over_tcp_need_a_secret_or_ask_for_an_open_store() {
    let alone = gather("tcp://127.0.0.1:0", &ranks(0, 1), &[]).unwrap();
    assert_matches!(alone.access(), Ok(StoreAccess::Token(_)));
    let text = message("tcp://127.0.0.1:1", &ranks(0, 2), &[]);
    text.assert_contains(["EVERBURN_JOB_TOKEN", "EVERBURN_OPEN_STORE=1", "openssl"]);
    for on in ["1", "true", "True"] {
        let open = [("EVERBURN_OPEN_STORE", on)];
        let open = gather("tcp://127.0.0.1:1", &ranks(0, 2), &open).unwrap();
        assert_eq!(open.access().unwrap(), StoreAccess::Open);
    }
    gather("file:///tmp/x", &ranks(0, 2), &[]).unwrap();
    let text = message(
        "tcp://127.0.0.1:1",
        &ranks(0, 2),
        &[("EVERBURN_JOB_TOKEN", "short")],
    );
    assert!(
        text.contains("5 bytes") && !text.contains("short;"),
        "{text}"
    );
    let text = message(
        "tcp://127.0.0.1:1",
        &ranks(0, 2),
        &[("EVERBURN_OPEN_STORE", "yes")],
    );
    assert!(text.contains("EVERBURN_OPEN_STORE is `yes`"), "{text}");
}

#[test]
fn an_elastic_launcher_serves_the_store_and_counts_attempts() {
    let mut variables = WHOLE.to_vec();
    variables.push(("TORCHELASTIC_USE_AGENT_STORE", "True"));
    variables.push(("TORCHELASTIC_RESTART_COUNT", "2"));
    let settings = gather("env://", &RendezvousRequest::default(), &variables).unwrap();
    assert_matches!(settings.address, StoreAddress::Tcp { hosted: true, .. });
    assert_eq!(settings.prefix.as_deref(), Some("/worker/attempt_2"));
}

#[test]
fn whether_a_launcher_serves_the_store_is_a_switch() {
    let by = |value| {
        let agent = [("TORCHELASTIC_USE_AGENT_STORE", value)];
        let variables = [&agent[..], &WHOLE].concat();
        gather("env://", &RendezvousRequest::default(), &variables)
    };
    let hosted = |value| match by(value).unwrap().address {
        StoreAddress::Tcp { hosted, .. } => hosted,
        address => panic!("{address:?}"),
    };
    assert!(["True", "true", "1"].into_iter().all(hosted));
    assert!(!["False", "0", ""].into_iter().any(hosted));
    let text = by("yes").unwrap_err().to_string();
    text.assert_contains([
        "TORCHELASTIC_USE_AGENT_STORE is `yes`",
        "0, 1, false or true",
    ]);
}

#[test]
fn ranks_and_worlds_must_fit() {
    let text = message("tcp://127.0.0.1:1", &ranks(2, 2), &[]);
    text.assert_contains(["rank 2", "from 0 to 1"]);
    let text = message("tcp://127.0.0.1:1", &ranks(0, 0), &[]);
    assert!(text.contains("world size is 0"), "{text}");
    let text = message("tcp://127.0.0.1:1", &RendezvousRequest::default(), &[]);
    assert!(text.contains("the rank, the world size"), "{text}");
    let text = message("tcp://127.0.0.1:0", &ranks(0, 2), &[]);
    assert!(text.contains("port"), "{text}");
}

#[test]
fn init_methods_that_are_none_say_what_is_allowed() {
    for method in ["mpi://", "env", "tcp://nohost", "file://relative/path"] {
        let text = message(method, &ranks(0, 1), &[]);
        assert!(text.contains(method), "{text}");
    }
    let text = message("mpi://", &ranks(0, 1), &[]);
    assert!(text.contains("tcp://host:port"), "{text}");
}

#[test]
fn a_store_in_etcd_is_named_by_init_method_or_variable_and_needs_a_secret() {
    let token = ("EVERBURN_JOB_TOKEN", MINE);
    let address = "etcd://a:2379,b:2379/digits";
    let by_method = gather(address, &ranks(0, 2), &[token]).unwrap();
    let variables = [("EVERBURN_STORE", address), ("RANK", "0"), token];
    let by_variable = gather("env://", &ranks(0, 2), &variables).unwrap();
    assert_eq!(
        by_method.address,
        StoreAddress::Etcd(address.parse().unwrap())
    );
    assert_eq!(by_variable.address, by_method.address);
    // The store may be there for others, whoever is in this job.
    let text = message(address, &ranks(0, 1), &[]);
    assert!(text.contains("EVERBURN_JOB_TOKEN"), "{text}");
    let text = message("etcd://a", &ranks(0, 2), &[token]);
    assert!(text.contains("`a` is not host:port"), "{text}");
    let text = message("env://", &RendezvousRequest::default(), &variables[..2]);
    assert!(
        text.contains("WORLD_SIZE") && !text.contains("MASTER_ADDR"),
        "{text}"
    );
}
