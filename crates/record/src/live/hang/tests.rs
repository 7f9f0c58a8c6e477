use super::*;

#[test]
fn nobody_waits_for_a_rank_that_is_out() {
    let rank = |rank, silent_seconds| LiveRank {
        rank,
        silent_seconds,
        ..LiveRank::default()
    };
    let live = |members| Live {
        unix_time_ms: 1_000,
        phase: Phase::Training,
        members,
        ranks: vec![rank(0, None), rank(1, Some(19.0)), rank(2, None)],
        ..Live::default()
    };
    let all = live(vec![0, 1, 2]).held_up(2_000).unwrap();
    assert!(all.starts_with("rank 1 gives no word for 20 s"), "{all}");
    assert_eq!(live(vec![0, 2]).held_up(2_000), None);
    let writer = live(vec![0, 2]).held_up(9_000).unwrap();
    assert!(
        writer.starts_with("rank 0 gives no word for 8 s"),
        "{writer}"
    );
    assert!(!writer.contains("rank 1"), "{writer}");
}

#[test]
fn a_rank_that_has_ended_is_not_looked_for_and_a_short_silence_is_left_out() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let rank = |host: Option<String>, stopped| LiveRank {
        rank: 1,
        pid: Some(child.id()),
        host,
        silent_seconds: Some(6.0),
        stopped,
        ..LiveRank::default()
    };
    let said = of_rank(&rank(proc::host_name(), false));
    assert!(
        said.ends_with(") has ended, no word for 6 s: read its log"),
        "{said}"
    );
    let elsewhere = of_rank(&rank(Some("another machine".to_owned()), false));
    assert!(
        elsewhere.contains("look whether it is stopped"),
        "{elsewhere}"
    );
    let stopped = of_rank(&LiveRank {
        silent_seconds: Some(4.9),
        ..rank(None, true)
    });
    assert!(
        stopped.contains(" is stopped (SIGSTOP): kill -CONT "),
        "{stopped}"
    );
}

#[test]
fn a_launcher_that_is_stopped_is_named_with_how_it_continues() {
    let live = Live {
        unix_time_ms: 1_000,
        phase: Phase::Training,
        ..Live::default()
    };
    assert_eq!(live.held_up(1_000), None);
    let of_running_store = "the launcher (process 12) is stopped (SIGSTOP, Ctrl-Z): kill -CONT 12, or `fg` in its terminal";
    let held_up = |live: &Live| live.held_up_with(Some(12), 1_000).unwrap();
    assert_eq!(held_up(&live), of_running_store);
    let silent = Live {
        store_silent_seconds: Some(15.0),
        ..live
    };
    let text = held_up(&silent);
    assert!(
        text.contains("Ctrl-Z), and its store has not answered for 15 s: kill -CONT 12"),
        "{text}"
    );
    let unknown = silent.held_up(1_000).unwrap();
    assert!(
        unknown.starts_with("the store of the job has not answered for 15 s"),
        "{unknown}"
    );
    assert!(!unknown.contains("continues"), "{unknown}");
}

#[test]
fn while_the_store_is_silent_steps_are_named_and_what_ranks_did_before_is_not() {
    let waits = LiveRank {
        doing: Some("all_reduce(f32[8], sum), under way for 0.0 s".into()),
        under_way: true,
        waiting_for: vec![1],
        ..LiveRank::default()
    };
    let live = |moved_unix_ms| Live {
        unix_time_ms: 20_000,
        phase: Phase::Training,
        moved_unix_ms: Some(moved_unix_ms),
        store_silent_seconds: Some(13.0),
        ranks: vec![waits.clone()],
        ..Live::default()
    };
    let moves = live(19_500).held_up_with(Some(12), 20_000).unwrap();
    assert!(
        moves.ends_with(
            "in its terminal; the training continues meanwhile, its last step was 500 ms ago"
        ),
        "{moves}"
    );
    // The last step is older than the silence.
    let stands = live(6_000).held_up_with(Some(12), 20_000).unwrap();
    assert!(stands.ends_with("`fg` in its terminal"), "{stands}");
}

#[test]
fn who_waits_is_left_out_once_the_file_is_old() {
    let rank = |rank, waits_for: &[usize]| LiveRank {
        rank,
        pid: Some(40 + rank as u32),
        host: Some("node7".into()),
        waiting_for: waits_for.to_vec(),
        ..LiveRank::default()
    };
    let live = Live {
        unix_time_ms: 1_000,
        phase: Phase::Training,
        ranks: vec![rank(0, &[]), rank(1, &[0, 2]), rank(2, &[0])],
        ..Live::default()
    };
    let stopped = live.seen_on("node7", |process| process == 40);
    let fresh = stopped.held_up(2_000).unwrap();
    assert!(fresh.ends_with("kill -CONT 40; ranks 1, 2 wait"), "{fresh}");
    let old = stopped.held_up(14_000).unwrap();
    assert_eq!(
        old,
        "rank 0 (process 40 on node7) is stopped (SIGSTOP), no word for 13 s: kill -CONT 40"
    );
}

#[test]
fn a_disk_that_takes_no_file_is_why() {
    let (plain, read_only) = (StatVfsMountFlags::empty(), StatVfsMountFlags::RDONLY);
    let full = Some("no space is left on its disk");
    let found = [[1, 9], [0, 9], [0, 0]].map(|blocks| refusal(blocks, plain));
    assert_eq!(found, [None, full, None]);
    assert_eq!(refusal([1, 9], read_only), Some("it is mounted read-only"));
}

#[cfg(target_os = "linux")]
#[test]
fn the_launcher_of_a_run_is_the_process_that_has_its_folder() {
    let run = tempfile::tempdir().unwrap();
    assert_eq!(Live::owner(run.path()), None);
    let lock = std::fs::File::create(run.path().join(Live::LOCK)).unwrap();
    assert_eq!(Live::owner(run.path()), None);
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(Live::owner(run.path()), Some(std::process::id()));
}

#[test]
fn who_waits_is_known_by_the_field_and_not_by_the_words() {
    let text = r#"{"unix_time_ms":1000,"phase":"training","ranks":[
        {"rank":0,"silent_seconds":7},
        {"rank":1,"alive":true,"under_way":true,"doing":"all_reduce(f32[8], sum), wartet auf 0","waiting_for":[0]},
        {"rank":2,"alive":true,"under_way":true,"doing":"barrier, waiting for nobody"}]}"#;
    let live: Live = serde_json::from_str(text).unwrap();
    let text = live.held_up(2_000).unwrap();
    assert!(text.starts_with("rank 0 gives no word for 8 s"), "{text}");
    assert!(text.ends_with("its machine runs; rank 1 waits"), "{text}");
}
