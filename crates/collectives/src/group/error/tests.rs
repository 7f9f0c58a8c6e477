//! The texts of errors: who waited for whom, where, for how long, and what to check.

use super::*;

#[test]
fn a_mismatch_lists_what_each_rank_called() {
    let call = |rank, call: &str| RankCall {
        rank,
        call: Some(call.to_owned()),
    };
    let error = CollectiveError::Mismatch {
        rank: 1,
        sequence: 5,
        step: 34,
        waited: Duration::from_millis(250),
        calls: vec![call(0, "all_reduce(f32[10], sum)"), call(1, "barrier")],
    };
    assert_eq!(
        error.to_string(),
        "rank 1 at step 34, after 0.250 s: collective 5 does not match: \
         rank 0 called all_reduce(f32[10], sum); rank 1 called barrier; \
         check that every rank runs the same program, configuration and data"
    );
}

#[test]
fn a_wrong_message_says_who_waited_and_what_to_check() {
    let error = CollectiveError::WrongMessage {
        rank: 1,
        peer: 0,
        operation: "recv(f32, from 0, tag 4)".to_owned(),
        found: "f64[3]".to_owned(),
        step: 34,
        waited: Duration::from_millis(250),
    };
    assert_eq!(
        error.to_string(),
        "rank 1 waited 0.250 s for rank 0 in recv(f32, from 0, tag 4) (step 34), but the \
         message of rank 0 is f64[3]; check that both ranks name the same type and tag in \
         this send and receive, and send in the order in which they receive"
    );
}

#[test]
fn an_abort_says_where_this_rank_was_and_whose_output_to_read() {
    let error = CollectiveError::Aborted {
        rank: 0,
        by: 1,
        reason: "loss is NaN".to_owned(),
        operation: "barrier".to_owned(),
        sequence: 5,
        step: 34,
        waited: Duration::from_millis(250),
    };
    assert_eq!(
        error.to_string(),
        "rank 1 aborted the group (rank 0 was in barrier, collective 5, step 34, for \
         0.250 s): loss is NaN; look at the output of rank 1 for what led to it"
    );
}

#[test]
fn an_invalid_call_says_what_to_check() {
    let error = CollectiveError::Invalid {
        rank: 0,
        operation: "broadcast(i32[1], root 2)".to_owned(),
        reason: "rank 2 does not exist in a group of 2".to_owned(),
    };
    assert_eq!(
        error.to_string(),
        "invalid call broadcast(i32[1], root 2) on rank 0: rank 2 does not exist in a group \
         of 2; check the arguments of this call: nothing was sent"
    );
}

#[test]
fn a_broken_protocol_says_when_and_what_to_check() {
    let error = CollectiveError::Protocol {
        rank: 0,
        peer: 1,
        operation: "barrier".to_owned(),
        step: 34,
        waited: Duration::from_millis(250),
        reason: "its data are u8[3] instead of f32[2]".to_owned(),
    };
    assert_eq!(
        error.to_string(),
        "rank 1 broke the protocol in barrier on rank 0 (step 34, after 0.250 s): its data \
         are u8[3] instead of f32[2]; check that every rank runs the same build of Everburn \
         and that nothing else uses its store and ports"
    );
}

#[test]
fn an_incomplete_world_names_the_usual_causes() {
    let error = CollectiveError::Incomplete {
        rank: 0,
        world_size: 3,
        missing: vec![2],
        ranks_per_machine: Some(2),
        local_address: "10.0.0.1:4711".into(),
        waited: Duration::from_millis(250),
        reason: "rank 2 has not published an address".into(),
    };
    assert_eq!(
        error.to_string(),
        "rank 0 of 3 waited 0.250 s for rank 2 of machine 1 to connect: rank 2 has not published an \
         address; check that every rank was started with the same world size and that \
         10.0.0.1:4711 can be reached from the other machines; or two processes were \
         started as the same rank"
    );
}

#[test]
fn equal_calls_are_named_together() {
    let calls = [(0, Some("a")), (1, Some("b")), (2, Some("a")), (3, None)];
    let calls = calls.map(|(rank, call)| RankCall {
        rank,
        call: call.map(str::to_owned),
    });
    assert_eq!(
        describe_calls(&calls),
        "ranks 0, 2 called a; rank 1 called b; rank 3 called nothing in time"
    );
}
