use everburn_collectives::group::{FlightEntry, FlightState};

use super::*;

fn read(run: &RunDirectory) -> Live {
    let text = std::fs::read_to_string(run.path().join(Live::FILE)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Rank 1 was heard of at step 4.
fn status() -> RankStatus {
    RankStatus {
        member: 1,
        alive: false,
        ended: false,
        silent_for: Some(Duration::from_secs(7)),
        store_silent_for: Some(Duration::from_secs(5)),
        pid: Some(4711),
        host: None,
        step: 4,
        doing: None,
        note: r#"{"gpu_celsius":61}"#.to_string(),
    }
}

/// A file of a run with that rank.
fn opened(run: &RunDirectory) -> LiveSlot {
    let rank_statuses: RankStatuses = Arc::new(|| vec![status()]);
    let file = LiveFile::start(run, Live::default(), Some(rank_statuses));
    let slot = LiveSlot::default();
    slot.open(Some(file));
    slot
}

#[test]
fn a_run_that_has_finished_has_the_last_step_of_every_member() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path().join("a")).unwrap();
    let steps = |end: fn(&LiveSlot)| {
        let slot = opened(&run);
        slot.members(vec![1, 2]);
        slot.step(6);
        end(&slot);
        let live = read(&run);
        assert_eq!(live.phase, Phase::Ended);
        let ranks = live.ranks.into_iter().map(|it| (it.rank, it.step));
        ranks.collect::<Vec<_>>()
    };
    assert_eq!(steps(LiveSlot::finish), [(1, Some(6)), (2, Some(6))]);
    assert_eq!(steps(|slot| slot.open(None)), [(1, Some(4))]);
}

#[test]
fn a_run_without_heartbeats_names_the_process_that_writes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path().join("a")).unwrap();
    let slot = LiveSlot::default();
    slot.open(Some(LiveFile::start(&run, Live::default(), None)));
    slot.members(vec![0]);
    slot.step(6);
    slot.open(None);
    let live = read(&run);
    let [rank] = &live.ranks[..] else {
        panic!("{live:?}")
    };
    assert_eq!((rank.rank, rank.step, rank.alive), (0, Some(6), false));
    assert_eq!(rank.pid, Some(std::process::id()));
    assert_eq!(rank.host, proc::host_name());
}

#[test]
fn a_rank_says_for_whom_it_waits_while_its_collective_is_under_way() {
    let entry = |state| FlightEntry {
        group: 1,
        group_name: None,
        sequence: 3,
        collective: true,
        step: 4,
        operation: "barrier".to_owned(),
        label: None,
        bytes: None,
        state,
        waiting_for: (0..1000).collect(),
        began: Duration::from_secs(9),
        ended: None,
    };
    let of = |state| {
        let rank = of_status(RankStatus {
            doing: Some(entry(state)),
            ..status()
        });
        (rank.under_way, rank.waiting_for)
    };
    let first = (0..MOST_AWAITED).collect();
    assert_eq!(of(FlightState::Running), (true, first));
    assert_eq!(of(FlightState::Failed), (false, Vec::new()));
}

#[test]
fn the_file_says_when_the_newest_step_was_made() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path().join("a")).unwrap();
    let begun = unix_time_ms();
    let slot = opened(&run);
    slot.step(6);
    let stepped = lock(&slot.0).as_ref().map(|file| {
        let state = lock(&file.shared.state);
        state.live.moved_unix_ms
    });
    let stepped = stepped.flatten().unwrap();
    assert!(stepped >= begun, "{stepped} {begun}");
    // Nothing moves between the step and this.
    std::thread::sleep(Duration::from_millis(5));
    slot.members(vec![0, 1]);
    slot.open(None);
    assert_eq!(read(&run).moved_unix_ms, Some(stepped));
}

#[test]
fn the_file_says_when_the_run_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path().join("a")).unwrap();
    let slot = opened(&run);
    slot.enter_epoch(Phase::Compiling, 2);
    slot.step(5);
    slot.step(6);
    slot.open(None);
    let live = read(&run);
    assert_eq!(live.store_silent_seconds, Some(5.0));
    assert_eq!((live.phase, live.epoch, live.step), (Phase::Ended, 2, 6));
    assert!(live.seconds_a_step.is_some());
    let [rank] = &live.ranks[..] else {
        panic!("{live:?}")
    };
    assert_eq!((rank.rank, rank.pid), (1, Some(4711)));
    assert_eq!(rank.silent_seconds, Some(7.0));
    assert_eq!(rank.process_metrics.gpu_celsius, Some(61));
}
