//! Groups of some of the ranks.

use everburn_collectives::group::{CollectiveError, ReduceOp};
use everburn_tests::assert_matches;

use crate::harness::{
    Meeting, WIRES, assert_mismatch, assert_verdict, error, on_all_ranks, on_every_wire, options,
};

#[test]
fn disjoint_groups_work_at_once_and_nest() {
    on_every_wire(7, |group| {
        let rank = group.rank();
        let even = group.subgroup(&[0, 2, 4, 6]).unwrap();
        let odd = group.subgroup(&[5, 3, 1]).unwrap();
        assert_eq!(even.is_some(), rank.is_multiple_of(2));
        assert_eq!(odd.is_some(), !rank.is_multiple_of(2));
        let half = even.or(odd).unwrap();
        assert_eq!(half.job_ranks()[half.rank()], rank);

        // Collectives of both halves and of the whole group are under way together.
        let sum = half.all_reduce(vec![rank as i64], ReduceOp::Sum);
        let all = group.all_reduce(vec![rank as i64], ReduceOp::Sum);
        let gathered = half.all_gather(vec![rank as u8]);
        let expected: Vec<Vec<u8>> = half
            .job_ranks()
            .iter()
            .map(|rank| vec![*rank as u8])
            .collect();
        assert_eq!(gathered.wait().unwrap(), expected);
        assert_eq!(all.wait().unwrap(), [21]);
        assert_eq!(sum.wait().unwrap(), [if rank % 2 == 0 { 12 } else { 9 }]);

        // The ranks of a nested group are those of its parent.
        let nested = half.subgroup(&[2, 0]).unwrap();
        assert_eq!(nested.is_some(), [0, 2].contains(&half.rank()));
        if let Some(nested) = nested {
            let (own, other) = (nested.rank(), 1 - nested.rank());
            let send = nested.send(vec![rank as i32], other, 0);
            let received = nested.recv::<i32>(other, 0).wait().unwrap();
            send.wait().unwrap();
            assert_eq!(received, [nested.job_ranks()[other] as i32]);
            assert_eq!(nested.broadcast(vec![own as f32], 1).wait().unwrap(), [1.0]);
            nested.destroy().unwrap();
        }
        half.destroy().unwrap();
        // The parent outlives its sub-groups.
        group.barrier().wait().unwrap();
        group.destroy().unwrap();
    });
}

#[test]
fn a_subgroup_outlives_its_parent() {
    on_every_wire(3, |group| {
        let pair = group.subgroup(&[0, 2]).unwrap();
        assert_eq!(pair.is_some(), group.rank() != 1);
        group.destroy().unwrap();
        if let Some(pair) = pair {
            assert_eq!(
                pair.all_reduce(vec![1f32], ReduceOp::Sum).wait().unwrap(),
                [2.0]
            );
            pair.destroy().unwrap();
        }
    });
}

#[test]
fn lists_that_differ_are_named_on_every_rank() {
    assert_mismatch(
        3,
        |group| {
            let list: &[usize] = if group.rank() == 2 { &[0, 2] } else { &[0, 1] };
            group.subgroup(list)
        },
        "collective 0 does not match: ranks 0, 1 called subgroup([0, 1]); \
         rank 2 called subgroup([0, 2])",
    );
}

#[test]
fn mismatches_in_a_subgroup_name_job_ranks_and_spare_the_parent() {
    on_every_wire(3, |group| {
        let pair = group.subgroup(&[1, 2]).unwrap();
        assert_eq!(pair.is_some(), group.rank() != 0);
        if let Some(pair) = pair {
            let length = pair.rank();
            let text = error(pair.all_reduce(vec![0f32; length], ReduceOp::Sum).wait());
            assert_verdict(
                &text.to_string(),
                group.rank(),
                "collective 0 does not match: rank 1 called all_reduce(f32[0], sum); \
                 rank 2 called all_reduce(f32[1], sum)",
            );
        }
        group.barrier().wait().unwrap();
    });
}

#[test]
fn a_subgroup_fails_with_its_parent() {
    for wire in WIRES {
        let meeting = Meeting::of(3);
        let errors = on_all_ranks(wire, 3, options(), |group| {
            let pair = group.subgroup(&[0, 1]).unwrap();
            meeting.wait();
            let error = match &pair {
                Some(pair) => error(pair.barrier().wait().and(pair.recv::<u8>(0, 0).wait())),
                None => {
                    group.abort("no more disk space");
                    error(group.barrier().wait())
                }
            };
            meeting.wait();
            error
        });
        for error in errors {
            assert_matches!(&error, CollectiveError::Aborted { by: 2, reason, .. }
                if reason == "no more disk space");
        }
    }
}
