//! The texts of errors: who waited for whom, where, for how long, and what to check.

use super::*;

#[test]
fn each_text_says_where_this_rank_was_and_what_to_check() {
    let (sequence, step, waited) = (5, 34, Duration::from_millis(250));
    let operation = "barrier".to_owned();
    let errors = [
        (
            CollectiveError::WrongMessage {
                rank: 1,
                peer: 0,
                operation: "recv(f32, from 0, tag 4)".to_owned(),
                found: "f64[3]".to_owned(),
                step,
                waited,
            },
            "rank 1 waited 0.250 s for rank 0 in recv(f32, from 0, tag 4) (step 34), but the \
             message of rank 0 is f64[3]; check that both ranks name the same type and tag in \
             this send and receive, and send in the order in which they receive",
        ),
        (
            CollectiveError::Aborted {
                rank: 0,
                by: 1,
                reason: "loss is NaN".to_owned(),
                operation: operation.clone(),
                sequence,
                step,
                waited,
            },
            "rank 1 aborted the group (rank 0 was in barrier, collective 5, step 34, for \
             0.250 s): loss is NaN; look at the output of rank 1 for what led to it",
        ),
        (
            CollectiveError::Invalid {
                rank: 0,
                operation: "broadcast(i32[1], root 2)".to_owned(),
                reason: "rank 2 does not exist in a group of 2".to_owned(),
            },
            "invalid call broadcast(i32[1], root 2) on rank 0: rank 2 does not exist in a group \
             of 2; check the arguments of this call: nothing was sent",
        ),
        (
            CollectiveError::Protocol {
                rank: 0,
                peer: 1,
                operation,
                step,
                waited,
                reason: "its data are u8[3] instead of f32[2]".to_owned(),
            },
            "rank 1 broke the protocol in barrier on rank 0 (step 34, after 0.250 s): its data \
             are u8[3] instead of f32[2]; check that every rank runs the same build of Everburn \
             and that nothing else uses its store and ports",
        ),
        (
            CollectiveError::Incomplete {
                rank: 0,
                world_size: 3,
                missing: vec![2],
                ranks_per_machine: Some(2),
                local_address: "10.0.0.1:4711".into(),
                waited,
                reason: "rank 2 has not published an address".into(),
            },
            "rank 0 of 3 waited 0.250 s for rank 2 of machine 1 to connect: rank 2 has not published an \
             address; check that every rank was started with the same world size and that \
             10.0.0.1:4711 can be reached from the other machines; or two processes were \
             started as the same rank",
        ),
    ];
    for (error, text) in errors {
        assert_eq!(error.to_string(), text);
    }
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
