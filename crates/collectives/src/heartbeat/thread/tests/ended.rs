//! Stalls that end by themselves.

use super::*;
use crate::heartbeat::thread::waits::waited;
use crate::heartbeat::{EndedStall, StallCause};

/// The heartbeat of rank 1, which has said that these stalls have ended.
struct Watching {
    store: Arc<HashStore>,
    heartbeat: Arc<Heartbeat>,
    groups: Vec<ProcessGroup>,
    ended: Arc<Mutex<Vec<EndedStall>>>,
}

impl Watching {
    fn among(ranks: usize) -> Self {
        let (store, mut heartbeat) = heartbeat(ranks);
        heartbeat.options.timeout = Some(Duration::from_secs(30));
        let groups = ProcessGroup::over_threads(ranks, GroupOptions::default());
        heartbeat.follow(Followed::of(Some(&groups[1]), 1, ranks));
        let ended: Arc<Mutex<Vec<EndedStall>>> = Arc::default();
        let said = Arc::clone(&ended);
        *lock(&heartbeat.on_stall_ended) = Some(Arc::new(move |stall: &EndedStall| {
            lock(&said).push(stall.clone());
        }));
        Self {
            store,
            heartbeat: Arc::new(heartbeat),
            groups,
            ended,
        }
    }

    /// The next beat of `member` comes, after its step 5 and a barrier.
    fn beats(&self, member: usize, number: u64) {
        self.beats_as(1, member, number);
    }

    /// The same of the process `life` of the member.
    fn beats_as(&self, life: u64, member: usize, number: u64) {
        let beat = Beat {
            life,
            number,
            step: 5,
            records: vec![barrier(Vec::new())],
            ..Beat::default()
        };
        let key = beat_key(member);
        self.store.set(&key, &beat.encode()).unwrap();
        self.heartbeat.poll().unwrap();
    }

    /// Rank 1 warns of `member`, of which no beat has come for 12 s.
    fn warns_of(&self, member: usize) {
        self.beats(member, 1);
        lock(&self.heartbeat.state).peers[member].moved -= Duration::from_secs(12);
        self.heartbeat.check_timeouts(runtime::now());
    }

    /// The stalls that have ended since this was asked last.
    fn ended(&self) -> Vec<EndedStall> {
        self.heartbeat.end_stalls();
        std::mem::take(&mut *lock(&self.ended))
    }

    /// How long the own group's operation has waited, once it is known to wait, or not to wait any more.
    fn waits(&self, waits: bool) -> Option<Duration> {
        let begun = runtime::now();
        loop {
            let found = waited(&self.groups[1].flight_record());
            if found.is_some() == waits {
                return found;
            }
            let is_late = runtime::elapsed(begun) > Duration::from_secs(60);
            assert!(!is_late, "{:?}", self.groups[1].flight_record());
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_silent_rank_that_beats_again_is_said_once_to_continue() {
    let watching = Watching::among(3);
    watching.warns_of(2);
    assert_eq!(watching.ended(), []);
    watching.beats(2, 1);
    assert_eq!(watching.ended(), [], "no new beat has come");
    watching.beats(2, 2);
    let ended = watching.ended();
    let [stall] = &*ended else {
        panic!("one stall: {ended:?}");
    };
    assert!(stall.lasted >= Duration::from_secs(12), "{stall:?}");
    let expected = EndedStall {
        rank: 2,
        member: 2,
        step: 5,
        operation: Some("barrier()".to_owned()),
        is_awaited: false,
        lasted: stall.lasted,
        cause: StallCause::Silent,
        pid: None,
        host: None,
    };
    assert_eq!(*stall, expected);
    let text = stall.to_string();
    let end = " s at step 5, in or after barrier(), and continues: it sent no heartbeats";
    assert!(text.starts_with("rank 2 stalled for "), "{text}");
    assert!(text.ends_with(end), "{text}");
    watching.beats(2, 3);
    assert_eq!(watching.ended(), []);
}

#[test]
fn who_learns_that_a_stall_has_ended_may_set_another_listener() {
    let watching = Watching::among(3);
    let heartbeat = Arc::downgrade(&watching.heartbeat);
    let said = Arc::clone(&watching.ended);
    *lock(&watching.heartbeat.on_stall_ended) = Some(Arc::new(move |stall: &EndedStall| {
        let heartbeat = heartbeat.upgrade().unwrap();
        // A lock that is held would be waited for without an end.
        let mut listener = heartbeat.on_stall_ended.try_lock().unwrap();
        *listener = None;
        lock(&said).push(stall.clone());
    }));
    watching.warns_of(2);
    watching.beats(2, 2);
    assert_eq!(watching.ended().len(), 1);
    assert!(lock(&watching.heartbeat.on_stall_ended).is_none());
}

#[test]
fn a_silent_rank_whose_place_another_process_takes_has_not_continued() {
    let watching = Watching::among(3);
    watching.warns_of(2);
    watching.beats_as(2, 2, 1);
    assert_eq!(watching.ended(), []);
    watching.beats(2, 2);
    assert_eq!(watching.ended(), [], "it is forgotten");
}

#[test]
fn a_rank_that_others_waited_for_is_said_to_continue_once_their_wait_is_over() {
    let watching = Watching::among(2);
    let Watching {
        heartbeat, groups, ..
    } = &watching;
    for group in groups {
        group.set_step(7);
    }
    let own = groups[1].barrier();
    let waited = watching.waits(true).unwrap();
    watching.beats(0, 1);
    let followed = Followed::of(Some(&groups[1]), 1, 2);
    let beat = heartbeat.beat_of(Some(&followed));
    let said = heartbeat.describe_wait(&followed, beat, waited, Duration::from_secs(288));
    let (report, text) = said.unwrap();
    assert!(text.contains(" for rank 0 in barrier, step 7: "), "{text}");
    heartbeat.begin_wait(&report, waited);
    // It is said once more, after a minute.
    heartbeat.begin_wait(&report, waited);
    watching.beats(0, 2);
    assert_eq!(watching.ended(), [], "it is waited for still");
    groups[0].barrier().wait().unwrap();
    own.wait().unwrap();
    watching.waits(false);
    let ended = watching.ended();
    let [stall] = &*ended else {
        panic!("one stall: {ended:?}");
    };
    let found = (stall.rank, stall.step, stall.operation.as_deref());
    assert_eq!(found, (0, 7, Some("barrier")));
    assert_eq!(
        (stall.cause, stall.is_awaited),
        (StallCause::Busy, true),
        "{stall}"
    );
    let text = stall.to_string();
    text.assert_contains([
        "rank 0 stalled for ",
        ", while others waited for it in barrier, and continues: its heartbeats arrived",
    ]);
}

#[test]
fn a_stall_after_which_the_group_has_failed_has_not_ended_by_itself() {
    let watching = Watching::among(3);
    watching.warns_of(2);
    watching.groups[1].abort("rank 2 was given up");
    assert!(watching.groups[1].failure().is_some());
    watching.beats(2, 2);
    assert_eq!(watching.ended(), []);
}

#[test]
fn a_silent_rank_that_is_waited_for_too_is_one_stall() {
    let watching = Watching::among(2);
    let groups = &watching.groups;
    groups.iter().for_each(|group| group.set_step(7));
    let own = groups[1].barrier();
    watching.waits(true);
    watching.warns_of(0);
    groups[0].barrier().wait().unwrap();
    own.wait().unwrap();
    watching.waits(false);
    assert_eq!(watching.ended(), [], "it has not beaten yet");
    watching.beats(0, 2);
    let ended = watching.ended();
    let [stall] = &*ended else {
        panic!("one stall: {ended:?}");
    };
    let found = (stall.step, stall.is_awaited, stall.cause);
    assert_eq!(found, (7, true, StallCause::Silent));
}

#[test]
fn of_a_large_group_rank_0_says_that_another_continues() {
    let size = WATCH_ALL + 1;
    let says = |rank: usize, reads_all: bool| -> Vec<usize> {
        let store = Arc::new(HashStore::new());
        let heartbeat = Heartbeat::new(store, rank, size, HeartbeatOptions::default());
        heartbeat.follow(Followed::of(None, rank, size));
        lock(&heartbeat.state).reads_all = reads_all;
        let others = (0..size).filter(|other| *other != rank);
        others.filter(|it| heartbeat.says_end_of(*it)).collect()
    };
    let all: Vec<usize> = (1..size).collect();
    assert_eq!(says(0, true), all);
    for rank in [1, 5, size - 1] {
        assert_eq!(says(rank, false), [0], "by rank {rank}");
    }
}

#[test]
fn of_a_large_group_the_rank_that_has_warned_of_rank_0_says_that_it_continues() {
    // Rank 1 reads the beats of rank 0, which counts as 32 above it, and no other rank that does warns first.
    let watching = Watching::among(WATCH_ALL + 1);
    watching.warns_of(0);
    assert_eq!(watching.ended(), []);
    watching.beats(0, 2);
    let ended = watching.ended();
    let [stall] = &*ended else {
        panic!("one stall: {ended:?}");
    };
    assert_eq!((stall.rank, stall.cause), (0, StallCause::Silent));
}
