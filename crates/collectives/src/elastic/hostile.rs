//! Records of mad launchers and ranks in the store of an elastic job.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{ElasticOptions, Membership, MembershipCoordinator, Round, keys};
use crate::hostile::{GENEROUS, Script};
use crate::store::{HashStore, SharedStore, StoreError};

/// How long a newcomer waits for a group that does not let it in.
const PATIENCE: Duration = Duration::from_millis(1);

/// A process joins a job whose store holds what somebody else has written, and a launcher reads there.
///
/// # Panics
/// Where a round closes without this process or with a rank that is not its own, an error cannot be shown,
/// or joining takes without end.
pub fn elastic_records(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let max = 1 + script.below(3);
    let slot = script.below(max);
    let incarnation = 1 + script.below(3) as u64;
    let store: SharedStore = Arc::new(HashStore::with_timeout(PATIENCE));
    while !script.is_over() {
        let (key, value) = entry(&mut script, max);
        store.set(&key, &value).expect("a short entry");
    }
    launcher(&store, max);
    let options = ElasticOptions {
        patience: Duration::ZERO,
        wait_for_min: Duration::ZERO,
        ..ElasticOptions::new((1, max), slot, incarnation)
    };
    let here = [127, 0, 0, 1].into();
    let membership = Membership::over(store, here, PATIENCE, options);
    let mut membership = membership.expect("good options");
    let began = Instant::now();
    match membership.join(7) {
        Ok(round) => joined(&round, slot, incarnation),
        Err(error) => shown(&error),
    }
    if let Err(error) = membership.has_pending_members() {
        shown(&error);
    }
    assert!(began.elapsed() < GENEROUS, "it took {:?}", began.elapsed());
}

/// The round that has closed with this process in it.
fn joined(round: &Round, slot: usize, incarnation: u64) {
    let this = round.this_member();
    assert_eq!((this.slot, this.incarnation), (slot, incarnation));
    assert!(round.rank < round.world_size());
    let rendezvous = round.rendezvous();
    assert!(rendezvous.local_rank <= rendezvous.rank);
    let outcome = rendezvous.store.get_within("nothing", PATIENCE);
    shown(&outcome.expect_err("it is not there"));
}

/// All that a launcher reads.
fn launcher(store: &SharedStore, max: usize) {
    let coordinator = MembershipCoordinator::new(Arc::clone(store));
    let told = |error: StoreError| shown(&error);
    coordinator.newest().map_or_else(told, drop);
    coordinator.joined(1, max - 1).map_or_else(told, drop);
    let news = coordinator.news(0).expect("a store in memory");
    for reason in [news.given_up, news.stop_requested].into_iter().flatten() {
        shown(&reason);
    }
}

/// Panics where a text cannot be shown as it is.
fn shown(told: &dyn Display) {
    let text = told.to_string();
    assert!(text.len() < 1 << 16, "{text:?}");
    assert!(!text.contains(char::is_control), "{text:?}");
}

/// One key of a job, with a record or anything in it.
fn entry(script: &mut Script<'_>, max: usize) -> (String, Vec<u8>) {
    let slot = script.below(max);
    let generation = match script.chance() {
        true => 1 + script.below(3) as u64,
        false => script.number(),
    };
    match script.below(11) {
        0 => (keys::finished(), b"1".to_vec()),
        1 => (keys::given_up(), script.bytes().to_vec()),
        2 => (keys::incarnation(slot), number(script)),
        3 => (keys::ended(slot), number(script)),
        4 => (keys::waiting(generation), script.bytes().to_vec()),
        5 => (keys::closed(generation), script.bytes().to_vec()),
        6 => {
            let counter = format!("{}/everburn/mesh/last", keys::group(generation));
            (counter, number(script))
        }
        7 => (keys::stop_requested(), script.bytes().to_vec()),
        8 | 9 => (keys::joined(generation, slot), record(script, slot)),
        _ => (keys::newest(), newest(script, generation)),
    }
}

fn number(script: &mut Script<'_>) -> Vec<u8> {
    match script.below(4) {
        0 => script.bytes().to_vec(),
        1 => (script.number() as i64).to_string().into_bytes(),
        _ => script.below(4).to_string().into_bytes(),
    }
}

fn record(script: &mut Script<'_>, slot: usize) -> Vec<u8> {
    match script.below(6) {
        0 => script.bytes().to_vec(),
        1 => vec![b'{'; 1 << script.below(14)],
        2 => member(script, None).into_bytes(),
        _ => member(script, Some(slot)).into_bytes(),
    }
}

fn member(script: &mut Script<'_>, slot: Option<usize>) -> String {
    format!(
        r#"{{"slot":{},"incarnation":{},"committed_step":{},"process":{},"node":{}}}"#,
        slot.map_or_else(|| script.number(), |slot| slot as u64),
        script.number(),
        script.number(),
        script.number() as u32,
        script.number(),
    )
}

fn newest(script: &mut Script<'_>, number: u64) -> Vec<u8> {
    if script.below(6) == 0 {
        return script.bytes().to_vec();
    }
    let mut members = |most| {
        let count = script.below(most);
        let slots = (0..count).map(|slot| match script.below(8) {
            0 => member(script, None),
            _ => member(script, Some(slot)),
        });
        slots.collect::<Vec<_>>().join(",")
    };
    let (now, before) = (members(5), members(3));
    format!(r#"{{"number":{number},"members":[{now}],"lost":[{before}]}}"#).into_bytes()
}
