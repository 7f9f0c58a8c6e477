//! Ranks that come to a collective after the others have given them up.

use super::*;
use crate::heartbeat::report;

/// What rank 1 reports of itself after it came late to a collective in which rank 0 had waited for 5 s.
fn report_of_a_late_rank(called_ago: u64) -> String {
    let (_store, heartbeat) = heartbeat(2);
    let groups = ProcessGroup::over_threads(2, GroupOptions::default());
    let followed = Followed::of(Some(&groups[1]), 1, 2);
    heartbeat.follow(followed.clone());
    let seconds = Duration::from_secs;
    let answer = |waiting_for: Vec<usize>, began: u64, ended: u64| {
        let record = FlightEntry {
            state: FlightState::Failed,
            began: seconds(began),
            ended: Some(seconds(ended)),
            ..barrier(waiting_for)
        };
        RankReport::answer(Beat {
            failed_for: Some(seconds(4)),
            records: vec![record],
            ..heartbeat.beat_of(None)
        })
    };
    let reports = [answer(vec![1], 305, 5), answer(Vec::new(), called_ago, 0)];
    diagnose(&heartbeat, &followed, &reports, &|_| None).to_string()
}

#[test]
fn a_rank_that_comes_after_the_timeout_is_late_and_not_stuck() {
    let text = report_of_a_late_rank(1);
    let late = "it came to barrier() (collective 7) 303.0 s after rank 0, and 3.0 s after \
                `GroupOptions::timeout` (300 s) had passed: raise `GroupOptions::timeout` if steps may take \
                so long, or look at what it did in step 5";
    assert!(text.contains(late), "{text}");
    assert!(!text.contains("stuck"), "{text}");
    let text = report_of_a_late_rank(6);
    assert!(text.contains("it is stuck in barrier() "), "{text}");
}

#[test]
fn a_late_rank_names_itself_by_the_abort_where_the_store_has_no_answer_of_the_others() {
    let heartbeat = heartbeat(3).1;
    let heartbeat = Arc::new(heartbeat);
    let timeout = Some(Duration::from_millis(50));
    let mut groups = ProcessGroup::over_threads(
        3,
        GroupOptions {
            timeout,
            ..GroupOptions::default()
        },
    );
    let (third, own, first) = (groups.remove(2), groups.remove(1), groups.remove(0));
    heartbeat.follow(Followed::of(Some(&own), 1, 3));
    // Ranks 0 and 2 wait for rank 1, end, and report nothing: the store has ended with them.
    std::thread::scope(|scope| {
        for group in [&first, &third] {
            scope.spawn(|| group.barrier().wait().unwrap_err());
        }
    });
    let error = own.barrier().wait().unwrap_err();
    let report = report::report(&heartbeat, &error, &|_| None).expect("a rank hangs");
    assert_eq!(report.stalled_member(), Some(1), "{report}");
    assert!(report.to_string().starts_with("rank 1 stalled"), "{report}");
}
