//! What a process says while it waits for a round to close.

use std::time::Duration;

use crate::elastic::error::listed;
use crate::elastic::round_view::Assessment;
use crate::rendezvous::RanksAwaited;
use crate::wait_notice::WaitNotice;

/// The line of process `slot` that is due after it has `waited`, `left` before the round closes, or the wait for `min`
/// processes is over: the first process that waits says it.
pub(super) fn wait_line(
    notice: &mut WaitNotice,
    slot: usize,
    waited: Duration,
    left: Duration,
    (assessment, min): (&Assessment, usize),
) -> Option<RanksAwaited> {
    let (present, missing) = (&assessment.present, &assessment.missing);
    let is_first = present.first().is_some_and(|first| first.slot == slot);
    if missing.is_empty() || !is_first || !notice.is_due(waited) {
        return None;
    }
    let all = present.len() + missing.len();
    let what_next = match present.len() >= min {
        true => "then the others continue without them".to_owned(),
        false => format!("at least {min} are needed"),
    };
    // The first part is what a report shows later, with the time that is left then.
    let text = format!(
        "waiting for {}, {:.0} s more; {} of {all} ranks have joined after {:.0} s; {what_next}",
        listed(missing),
        left.as_secs_f64(),
        present.len(),
        waited.as_secs_f64()
    );
    let joined = present.iter().map(|member| member.slot).collect();
    Some(RanksAwaited { joined, left, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elastic::error::{MissingSlot, SlotState};
    use crate::elastic::member::Member;

    #[test]
    fn the_first_that_waits_says_for_whom_and_what_comes_next() {
        let member = |slot| Member {
            slot,
            incarnation: 1,
            committed_step: 0,
            process: 1,
            node: 0,
        };
        let missing = |slot| MissingSlot {
            slot,
            machine: Some(1),
            incarnation: 0,
            state: SlotState::NotStarted,
        };
        let assessment = Assessment {
            present: vec![member(0), member(1)],
            missing: vec![missing(2), missing(3)],
            complete: false,
            broken: true,
        };
        let seconds = Duration::from_secs;
        let mut notice = WaitNotice::new();
        let mut line = |slot, waited, min| {
            let looked = (&assessment, min);
            wait_line(&mut notice, slot, seconds(waited), seconds(50), looked)
        };
        assert_eq!(line(0, 9, 1), None);
        assert_eq!(line(1, 10, 1), None, "rank 0 says it");
        let first = line(0, 10, 1).unwrap();
        assert_eq!((first.joined, first.left), (vec![0, 1], seconds(50)));
        let first = first.text;
        assert_eq!(
            first,
            "waiting for slots 2, 3 of machine 1 (never started), 50 s more; 2 of 4 ranks have joined after 10 s; then the \
             others continue without them"
        );
        assert_eq!(line(0, 69, 1), None);
        let second = line(0, 70, 3).unwrap().text;
        assert!(
            second.ends_with("after 70 s; at least 3 are needed"),
            "{second}"
        );
    }
}
