//! The store in etcd, whose members die, are stopped and lose answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use everburn_collectives::group::{GroupOptions, ProcessGroup, ReduceOp};
use everburn_collectives::rendezvous::{RendezvousRequest, rendezvous};
use everburn_collectives::store::{
    EtcdAddress, EtcdStore, Store, StoreAccess, StoreError, StoreOptions,
};
use everburn_tests::{Etcd, assert_matches};
use rustix::process::Signal;
use serde_json::json;

use crate::LONG;

pub const TOKEN: &str = "the secret of the tests";

pub fn with_token(token: &str) -> StoreOptions {
    StoreOptions {
        timeout: LONG,
        ..StoreOptions::new(StoreAccess::Token(token.parse().unwrap()))
    }
}

fn open(endpoints: &str, job: &str) -> EtcdStore {
    let address: EtcdAddress = format!("etcd://{endpoints}/{job}").parse().unwrap();
    EtcdStore::connect(&address, &with_token(TOKEN)).unwrap()
}

/// What etcd has below `everburn/`: keys and how many of them have a lease.
fn keys_in(etcd: &Etcd) -> (usize, usize) {
    let base64 = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    let all = json!({ "key": base64("everburn/"), "range_end": base64("everburn0") });
    let found = etcd.post("/v3/kv/range", &all);
    let kvs = found["kvs"].as_array().cloned().unwrap_or_default();
    let leased = kvs.iter().filter(|kv| kv["lease"].is_string());
    (kvs.len(), leased.count())
}

#[test]
fn etcd_store_conforms() {
    let Some(etcd) = Etcd::start_or_skip("a store in etcd") else {
        return;
    };
    let endpoints = etcd.endpoints();
    // With its code, a value fits into the 1.5 MiB of a request.
    let longest = (1 << 20) + (1 << 18) - 33;
    crate::conforms_up_to(longest, &|| Arc::new(open(&endpoints, "conforms")));
    let open_job: EtcdAddress = format!("etcd://{endpoints}/open").parse().unwrap();
    let store = EtcdStore::connect(&open_job, &crate::open_options()).unwrap();
    store.set("a", b"by anyone").unwrap();
    assert_eq!(store.get("a").unwrap(), b"by anyone");
    let (keys, leased) = keys_in(&etcd);
    assert!(
        keys > 10 && keys == leased,
        "{leased} of {keys} have a lease"
    );
}

#[test]
fn jobs_do_not_meet_and_nothing_is_left_of_one_that_has_ended() {
    let Some(etcd) = Etcd::start_or_skip("jobs in etcd") else {
        return;
    };
    let endpoints = etcd.endpoints();
    let (one, other) = (open(&endpoints, "one"), open(&endpoints, "other"));
    let same = open(&endpoints, "one");
    one.set("k", b"1").unwrap();
    other.set("k", b"2").unwrap();
    assert_eq!(same.get("k").unwrap(), b"1");
    // Without a name, those with one secret meet.
    let unnamed: EtcdAddress = format!("etcd://{endpoints}").parse().unwrap();
    let by_secret = EtcdStore::connect(&unnamed, &with_token(TOKEN)).unwrap();
    by_secret.set("k", b"3").unwrap();
    let again = EtcdStore::connect(&unnamed, &with_token(TOKEN)).unwrap();
    assert_eq!(again.get("k").unwrap(), b"3");
    let elsewhere = EtcdStore::connect(&unnamed, &with_token("another secret there")).unwrap();
    assert_eq!(elsewhere.try_get("k").unwrap(), None);
    for store in [&one, &other, &by_secret, &elsewhere] {
        store.end_job().unwrap();
    }
    assert_eq!(keys_in(&etcd), (0, 0));
    for error in [
        one.set("k", b"").unwrap_err(),
        same.set("k", b"").unwrap_err(),
    ] {
        assert!(error.to_string().contains("start the job again"), "{error}");
    }
    same.end_job().unwrap();
    // The name can be used again.
    assert_eq!(open(&endpoints, "one").try_get("k").unwrap(), None);
}

#[test]
fn who_does_not_have_the_secret_neither_joins_nor_is_believed() {
    let Some(etcd) = Etcd::start_or_skip("secrets in etcd") else {
        return;
    };
    let endpoints = etcd.endpoints();
    let store = open(&endpoints, "secret");
    let address: EtcdAddress = format!("etcd://{endpoints}/secret").parse().unwrap();
    let wrong = EtcdStore::connect(&address, &with_token("a secret of strangers"));
    let none = EtcdStore::connect(&address, &StoreOptions::new(StoreAccess::Open));
    for error in [wrong.unwrap_err(), none.unwrap_err()] {
        assert_matches!(error, StoreError::Unauthenticated { .. });
        assert!(error.to_string().contains("EVERBURN_JOB_TOKEN"), "{error}");
    }
    store.set("ours", b"value").unwrap();
    let base64 = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    for (key, value) in [("forged", "value"), ("ours", "\0value")] {
        let key = base64(&format!("everburn/secret/keys/{key}"));
        etcd.post("/v3/kv/put", &json!({ "key": key, "value": base64(value) }));
    }
    for error in [
        store.get("ours").unwrap_err(),
        store.wait(&["forged"]).unwrap_err(),
        store.check(&["forged"]).unwrap_err(),
        store.add("ours", 1).unwrap_err(),
    ] {
        assert!(error.to_string().contains("this job's secret"), "{error}");
    }
    let unnamed: EtcdAddress = format!("etcd://{endpoints}").parse().unwrap();
    let error = EtcdStore::connect(&unnamed, &StoreOptions::new(StoreAccess::Open)).unwrap_err();
    assert!(error.to_string().contains("append /job-name"), "{error}");
}

#[test]
fn a_member_that_dies_or_stops_is_left_and_every_write_counts_once() {
    const THREADS: usize = 6;
    const EACH: usize = 20;
    let Some(mut etcd) = Etcd::start_or_skip("members of etcd that die") else {
        return;
    };
    let endpoints = etcd.endpoints();
    let done = AtomicUsize::new(0);
    let killed = thread::scope(|scope| {
        for thread in 0..THREADS {
            let (endpoints, done) = (&endpoints, &done);
            scope.spawn(move || {
                let store = open(endpoints, "counted");
                for _ in 0..EACH {
                    store.add(&format!("n/{}", thread % 2), 1).unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let waiter = open(&endpoints, "counted");
        let waiter = scope.spawn(move || waiter.get_within("late", LONG));
        let progress = |count| {
            let enough = || done.load(Ordering::Relaxed) >= count;
            assert!(everburn_tests::holds_within(LONG, enough));
        };
        progress(THREADS * EACH / 4);
        let leader = etcd.leader();
        etcd.kill(leader);
        progress(THREADS * EACH);
        open(&endpoints, "counted").set("late", b"here").unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), b"here");
        leader
    });
    let store = open(&endpoints, "counted");
    let each = (THREADS / 2 * EACH) as i64;
    assert_eq!(store.add("n/0", 0).unwrap(), each);
    assert_eq!(store.add("n/1", 0).unwrap(), each);
    // Two of three are needed: nobody answers while one is stopped, and all is well afterwards.
    let stopped = (0..3).find(|member| *member != killed).unwrap();
    etcd.signal(stopped, Signal::STOP);
    let error = EtcdStore::connect(
        &format!("etcd://{endpoints}/counted").parse().unwrap(),
        &StoreOptions {
            timeout: Duration::from_millis(300),
            ..with_token(TOKEN)
        },
    )
    .unwrap_err();
    assert!(error.to_string().contains("etcdctl"), "{error}");
    etcd.signal(stopped, Signal::CONT);
    assert_eq!(store.add("n/0", 1).unwrap(), each + 1);
}

#[test]
fn a_stopped_member_is_left_for_the_next_one() {
    let Some(etcd) = Etcd::start_or_skip("a member of etcd that is stopped") else {
        return;
    };
    let endpoints = etcd.endpoints();
    let store = open(&endpoints, "stopped");
    etcd.signal(etcd.leader(), Signal::STOP);
    // Whichever member the store asks first.
    for number in 1..=4 {
        assert_eq!(store.add("n", 1).unwrap(), number);
        assert_eq!(open(&endpoints, "stopped").add("n", 0).unwrap(), number);
    }
}

/// Passes requests on to etcd. Of every `lost`th answer to a transaction nothing arrives, though etcd has carried it out.
fn losing_answers(etcd: &Etcd, lost: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let port = etcd.port(0);
    let count = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            thread::spawn(move || {
                // What goes wrong here is the client's to find.
                let _ = pass_on(&connection, port, || {
                    count.fetch_add(1, Ordering::Relaxed).is_multiple_of(lost)
                });
            });
        }
    });
    address
}

fn pass_on(connection: &TcpStream, port: u16, is_lost: impl Fn() -> bool) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection);
    let mut head = String::new();
    let mut length = 0;
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {
        let line = head.lines().last().unwrap_or_default().to_ascii_lowercase();
        if let Some(number) = line.strip_prefix("content-length:") {
            length = number.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut etcd = TcpStream::connect(("127.0.0.1", port))?;
    let head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    etcd.write_all(head.as_bytes())?;
    etcd.write_all(&body)?;
    let mut answer = Vec::new();
    etcd.read_to_end(&mut answer)?;
    if head.contains("/v3/kv/txn") && is_lost() {
        return Ok(());
    }
    let mut connection = connection;
    connection.write_all(&answer)
}

#[test]
fn a_write_whose_answer_is_lost_is_not_carried_out_twice() {
    let Some(etcd) = Etcd::start_or_skip("lost answers of etcd") else {
        return;
    };
    let store = open(&losing_answers(&etcd, 2), "lost");
    for number in 1..=5 {
        assert_eq!(store.add("n", 1).unwrap(), number);
    }
    assert_eq!(store.compare_set("c", b"", b"first").unwrap(), b"first");
    assert_eq!(store.compare_set("c", b"first", b"next").unwrap(), b"next");
    assert_eq!(store.compare_set("c", b"first", b"x").unwrap(), b"next");
    store.set("s", b"set").unwrap();
    assert_eq!(store.get("s").unwrap(), b"set");
    assert!(store.delete("s").unwrap(), "by this call");
    assert!(!store.delete("s").unwrap());
    let direct = open(&etcd.endpoints(), "lost");
    assert_eq!(direct.get("n").unwrap(), b"5");
    assert_eq!(direct.num_keys().unwrap(), 2);
}

/// Joins a group of ranks that meet in etcd, and adds up their ranks.
fn sum_of_ranks(init_method: &str, rank: usize, world_size: usize) -> i64 {
    let request = RendezvousRequest {
        rank: Some(rank),
        world_size: Some(world_size),
        timeout: Some(LONG),
        job_token: Some(TOKEN.parse().unwrap()),
        ..RendezvousRequest::default()
    };
    let joined = rendezvous(init_method, request).unwrap();
    let group = ProcessGroup::connect(joined, GroupOptions::default()).unwrap();
    let sum = group.all_reduce(vec![rank as i64], ReduceOp::Sum).wait();
    let sum = sum.unwrap()[0];
    group.destroy().unwrap();
    sum
}

#[test]
fn ranks_meet_while_a_member_dies_and_may_meet_again() {
    const RANKS: usize = 4;
    let Some(mut etcd) = Etcd::start_or_skip("ranks that meet in etcd") else {
        return;
    };
    let init_method = format!("etcd://{}/meeting", etcd.endpoints());
    let all_meet = |sooner: usize, between: &mut dyn FnMut()| {
        thread::scope(|scope| {
            let method = init_method.as_str();
            let join = |rank| scope.spawn(move || sum_of_ranks(method, rank, RANKS));
            let mut ranks: Vec<_> = (0..sooner).map(join).collect();
            between();
            ranks.extend((sooner..RANKS).map(join));
            for rank in ranks {
                assert_eq!(rank.join().unwrap(), 6);
            }
        });
    };
    all_meet(0, &mut || ());
    // Of the second meeting, two have come when the member dies that the others follow.
    let watch = open(&etcd.endpoints(), "meeting");
    all_meet(2, &mut || {
        for rank in 0..2 {
            let claimed = format!("everburn/join/1/{rank}");
            watch.wait_within(&[&claimed], LONG).unwrap();
        }
        let leader = etcd.leader();
        etcd.kill(leader);
    });
}

#[test]
fn what_is_no_etcd_is_refused_and_nobody_there_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let web = thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let _ = connection.read(&mut [0; 4096]).unwrap();
        let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        connection.write_all(answer.as_bytes()).unwrap();
        // Until the client has gone.
        let _ = connection.read_to_end(&mut Vec::new());
    });
    let job: EtcdAddress = format!("etcd://{address}/job").parse().unwrap();
    let error = EtcdStore::connect(&job, &with_token(TOKEN)).unwrap_err();
    assert_matches!(error, StoreError::Protocol { .. });
    assert!(error.to_string().contains("3.4 or newer"), "{error}");
    web.join().unwrap();
    let nobody: EtcdAddress = format!("etcd://127.0.0.1:{}/job", everburn_tests::free_port())
        .parse()
        .unwrap();
    let options = StoreOptions {
        timeout: Duration::from_millis(50),
        ..with_token(TOKEN)
    };
    let error = EtcdStore::connect(&nobody, &options).unwrap_err();
    assert_matches!(error, StoreError::Unreachable { .. });
    assert!(error.to_string().contains("endpoint health"), "{error}");
}
