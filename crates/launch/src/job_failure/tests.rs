//! What the launcher says of a failed job.

use everburn_tests::AssertContains;

use super::*;
use crate::failure::ReportKind;

/// Rank 2 ended with `code` because of rank 1; the log of rank `logged` is shown.
fn because_of_rank_1(code: i32, logged: usize, log_tail: Option<&[&str]>) -> JobFailure {
    let message = "rank 2 lost rank 1 in barrier\ncheck its process";
    let report = RankReport {
        lost_rank: Some(1),
        ..RankReport::new(2, ReportKind::PeerLost, message)
    };
    let cause = EndedRank {
        report: Some(report),
        ..EndedRank::new(2, RankExit::Code(code))
    };
    JobFailure {
        logged,
        log_tail: log_tail.map(|tail| tail.iter().map(ToString::to_string).collect()),
        ..JobFailure::new(cause, format!("logs/rank-{logged}.log"))
    }
}

/// Demands the beginning, the parts and the end of a text; anything may be where `...` is.
fn reads(text: &impl fmt::Display, expected: &str) {
    let text = text.to_string();
    let parts: Vec<_> = expected.split("...").collect();
    let is_so = text.starts_with(parts[0])
        && text.ends_with(parts[parts.len() - 1])
        && parts.iter().all(|part| text.contains(part));
    assert!(is_so, "not `{expected}`:\n{text}");
}

fn machine(number: usize, ranks: &[usize], host: Option<&str>) -> Option<LostMachine> {
    Some(LostMachine {
        number,
        ranks: ranks.to_vec(),
        host: host.map(str::to_owned),
    })
}

#[test]
fn the_rank_that_did_not_answer_comes_first_and_its_log_is_shown() {
    let text = because_of_rank_1(EXIT_STALLED, 1, Some(&["reading shard 7"])).to_string();
    let log = "the log of rank 1: logs/rank-1.log, which ends with\n  | reading shard 7\n";
    reads(&text, &format!("rank 1 did not answer: rank 2 ...{log}"));
    assert!(!text.contains("other machines"), "{text}");
    let seen = because_of_rank_1(EXIT_STALLED, 2, None);
    reads(&seen, "...the log of rank 2: logs/rank-2.log\n");
}

#[test]
fn a_device_that_has_failed_is_named_once_and_its_error_is_not_shown_again() {
    let error = "`loss` could not be read from its device: The device is poisoned";
    let said = naming_lost_device(error).unwrap();
    let log = format!("error: {error}");
    let mut failure = because_of_rank_1(1, 2, Some(&["step 4", log.as_str()]));
    failure.cause.report = Some(RankReport::new(2, ReportKind::Own, said));
    let text = failure.to_string();
    let named = text.matches("the device of this rank has failed").count();
    assert_eq!(named, 1, "{text}");
    reads(&text, "...which ends with\n  | step 4\n");
}

#[test]
fn an_error_to_which_the_launcher_has_added_who_was_refused_is_not_shown_again_from_the_log() {
    let error = "only 1 of 2 ranks joined within 5 s; missing: rank 1; check that it was started";
    let (what, advice) = error.split_at(error.find("; check").unwrap());
    let said = format!("{what}{REFUSED}10.0.0.2 (3 times): why{advice}");
    let log = format!("error: {error}");
    let tail = ["waiting for rank 1", log.as_str()];
    let mut failure = because_of_rank_1(1, 2, Some(&tail));
    failure.cause.report = Some(RankReport::new(2, ReportKind::Own, said));
    let text = failure.to_string();
    assert_eq!(text.matches("only 1 of 2 ranks").count(), 1, "{text}");
    text.assert_contains([
        "has refused 10.0.0.2 (3 times): why; check that",
        "| waiting for rank 1\n",
    ]);
}

#[test]
fn a_rank_that_was_stopped_comes_before_the_victim_that_another_has_lost() {
    for (code, stopped, these, them) in [
        (EXIT_PEER_LOST, vec![3], "rank 3 was", "it: rank 2 "),
        (EXIT_STALLED, vec![0, 3], "ranks 0, 3 were", "them: "),
    ] {
        let failure = JobFailure {
            stopped,
            ..because_of_rank_1(code, 2, None)
        };
        let ended = "stopped (SIGSTOP), and the launcher has ended";
        reads(&failure, &format!("{these} {ended} {them}..."));
    }
    let mut named = because_of_rank_1(EXIT_STALLED, 2, None);
    named.stopped = vec![1];
    let report = named.cause.report.as_mut().unwrap();
    report.message =
        "rank 2 lost rank 1: no heartbeat for 5 s; check whether its machine runs".to_owned();
    let expected = "rank 1 was stopped (SIGSTOP), and ...no heartbeat for 5 s\n...";
    reads(&named, expected);
    // It has failed by itself.
    let mut own = because_of_rank_1(1, 2, None);
    own.stopped = vec![3];
    own.cause.report = None;
    reads(&own, "rank 2 ended with exit code 1...");
}

#[test]
fn of_a_rank_lost_elsewhere_the_other_machines_are_named_and_no_line_comes_twice() {
    let tail = [
        "error: rank 2 lost rank 1 in barrier",
        "check its process",
        "step 9",
    ];
    reads(
        &because_of_rank_1(EXIT_PEER_LOST, 2, Some(&tail)),
        "rank 1 was lost: rank 2 lost rank 1...at the other machines' output...which ends with\n  | step 9\n",
    );
}

#[test]
fn a_lost_machine_is_named_by_its_number_and_its_name() {
    for (ranks, these, were) in [(&[1, 2][..], "ranks 1, 2", "were"), (&[1], "rank 1", "was")] {
        let failure = JobFailure {
            lost_machine: machine(1, ranks, Some("node7")),
            ..because_of_rank_1(EXIT_PEER_LOST, 2, None)
        };
        let begin = format!("{these} of machine 1 (node7) {were} lost: rank 2 ");
        reads(
            &failure,
            &format!("{begin}...look at machine 1 (node7), at..."),
        );
    }
}

#[test]
fn a_machine_that_is_lost_with_the_store_is_named_though_no_rank_of_it_was() {
    let mut failure = JobFailure {
        lost_machine: machine(0, &[0, 1], Some("node7")),
        ..because_of_rank_1(EXIT_UNAVAILABLE, 2, None)
    };
    let report = failure.cause.report.as_mut().unwrap();
    report.lost_rank = None;
    let text = failure.to_string();
    reads(
        &text,
        "machine 0 (node7), whose launcher hosts the store of the job, is lost: rank 2 ended...\
         \n  look at the output of the launcher of machine 0 (node7)...",
    );
    assert!(!text.contains("ranks 0, 1"), "{text}");
    assert!(failure.lost_before_ranks_met());
    // An elastic job that was to start a rank again.
    failure.given_up = Some("the store is lost".to_owned());
    assert!(!failure.lost_before_ranks_met());
}

#[test]
fn a_machine_that_did_not_run_says_so_before_it_blames_another() {
    let failure = JobFailure {
        own_pause: Some(Duration::from_secs(47)),
        ..because_of_rank_1(EXIT_PEER_LOST, 2, None)
    };
    reads(
        &failure,
        "this machine has not run for 47 s (its launcher was stopped, or it was suspended): meanwhile...\
         ; rank 1 was lost: rank 2 ...",
    );
}

#[test]
fn why_the_launcher_has_ended_ranks_that_had_not_failed_comes_first() {
    let mut failure = JobFailure {
        given_up: Some("all ranks of this machine have been stopped".to_owned()),
        ..because_of_rank_1(EXIT_STALLED, 2, None)
    };
    reads(
        &failure,
        "...barrier; the job cannot continue: all ranks...",
    );
    assert_eq!(failure.why_ended(), None);
    failure.cause.report = None;
    failure.cause.ended_by_launcher = true;
    let text = failure.to_string();
    let begin = "all ranks of this machine have been stopped: rank 2 was ended by the launcher";
    assert!(text.starts_with(begin), "{text}");
    assert!(!text.contains("cannot continue"), "{text}");
}

#[test]
fn the_headline_is_one_line_with_what_the_launcher_saw() {
    let failure = JobFailure {
        stopped: vec![3],
        given_up: Some("slot 1 has no restarts left".to_owned()),
        ..because_of_rank_1(EXIT_STALLED, 2, None)
    };
    let headline = failure.headline();
    let expected = "rank 3 was stopped (SIGSTOP), and the launcher has ended it: rank 2 ended with exit code 76 (a \
                    rank did not answer in time): rank 2 lost rank 1 in barrier; the job cannot continue: slot 1 has no restarts left";
    assert_eq!(headline, expected);
    let text = failure.to_string();
    let rest = text.strip_prefix(&headline).unwrap();
    assert!(rest.starts_with("\n  check its process\n"), "{text}");
    assert!(!rest.contains("restarts left"), "{text}");
    let unproved = JobFailure {
        unproved: Some("the store says that it has finished (0.5 s). See the others".to_owned()),
        ..because_of_rank_1(EXIT_STALLED, 2, None)
    };
    let headline = unproved.headline();
    assert!(headline.ends_with("that it has finished (0.5 s)"));
    assert!(unproved.to_string().contains("\n  See the others\n"));
}

#[test]
fn a_rank_that_was_stopped_here_comes_before_those_of_another_machine_that_gave_up() {
    let mut failure = JobFailure {
        stopped: vec![3],
        lost_machine: machine(0, &[1], None),
        ..because_of_rank_1(EXIT_PEER_LOST, 2, None)
    };
    reads(&failure.headline(), "rank 3 was stopped...");
    // No rank of that machine answers.
    failure.cause.report.as_mut().unwrap().silent_machine = Some(0);
    reads(&failure.headline(), "rank 1 of machine 0 was lost...");
}

#[test]
fn of_a_rank_that_did_not_answer_on_another_machine_that_machine_is_to_be_looked_at() {
    let mut failure = JobFailure {
        lost_machine: machine(1, &[1], Some("node7")),
        ..because_of_rank_1(EXIT_STALLED, 2, None)
    };
    let report = failure.cause.report.as_mut().unwrap();
    report.message = "rank 2 lost rank 1: no heartbeat for 5 s; check whether its process is \
                      stopped (SIGSTOP, a debugger)"
        .to_owned();
    let text = failure.to_string();
    assert!(!text.contains("whether its process"), "{text}");
    let place = "look at machine 1 (node7), at the output of its launcher first, which names processes that were stopped";
    assert!(text.contains(place), "{text}");
    assert!(text.contains("`ps -eo pid,stat,args`"), "{text}");
}

#[test]
fn a_rank_that_could_not_say_its_step_has_that_of_the_others() {
    let mut victim = because_of_rank_1(EXIT_PEER_LOST, 2, None).cause;
    victim.report.as_mut().unwrap().step = Some(165);
    let mut failure = because_of_rank_1(137, 2, None);
    failure.cause = EndedRank::new(1, RankExit::Signal(signal_hook::consts::SIGKILL));
    assert_eq!(failure.step(), None);
    assert!(!failure.headline().contains("step"));
    failure.others = vec![victim];
    assert_eq!(failure.step(), Some(165));
    let expected = "rank 1 was ended by SIGKILL...; the others were at step 165";
    reads(&failure.headline(), expected);
    // It has got no memory, and has printed that.
    failure.cause.exit = RankExit::Signal(signal_hook::consts::SIGABRT);
    let said = "memory allocation of 903168 bytes failed";
    failure.cause.report = Some(RankReport::new(1, ReportKind::Own, said));
    let expected = format!("rank 1 was ended by SIGABRT: {said}; the others were at step 165");
    assert_eq!(failure.headline(), expected);
    failure.cause.report.as_mut().unwrap().step = Some(164);
    reads(&failure.headline(), "...SIGABRT, at step 164: memory...");
    assert_eq!(failure.step(), Some(164));
}
