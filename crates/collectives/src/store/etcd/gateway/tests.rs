//! Tests of `gateway`.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};

use super::*;

fn judged(status: u16, answer: &str) -> (bool, String) {
    let address = "etcd://a:1".parse().unwrap();
    let gateway = Gateway::new(&address, WaitListener::default()).unwrap();
    match gateway.refused("get", "http://a:1", "/v3/kv/txn", status, answer.as_bytes()) {
        Failure::Passing(text) => (true, text),
        Failure::Untrusted(text) => (false, text),
        Failure::Lasting(error) => (false, error.to_string()),
    }
}

#[test]
fn a_process_that_does_not_reach_etcd_says_so_before_its_time_is_over() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let nobody = taken.local_addr().unwrap();
    drop(taken);
    let address = format!("etcd://{nobody}/job").parse().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&heard);
    let on_wait = WaitListener::new(move |awaited| told.lock().unwrap().push(awaited.text.clone()));
    let gateway = Gateway::new(&address, on_wait).unwrap();
    let notice = Some(WaitNotice::first_after(Duration::ZERO));
    let deadline = Deadline::within(Duration::from_millis(200));
    let error = gateway
        .call_with::<Value>(notice, CONNECT, "/v3/kv/range", "{}", deadline)
        .unwrap_err();
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 1, "{heard:?}");
    let said = heard[0].to_lowercase();
    for part in [
        format!("the store at etcd://{nobody}/job is not reached yet (http://{nobody}: "),
        "connection refused".into(),
        "it is tried for 0 s more: check that most of etcd's members run".into(),
    ] {
        assert!(said.contains(&part), "{part} not in {said}");
    }
    assert!(error.to_string().contains(&format!("etcd://{nobody}/job")));
}

#[test]
fn another_member_is_asked_only_where_that_may_help() {
    let said = |text: &str, code: u8| format!(r#"{{"error":"etcdserver: {text}","code":{code}}}"#);
    let message = r#"{"message":"etcdserver: request timed out","code":4}"#;
    let of_stream =
        r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#;
    for (status, answer, passing, part) in [
        (503, said("no leader", 14), true, "no leader"),
        (504, message.into(), true, "timed out"),
        (503, of_stream.into(), true, "no leader"),
        (429, said("too many requests", 8), true, "too many"),
        (400, said("request is too large", 3), false, "max-request"),
        (400, said("user name is empty", 3), false, "password"),
        (404, said("requested lease not found", 5), false, "start"),
        (404, "404 page not found".into(), false, "3.4 or newer"),
        (502, "<html>".into(), true, "502"),
    ] {
        let (found, text) = judged(status, &answer);
        assert_eq!(found, passing, "{answer}");
        assert!(text.contains(part), "{text}");
    }
}
