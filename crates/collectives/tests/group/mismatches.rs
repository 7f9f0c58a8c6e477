//! Ranks that call different things get one error, in the same words on all.

use everburn_collectives::group::{Algorithm, CollectiveError, GroupOptions, ReduceOp};
use everburn_tests::{AssertContains, assert_matches};

use crate::harness::{
    WIRES, assert_mismatch, assert_verdict, error, in_parallel, on_all_ranks, on_every_wire,
    options, over_threads_with,
};

#[test]
fn one_of_many() {
    assert_mismatch(
        37,
        |group| {
            let length = if group.rank() == 20 { 11 } else { 10 };
            group.all_reduce(vec![0f32; length], ReduceOp::Sum).wait()
        },
        "collective 0 does not match: ranks 0-19, 21-36 called all_reduce(f32[10], sum); \
         rank 20 called all_reduce(f32[11], sum)",
    );
}

#[test]
fn types() {
    assert_mismatch(
        2,
        |group| match group.rank() {
            0 => group
                .all_reduce(vec![0f32; 3], ReduceOp::Sum)
                .wait()
                .map(drop),
            _ => group
                .all_reduce(vec![0f64; 3], ReduceOp::Sum)
                .wait()
                .map(drop),
        },
        "collective 0 does not match: rank 0 called all_reduce(f32[3], sum); \
         rank 1 called all_reduce(f64[3], sum)",
    );
}

#[test]
fn reductions() {
    assert_mismatch(
        2,
        |group| {
            let op = [ReduceOp::Sum, ReduceOp::Max][group.rank()];
            group.reduce(vec![0i64; 3], op, 1).wait()
        },
        "collective 0 does not match: rank 0 called reduce(i64[3], sum, root 1); \
         rank 1 called reduce(i64[3], max, root 1)",
    );
}

#[test]
fn roots() {
    assert_mismatch(
        4,
        |group| group.broadcast(vec![1u8], group.rank() / 2).wait(),
        "collective 0 does not match: ranks 0, 1 called broadcast(u8[1], root 0); \
         ranks 2, 3 called broadcast(u8[1], root 1)",
    );
}

#[test]
fn orders() {
    for wire in WIRES {
        let errors = on_all_ranks(wire, 2, options(), |group| {
            let sum = || group.all_reduce(vec![0f32; 10], ReduceOp::Sum);
            for _ in 0..5 {
                sum().wait().unwrap();
            }
            // The second call is under way when the first fails.
            let (first, second) = if group.rank() == 0 {
                let (sum, barrier) = (sum(), group.barrier());
                (error(sum.wait()), error(barrier.wait()))
            } else {
                let (barrier, sum) = (group.barrier(), sum());
                (error(barrier.wait()), error(sum.wait()))
            };
            assert_eq!(second.root_cause().to_string(), first.to_string());
            first.to_string()
        });
        let expected = "collective 5 does not match: rank 0 called all_reduce(f32[10], sum); \
                        rank 1 called barrier";
        for (rank, text) in errors.iter().enumerate() {
            assert_verdict(text, rank, expected);
        }
    }
}

#[test]
fn equal_lengths_are_demanded_by_all_gather() {
    assert_mismatch(
        2,
        |group| group.all_gather(vec![0f32; group.rank()]).wait(),
        "collective 0 does not match: rank 0 called all_gather(f32[0]); \
         rank 1 called all_gather(f32[1])",
    );
}

#[test]
fn options_that_differ() {
    let flat = GroupOptions {
        algorithm: Some(Algorithm::Flat),
        ..options()
    };
    let direct = GroupOptions {
        algorithm: Some(Algorithm::Direct),
        ..flat
    };
    let groups = over_threads_with(&[flat, direct]);
    let texts = in_parallel(groups, |group| {
        error(group.all_reduce(vec![0u8], ReduceOp::Sum).wait()).to_string()
    });
    for (rank, text) in texts.iter().enumerate() {
        assert_verdict(
            text,
            rank,
            "collective 0 does not match: rank 0 called all_reduce(u8[1], sum, flat algorithm); \
             rank 1 called all_reduce(u8[1], sum, direct algorithm)",
        );
    }
}

#[test]
fn arguments_that_can_never_succeed_leave_the_group_usable() {
    on_every_wire(2, |group| {
        let invalid = |result: CollectiveError| {
            assert_matches!(result, CollectiveError::Invalid { .. });
            result.to_string()
        };
        let text = invalid(error(group.all_reduce(vec![1i32], ReduceOp::Mean).wait()));
        assert!(text.contains("mean does not exist for i32"), "{text}");
        let text = invalid(error(group.broadcast(vec![1i32], 2).wait()));
        text.assert_contains(["rank 2 does not exist in a group of 2"]);
        let text = invalid(error(
            group.reduce_scatter(vec![1i32; 3], ReduceOp::Sum).wait(),
        ));
        assert!(text.contains("not divisible by the 2 ranks"), "{text}");
        let text = invalid(error(group.all_to_all(vec![vec![1i32]; 3]).wait()));
        assert!(text.contains("3 lists were given for 2 ranks"), "{text}");
        let root = group.rank() == 0;
        let lists = (!root).then(|| vec![vec![1f32]; 2]);
        let text = invalid(error(group.scatter(lists, 0).wait()));
        assert!(text.contains("root"), "{text}");
        invalid(error(group.send(vec![1u8], 5, 0).wait()));
        invalid(error(group.recv::<u8>(5, 0).wait()));
        invalid(error(group.subgroup(&[]).map(drop)));
        invalid(error(group.subgroup(&[0, 0]).map(drop)));
        invalid(error(group.subgroup(&[0, 2]).map(drop)));
        assert_eq!(
            group.all_reduce(vec![1i32], ReduceOp::Sum).wait().unwrap(),
            [2]
        );
    });
}

#[test]
fn messages_above_the_limit_are_refused_by_the_sender() {
    let options = GroupOptions {
        max_message_bytes: 8,
        ..options()
    };
    for wire in WIRES {
        on_all_ranks(wire, 2, options, |group| {
            let text = error(group.all_gather(vec![0f32; 3]).wait()).to_string();
            text.assert_contains(["12 bytes are more than the limit of 8"]);
            group.all_gather(vec![0f32; 2]).wait().unwrap();
        });
    }
}
