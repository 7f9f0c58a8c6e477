//! What a line of a rank's log says of the run. A run that keeps no `events.jsonl` has told its story there, in the
//! sentences of `crates/train` and `crates/launch`.

use everburn_record::{Event, EventKind, plain};

use crate::clock;

/// How much of a sentence is kept.
const LONGEST_TEXT: usize = 600;

/// The event of which `line` tells, in the log of `rank`; `None` for the many lines that tell of none.
pub(super) fn event(line: &str, rank: usize) -> Option<Event> {
    if let Some(rest) = line.strip_prefix("--- rank ") {
        let (number, rest) = rest.split_once(": process ")?;
        let process = rest.strip_suffix(" begins here ---")?;
        let text = format!("rank {number} was started again (process {process})");
        return Some(Event {
            rank: number.parse().ok(),
            ..Event::new(EventKind::Restart, plain::line(&text, LONGEST_TEXT))
        });
    }
    if let Some(error) = line.strip_prefix("error: ") {
        return Some(failure(error, rank));
    }
    let (time, level, text) = message(line)?;
    let (kind, about) = judged(level, text, rank)?;
    Some(Event {
        unix_time_ms: time,
        step: step_at(text),
        rank: about,
        ranks: (kind == EventKind::Regroup)
            .then(|| ranks_in(text))
            .flatten(),
        ..Event::new(kind, plain::line(text, LONGEST_TEXT))
    })
}

/// The end of `rank` with this error.
pub(super) fn failure(error: &str, rank: usize) -> Event {
    Event {
        rank: Some(rank),
        step: step_at(error),
        ..Event::new(EventKind::Failure, plain::line(error, LONGEST_TEXT))
    }
}

/// Whether a sentence is of replicas that differ, and which rank's it says that is.
pub(super) fn diverged(text: &str) -> Option<Option<usize>> {
    let ways = [
        "differed from the other ranks'",
        "differs from the other ranks'",
        "is not the same on rank 0 and on rank ",
    ];
    let about = || number_behind(text, "of rank [").or_else(|| number_behind(text, "of rank "));
    let is_one = ways.iter().any(|way| text.contains(way));
    is_one.then(|| about().map(|rank| rank as usize))
}

/// Time, level and text of a message of `tracing`.
fn message(line: &str) -> Option<(Option<u64>, &str, &str)> {
    let (first, rest) = line.trim_start().split_once(' ')?;
    let (time, level, text) = match clock::parse(first) {
        None => (None, first, rest),
        time => {
            let (level, text) = rest.trim_start().split_once(' ')?;
            (time, level, text)
        }
    };
    let known = matches!(level, "INFO" | "WARN" | "ERROR");
    known.then_some((time, level, text.trim_start()))
}

/// What kind of event a sentence is of, and which rank it is about.
fn judged(level: &str, text: &str, rank: usize) -> Option<(EventKind, Option<usize>)> {
    if level == "INFO" {
        return text
            .starts_with("resuming from ")
            .then_some((EventKind::Resume, None));
    }
    if text.starts_with("chaos: ") {
        let named = number_behind(text, "chaos: rank ").map(|rank| rank as usize);
        return Some((EventKind::Fault, named.or(Some(rank))));
    }
    if text.contains(" have made step ") && text.starts_with("ranks [") {
        return Some((EventKind::Regroup, None));
    }
    if let Some(about) = diverged(text) {
        return Some((EventKind::Divergence, about));
    }
    if text.starts_with("machine ") && text.contains(") stalled") {
        // Of a machine that is silent as a whole, the first rank.
        let first = number_behind(text, "(ranks ").map(|rank| rank as usize);
        return Some((EventKind::Stall, first));
    }
    let stalled = number_behind(text, "rank ").filter(|number| {
        let named = format!("rank {number} ");
        let rest = text.strip_prefix(&named).unwrap_or_default();
        rest.starts_with("stalled") || rest.starts_with("itself has not run")
    });
    if let Some(stalled) = stalled {
        return Some((EventKind::Stall, Some(stalled as usize)));
    }
    if text.starts_with("after step ") && text.contains(" lost rank ") {
        let lost = number_behind(text, " lost rank ").map(|rank| rank as usize);
        return Some((EventKind::Loss, lost));
    }
    Some((EventKind::Warning, Some(rank)))
}

/// The number of steps in `after step 12` or `at step 12`. A step at which something happened has not been made.
fn step_at(text: &str) -> Option<u64> {
    let after = || number_behind(text, "after step ");
    let made = number_behind(text, " have made step ");
    let at = || number_behind(text, " at step ").map(|step| step.saturating_sub(1));
    made.or_else(after).or_else(at)
}

/// The number after the first `name` in a text.
fn number_behind(text: &str, name: &str) -> Option<u64> {
    let rest = &text[text.find(name)? + name.len()..];
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The ranks in `ranks [0, 2] have made step 120`.
fn ranks_in(text: &str) -> Option<Vec<usize>> {
    let (list, _) = text.strip_prefix("ranks [")?.split_once(']')?;
    let numbers = list.split(", ").map(|number| number.parse().ok());
    numbers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> (EventKind, Option<u64>, Option<usize>) {
        let event = event(line, 9).unwrap();
        (event.kind, event.step, event.rank)
    }

    #[test]
    fn a_runs_sentences_are_events() {
        use EventKind::*;
        let time = "2026-11-22T00:33:20.674834Z";
        for (text, expected) in [
            (
                "WARN chaos: rank 1 is stopped at step 120",
                (Fault, Some(119), Some(1)),
            ),
            (
                "WARN chaos: a parameter changes after step 7",
                (Fault, Some(7), Some(9)),
            ),
            (
                "WARN after step 119: rank 0 lost rank 1 in all_reduce(i64[1], sum) (collective 23, step 120): it",
                (Loss, Some(119), Some(1)),
            ),
            (
                "ERROR rank 1 stalled at step 120: it does not do its part in all_gather_varied(f64)",
                (Stall, Some(119), Some(1)),
            ),
            (
                "ERROR machine 1 (ranks 2, 3) stalled at step 120: rank 2 has not called barrier (collective 5)",
                (Stall, Some(119), Some(2)),
            ),
            (
                "WARN rank 1 stalled for 14 s at step 120, while others waited for it in barrier, and continues: it sent no heartbeats",
                (Stall, Some(119), Some(1)),
            ),
            (
                "WARN ranks [0, 2] have made step 120, 39.80 s after the step before",
                (Regroup, Some(120), None),
            ),
            (
                "WARN after step 30, `a` of rank [2] differed from the other ranks'; it is given the state of rank 0",
                (Divergence, Some(30), Some(2)),
            ),
            ("WARN no heartbeat monitor: no", (Warning, None, Some(9))),
            ("INFO resuming from a/b", (Resume, None, None)),
        ] {
            assert_eq!(told(&format!("{time}  {text}")), expected, "{text}");
        }
        assert_eq!(
            told("--- rank 2: process 2 begins here ---"),
            (Restart, None, Some(2))
        );
        assert_eq!(
            told("error: after step 7, `conv1.weight` of rank 1 differs from the other ranks'"),
            (Failure, Some(7), Some(9))
        );
        assert_eq!(told("WARN without a time"), (Warning, None, Some(9)));
    }

    #[test]
    fn times_and_groups_are_kept() {
        let line = "2026-11-22T00:33:31.237827Z  WARN ranks [0, 2] have made step 120, 39.80 s after the step before";
        let event = event(line, 0).unwrap();
        assert_eq!(event.ranks.unwrap(), [0, 2]);
        assert_eq!(
            clock::utc(event.unix_time_ms.unwrap()).unwrap(),
            "2026-11-22 00:33:31"
        );
    }

    #[test]
    fn other_lines_tell_of_nothing() {
        for line in [
            "",
            "epoch 1/9  train  360/360  loss 2.2973",
            "2026-11-22T00:32:50.661195Z  INFO after step 96: more ranks come, and all meet again",
            "2026-11-22T00:32:50.661195Z  INFO conv1 and conv2 on flex",
            "  | error: not at the beginning",
            "--- rank 2 ---",
            "--- rank 2: the launcher has ended this process ---",
        ] {
            assert_eq!(event(line, 0), None, "{line}");
        }
    }
}
