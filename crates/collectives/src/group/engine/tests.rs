//! A group that fails, or a deadline that passes, when all that a rank waits for has already come.

use std::thread;
use std::time::{Duration, Instant};

use super::{Buffers, Engine, WaitPolicy};
use crate::group::core::DataPlane;
use crate::group::signature::Call;
use crate::group::{
    Collective, CollectiveError, GroupOptions, Operation, ProcessGroup, ReduceOp, Signature,
};
use crate::sync::lock;
use everburn_tests::assert_matches;

/// The timeout of the group, which is not waited for.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What rank 1 has done of the barrier that rank 0 is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// Rank 0 needs nothing more of it.
    HasCalled,
    HasNotCalled,
}

/// What rank 0 finds when it looks for what is wrong, for the first time after it fell asleep in a
/// barrier that began at `started`; and whether the barrier is over then.
fn check(
    peer: Peer,
    started: Instant,
    meanwhile: impl Fn(&ProcessGroup),
) -> Result<bool, CollectiveError> {
    let options = GroupOptions {
        timeout: Some(TIMEOUT),
        ..GroupOptions::default()
    };
    let groups = ProcessGroup::over_threads(2, options);
    // The first barrier establishes the channels.
    let works: Vec<_> = groups.iter().map(ProcessGroup::barrier).collect();
    for work in works {
        work.wait().unwrap();
    }
    // Rank 1's continues without being waited for.
    let _called = (peer == Peer::HasCalled).then(|| groups[1].barrier());

    let core = groups[0].core();
    let signature = Signature::new(Operation::Barrier);
    let mut context = core.context(Call::Collective(signature));
    context.started = started;
    let collective = Collective::new(core, context, signature, WaitPolicy::Caller);
    let mut data = lock(&core.data);
    let DataPlane {
        channels,
        workspace,
    } = &mut *data;
    let channels = channels.as_mut().expect("the first barrier has made them");
    let begun = Instant::now();
    while peer == Peer::HasCalled && channels.channel(1).unwrap().peek(1).unwrap().is_empty() {
        assert!(begun.elapsed() < TIMEOUT, "nothing comes of rank 1");
        thread::yield_now();
    }
    workspace.plan.reset(2, 1);
    let buffers = Buffers::<u8> {
        values: &mut [],
        inputs: &[],
        outputs: &mut [],
    };
    let mut engine = Engine::new(
        &collective,
        channels,
        workspace,
        buffers,
        (ReduceOp::Sum, false),
    );
    engine.begin();
    meanwhile(&groups[0]);
    engine.check()?;
    Ok(engine.is_over())
}

/// When a barrier began whose deadline has passed.
fn long_ago() -> Instant {
    Instant::now().checked_sub(TIMEOUT).unwrap()
}

#[test]
fn a_failure_that_comes_behind_the_last_bytes_does_not_undo_them() {
    let fail = |group: &ProcessGroup| group.abort("enough");
    assert!(check(Peer::HasCalled, Instant::now(), fail).unwrap());
    let error = check(Peer::HasNotCalled, Instant::now(), fail).unwrap_err();
    assert_matches!(error, CollectiveError::Aborted { .. });
}

#[test]
fn a_rank_that_was_away_beyond_the_deadline_takes_what_has_come() {
    assert!(check(Peer::HasCalled, long_ago(), |_| {}).unwrap());
    let error = check(Peer::HasNotCalled, long_ago(), |_| {}).unwrap_err();
    assert_matches!(error, CollectiveError::Timeout { .. });
    // Who is in time continues waiting.
    assert!(!check(Peer::HasNotCalled, Instant::now(), |_| {}).unwrap());
}
