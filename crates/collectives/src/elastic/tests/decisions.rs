//! What follows from what the store shows, without any store.

use super::*;
use crate::elastic::round_view::{RoundView, Slot};

fn member(slot: usize, incarnation: u64) -> Member {
    Member {
        slot,
        incarnation,
        committed_step: 0,
        process: 1,
        node: 0,
    }
}

fn joined(slot: usize, incarnation: u64, ended: u64) -> Slot {
    Slot {
        joined: Some(member(slot, incarnation)),
        incarnation,
        ended,
    }
}

fn absent(incarnation: u64, ended: u64) -> Slot {
    Slot {
        joined: None,
        incarnation,
        ended,
    }
}

fn group_of(members: &[(usize, u64)]) -> Generation {
    Generation {
        number: 1,
        members: members.iter().map(|&(slot, n)| member(slot, n)).collect(),
        lost: Vec::new(),
    }
}

/// Complete, broken, and the slots present.
fn verdict(slots: Vec<Slot>, newest: Option<&Generation>) -> (bool, bool, Vec<usize>) {
    let assessment = RoundView { slots }.assess(newest, None);
    let present = assessment.present.iter().map(|it| it.slot).collect();
    (assessment.complete, assessment.broken, present)
}

#[test]
fn in_the_first_round_all_slots_are_expected_but_those_that_are_down() {
    let slots = vec![joined(0, 1, 0), absent(1, 0)];
    assert_eq!(verdict(slots, None), (false, true, vec![0]));
    let slots = vec![joined(0, 1, 0), absent(1, 1)];
    assert_eq!(verdict(slots, None), (true, true, vec![0]));
    let slots = vec![joined(0, 1, 0), absent(2, 1)];
    assert_eq!(verdict(slots, None), (false, true, vec![0]), "restarted");
    let slots = vec![joined(0, 1, 0), absent(0, 0)];
    assert_eq!(
        verdict(slots, None),
        (false, true, vec![0]),
        "not started yet"
    );
}

#[test]
fn newcomers_alone_neither_complete_a_round_nor_break_a_group() {
    let group = group_of(&[(0, 1), (1, 1)]);
    let slots = vec![absent(1, 0), absent(1, 0), joined(2, 1, 0)];
    assert_eq!(verdict(slots, Some(&group)), (false, false, vec![2]));
}

#[test]
fn the_first_survivor_shows_that_the_group_is_broken_and_the_last_completes_the_round() {
    let group = group_of(&[(0, 1), (1, 1), (2, 1)]);
    let slots = vec![joined(0, 1, 0), absent(1, 0), absent(1, 1)];
    assert_eq!(verdict(slots, Some(&group)), (false, true, vec![0]));
    let slots = vec![joined(0, 1, 0), joined(1, 1, 0), absent(1, 1)];
    assert_eq!(verdict(slots, Some(&group)), (true, true, vec![0, 1]));
    // A new process in its place has not to be waited for.
    let slots = vec![joined(0, 1, 0), joined(1, 1, 0), absent(2, 1)];
    assert_eq!(verdict(slots, Some(&group)), (true, true, vec![0, 1]));
}

#[test]
fn where_nobody_survives_all_that_were_started_anew_are_expected() {
    let group = group_of(&[(0, 1), (1, 1)]);
    let slots = vec![joined(0, 2, 1), absent(2, 1), absent(1, 1)];
    assert_eq!(verdict(slots, Some(&group)), (false, true, vec![0]));
    let slots = vec![joined(0, 2, 1), joined(1, 2, 1), absent(1, 1)];
    assert_eq!(verdict(slots, Some(&group)), (true, true, vec![0, 1]));
}

#[test]
fn who_joined_and_ended_is_not_there() {
    let slots = vec![joined(0, 1, 0), joined(1, 1, 1)];
    assert_eq!(verdict(slots, None), (true, true, vec![0]));
}

#[test]
fn processes_that_have_joined_are_complete_once_no_other_is_on_its_way() {
    let group = Generation {
        lost: vec![member(2, 1), member(3, 1)],
        ..group_of(&[(0, 1), (1, 1)])
    };
    let pending = |slots: [Slot; 4]| {
        let slots = slots.to_vec();
        RoundView { slots }.pending(&group)
    };
    let stays = || absent(1, 0);
    assert_eq!(pending([stays(), stays(), stays(), absent(2, 1)]), None);
    let ended = joined(3, 2, 2);
    assert_eq!(pending([stays(), stays(), stays(), ended]), None);
    // A lost process may be stopped, and its launcher dead.
    let come = pending([stays(), stays(), absent(1, 0), joined(3, 2, 1)]);
    assert_eq!(come, Some(PendingMembers::Complete));
    let come = pending([stays(), stays(), absent(2, 1), joined(3, 2, 1)]);
    assert_eq!(come, Some(PendingMembers::Incomplete));
    let come = pending([stays(), stays(), joined(2, 2, 1), joined(3, 2, 1)]);
    assert_eq!(come, Some(PendingMembers::Complete));
    // A member waits.
    let come = pending([joined(0, 1, 0), stays(), absent(2, 1), joined(3, 2, 1)]);
    assert_eq!(come, Some(PendingMembers::Complete));
}

#[test]
fn a_process_that_was_lost_with_its_launcher_is_not_on_its_way_however_long_ago() {
    let next = |before: &Generation, members: &[(usize, u64)]| {
        let next = group_of(members);
        Generation {
            lost: before.lost_before(&next.members),
            ..next
        }
    };
    let lost = |group: &Generation| {
        let lost = group.lost.iter();
        lost.map(|it| (it.slot, it.incarnation)).collect::<Vec<_>>()
    };
    let second = next(&group_of(&[(0, 1), (1, 1), (2, 1)]), &[(0, 1)]);
    let third = next(&second, &[(0, 1)]);
    assert_eq!(lost(&third), [(1, 1), (2, 1)]);
    // The end of the first process of slot 1 is not recorded.
    let slots = vec![absent(1, 0), absent(1, 0), joined(2, 2, 1)];
    let pending = RoundView { slots }.pending(&third);
    assert_eq!(pending, Some(PendingMembers::Complete));
    let fourth = next(&third, &[(0, 1), (2, 2)]);
    assert_eq!(lost(&fourth), [(1, 1)]);
    let fifth = next(&fourth, &[(0, 1), (2, 3)]);
    assert_eq!(lost(&fifth), [(2, 2), (1, 1)]);
    assert_eq!(lost(&next(&fifth, &[(0, 1)])), [(2, 3), (1, 1)]);
}
