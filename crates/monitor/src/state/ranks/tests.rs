//! Tests of `ranks`.

use everburn_record::{Live, Phase};

use super::*;
use crate::update::Update;

fn rank(rank: usize, silent_seconds: Option<f64>) -> LiveRank {
    LiveRank {
        rank,
        silent_seconds,
        ..LiveRank::default()
    }
}

fn training(ranks: Vec<LiveRank>) -> Live {
    Live {
        phase: Phase::Training,
        ranks,
        ..Live::default()
    }
}

fn line(step: u64, at: u64, work: &[(usize, f64)]) -> Update {
    let ranks = work.iter().map(|(rank, work)| RankStep {
        rank: *rank,
        seconds: 1.0,
        waited: 1.0 - work,
        ..RankStep::default()
    });
    Update::Ranks(RankLine {
        step,
        unix_time_ms: Some(at),
        ranks: ranks.collect(),
    })
}

fn statuses(state: &RunState) -> Vec<RankStatus> {
    state.ranks().iter().map(|rank| rank.status).collect()
}

#[test]
fn who_works_longer_than_the_others_is_marked() {
    let mut state = RunState::default();
    state.take(&line(1, 5, &[(0, 0.5), (1, 0.9), (2, 0.5)]), 5);
    let (ok, slow) = (RankStatus::Working, RankStatus::Straggling);
    assert_eq!(statuses(&state), [ok, slow, ok]);
    let mut two = RunState::default();
    two.take(&line(1, 5, &[(0, 0.5), (1, 0.9)]), 5);
    assert_eq!(statuses(&two), [ok, slow]);
}

#[test]
fn a_rank_that_the_others_wait_for_in_their_newest_steps_is_named_on_the_first_page() {
    let after = |steps: u64, work: &[(usize, f64)]| {
        let mut state = RunState::default();
        for step in 1..=steps {
            state.take(&line(step, 5, work), 5);
        }
        state
    };
    let said = |steps: u64, work: &[(usize, f64)]| after(steps, work).news(true);
    let unequal = [(0, 0.5), (1, 0.5), (3, 0.9)];
    let expected = "rank 3 is slow: the others wait 40 % of the time for it";
    assert_eq!(said(8, &unequal).as_deref(), Some(expected));
    assert_eq!(said(7, &unequal), None);
    assert_eq!(said(8, &[(0, 0.5), (1, 0.5), (3, 0.6)]), None);
    let expected = "rank 1 is slow: the other waits 40 % of the time for it";
    assert_eq!(said(8, &[(0, 0.5), (1, 0.9)]).as_deref(), Some(expected));
    // It was slow once.
    let mut state = after(8, &unequal);
    for step in 9..=24 {
        state.take(&line(step, 5, &[(0, 0.5), (1, 0.5), (3, 0.5)]), 5);
    }
    assert_eq!(state.news(false), None);
    // What is worse comes first, and of a run that is over there is none.
    let mut state = after(8, &unequal);
    let live = |silent_seconds| Update::Live(training(vec![rank(1, silent_seconds)]));
    state.take(&live(Some(4.0)), 5);
    assert_eq!(
        state.news(false).as_deref(),
        Some("2 of 3 ranks, silent: 1")
    );
    state.take(&live(None), 5);
    assert!(
        state
            .news(false)
            .is_some_and(|news| news.contains("rank 3 is slow"))
    );
    state.take(&Update::Running(false), 5);
    assert_eq!(state.news(false), None);
}

#[test]
fn nobody_is_slow_who_waits_for_a_rank_that_is_stopped() {
    let mut state = RunState::default();
    let (ok, slow) = (RankStatus::Working, RankStatus::Straggling);
    state.take(&line(1, 5, &[(0, 0.9), (1, 0.5), (2, 0.5)]), 5);
    let live = |members: &[usize], silent_seconds: Option<f64>| {
        let ranks = (0..3).map(|it| rank(it, silent_seconds.filter(|_| it == 1)));
        Update::Live(Live {
            members: members.to_vec(),
            ..training(ranks.collect())
        })
    };
    state.take(&live(&[0, 1, 2], None), 5);
    assert_eq!(statuses(&state), [slow, ok, ok]);
    state.take(&live(&[0, 1, 2], Some(4.0)), 5);
    assert_eq!(statuses(&state), [ok, RankStatus::Silent, ok]);
    // Nobody waits for a rank that the others continue without.
    state.take(&live(&[0, 2], Some(4.0)), 5);
    assert_eq!(statuses(&state)[0], slow);
}

#[test]
fn a_rank_is_lost_until_it_makes_steps_again() {
    let mut state = RunState::default();
    state.take(&line(1, 5, &[(0, 0.5), (1, 0.5)]), 5);
    let loss = Event {
        rank: Some(1),
        unix_time_ms: Some(10),
        ..Event::new(EventKind::Restart, "rank 1 was killed")
    };
    state.take(&Update::Event(loss), 10);
    state.take(&line(2, 9, &[(0, 0.5), (1, 0.5)]), 11);
    assert_eq!(statuses(&state), [RankStatus::Working, RankStatus::Lost]);
    state.take(&line(3, 12, &[(0, 0.5)]), 12);
    assert_eq!(state.ranks()[1].times, None);
    state.take(&line(4, 20, &[(0, 0.5), (1, 0.5)]), 20);
    assert_eq!(statuses(&state), [RankStatus::Working; 2]);
}

#[test]
fn a_rank_that_is_stopped_is_silent_and_says_how_it_continues() {
    let mut state = RunState::default();
    let on_node = |number: usize| LiveRank {
        pid: Some(40 + number as u32),
        host: Some("node7".into()),
        ..rank(number, None)
    };
    let live = Live {
        unix_time_ms: 1_000,
        steps: Some(100),
        seconds_a_step: Some(0.1),
        ..training(vec![on_node(0), on_node(1)])
    };
    // The file is as old as it says, whenever the monitor has come.
    state.take(&Update::Live(live.clone()), 18_000);
    assert_eq!(state.doing(), "no word from rank 0 for 17 s");
    assert_eq!(statuses(&state), [RankStatus::Silent, RankStatus::Working]);
    assert_eq!(state.ranks()[0].silent_seconds, Some(17.0));
    assert_eq!(state.seconds_left(), None);
    let stopped = |at, process| {
        let live = Live {
            unix_time_ms: at,
            ..live.clone()
        };
        Update::Live(live.seen_on("node7", |other| other == process))
    };
    state.take(&stopped(1_000, 40), 18_000);
    let doing = "no word from rank 0 for 17 s, stopped: kill -CONT 40";
    assert_eq!(state.doing(), doing);
    state.take(&stopped(19_000, 41), 19_000);
    assert_eq!(state.doing(), "training, rank 1 stopped: kill -CONT 41");
    // The first page, burn-train's dashboard, has it too.
    let news = state.news(true);
    assert_eq!(news.as_deref(), Some("rank 1 stopped: kill -CONT 41"));
    assert_eq!(statuses(&state), [RankStatus::Working, RankStatus::Silent]);
    assert_eq!(state.trouble().as_deref(), Some("1 of 2 ranks, silent: 1"));
    state.take(&stopped(20_000, 0), 20_000);
    assert_eq!(statuses(&state), [RankStatus::Working; 2]);
    assert_eq!(state.news(true), None);
    assert!(state.seconds_left().is_some());
    let last = Live {
        unix_time_ms: 21_000,
        ..live.clone()
    };
    state.take(&Update::Live(last.seen_on("node7", |_| true)), 21_000);
    state.tick(30_000);
    let doing = "no word from rank 0 for 9 s, ranks 0, 1 stopped: kill -CONT 40 41";
    assert_eq!(state.doing(), doing);
}

#[test]
fn silence_is_seen_before_anybody_has_judged() {
    let mut state = RunState::default();
    let live = training(vec![rank(0, None), rank(1, Some(4.0))]);
    state.take(&Update::Live(live), 5);
    assert_eq!(statuses(&state), [RankStatus::Working, RankStatus::Silent]);
}

#[test]
fn the_age_of_a_file_that_cannot_be_written_is_no_silence_of_its_ranks() {
    let silences = |unwritable: Option<&str>| {
        let mut state = RunState::default();
        let live = Live {
            unix_time_ms: 1_000,
            unwritable: unwritable.map(str::to_owned),
            ..training(vec![rank(0, None), rank(1, Some(6.0))])
        };
        state.take(&Update::Live(live), 18_000);
        let ranks = state.ranks().into_iter();
        ranks.map(|rank| rank.silent_seconds).collect::<Vec<_>>()
    };
    assert_eq!(silences(None), [Some(17.0), Some(23.0)]);
    assert_eq!(silences(Some("it is full")), [None, Some(6.0)]);
}

#[test]
fn a_step_that_only_a_heartbeat_has_named_is_known_as_such() {
    let mut state = RunState::default();
    state.take(&line(20, 5, &[(0, 0.5), (1, 0.5), (2, 0.5)]), 5);
    let at = |(number, step)| LiveRank {
        step: Some(step),
        ..rank(number, None)
    };
    let live = Live {
        step: 23,
        ..training([(0, 23), (1, 24), (2, 19)].map(at).to_vec())
    };
    state.take(&Update::Live(live), 5);
    let steps = |state: &RunState| {
        let ranks = state.ranks();
        let steps = ranks.iter().map(|it| (it.step, it.step_by_heartbeat));
        steps.collect::<Vec<_>>()
    };
    let expected = [(Some(23), false), (Some(24), true), (Some(20), false)];
    assert_eq!(steps(&state), expected);
    state.take(&Update::Report(serde_json::json!({})), 6);
    assert!(steps(&state).iter().all(|(_, by_heartbeat)| !by_heartbeat));
}
