//! What passes between ranks.

use std::collections::HashSet;

use everburn_schedules::{Action, Carried, Costs, Message, Schedule, ScheduleKind};

fn all_actions(schedule: &Schedule) -> impl Iterator<Item = Action> {
    (0..schedule.ranks()).flat_map(|rank| schedule.actions(rank).iter().copied())
}

#[test]
fn what_is_sent_is_received_once() {
    for kind in ScheduleKind::ALL {
        let chunks = if kind.has_chunks() { 3 } else { 1 };
        for (ranks, micro_batches) in [(1, 2), (2, 5), (4, 8)] {
            let schedule = Schedule::new(kind, ranks, micro_batches, chunks).unwrap();
            let sent: Vec<Message> = all_actions(&schedule)
                .filter_map(|a| schedule.sends(a))
                .collect();
            let received: HashSet<Message> = all_actions(&schedule)
                .filter_map(|a| schedule.receives(a))
                .collect();
            let cuts = if ranks == 1 { 0 } else { ranks * chunks - 1 };
            assert_eq!(sent.len(), 2 * cuts * micro_batches);
            assert_eq!(sent.iter().copied().collect::<HashSet<_>>(), received);
            assert!(
                sent.iter()
                    .all(|message| message.from_rank != message.to_rank)
            );
        }
    }
}

#[test]
fn tags_differ_between_the_same_two_ranks() {
    // With two ranks, both activations and gradients go both ways.
    let schedule = Schedule::new(ScheduleKind::Interleaved1F1B, 2, 6, 3).unwrap();
    let sent: Vec<Message> = all_actions(&schedule)
        .filter_map(|a| schedule.sends(a))
        .collect();
    let tags: HashSet<_> = sent
        .iter()
        .map(|m| (m.from_rank, m.to_rank, m.tag()))
        .collect();
    assert_eq!(tags.len(), sent.len());
}

#[test]
fn gradients_go_back_the_way_that_activations_came() {
    let schedule = Schedule::new(ScheduleKind::Interleaved1F1B, 2, 2, 2).unwrap();
    // From the last rank's first chunk to the first rank's second chunk.
    let (micro_batch, stage) = (1, 1);
    let activation = schedule
        .sends(Action::Forward { micro_batch, stage })
        .unwrap();
    assert_eq!(
        (
            activation.from_rank,
            activation.to_rank,
            activation.to_stage
        ),
        (1, 0, 2)
    );
    let gradient = schedule
        .receives(Action::Backward { micro_batch, stage })
        .unwrap();
    assert_eq!(gradient.carried, Carried::Gradient);
    assert_eq!(
        (gradient.from_rank, gradient.to_rank, gradient.from_stage),
        (0, 1, 2)
    );
}

#[test]
fn the_ends_and_one_rank_alone_exchange_nothing() {
    let schedule = Schedule::new(ScheduleKind::ZeroBubbleH1, 2, 1, 1).unwrap();
    let micro_batch = 0;
    let forward = |stage| Action::Forward { micro_batch, stage };
    let backward = |stage| Action::BackwardInput { micro_batch, stage };
    let stage = 1;
    assert_eq!(schedule.receives(forward(0)), None);
    assert_eq!(schedule.sends(backward(0)), None);
    assert_eq!(schedule.sends(forward(1)), None);
    assert_eq!(schedule.receives(backward(1)), None);
    let weights = Action::BackwardWeight { micro_batch, stage };
    assert_eq!(schedule.sends(weights), None);

    let alone = Schedule::new(ScheduleKind::Interleaved1F1B, 1, 4, 3).unwrap();
    assert!(all_actions(&alone).all(|a| alone.sends(a).is_none() && alone.receives(a).is_none()));
}

#[test]
fn bytes_are_counted_at_the_rank_that_sends_them() {
    let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 3, 4, 1).unwrap();
    let mut costs = Costs::equal(3);
    for (stage, bytes) in [100, 10, 1].into_iter().enumerate() {
        costs.stages[stage].output_bytes = bytes;
    }
    // The first rank sends its output, the second one its output and the first one's gradient, the
    // last one the second one's gradient.
    let sent: Vec<u64> = (0..3)
        .map(|rank| schedule.sent_bytes(rank, &costs))
        .collect();
    assert_eq!(sent, [4 * 100, 4 * (10 + 100), 4 * 10]);
    assert_eq!(schedule.messages_from(1).count(), 8);
}
