//! Entries of a mad peer in the store, and settings from anywhere.

use std::time::Duration;

use super::join::{Joining, left_key};
use super::settings::Settings;
use super::{RendezvousRequest, Variables, WaitListener};
use crate::hostile::Script;
use crate::store::{Deadline, HashStore, Store};

/// How long a rank waits for a verdict that may never come.
const PATIENCE: Duration = Duration::from_millis(2);

/// A rank joins on a store in which somebody has written what the bytes say.
///
/// # Panics
/// Where joining panics, or says something that cannot be shown.
pub fn join_entries(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let world_size = 1 + script.below(4);
    let rank = script.below(world_size);
    let store = HashStore::with_timeout(PATIENCE);
    let mut entries = Vec::new();
    while !script.is_over() {
        let name = [
            "0", "1", "2", "first", "joined", "decided", "verdict", "left",
        ];
        let name = name[script.below(name.len())];
        let key = match name {
            "left" => left_key(rank),
            name => format!("everburn/join/{}/{name}", script.below(2)),
        };
        let value = value(&mut script);
        // What the store itself refuses is not there.
        if store.set(&key, &value).is_ok() {
            entries.push((key, value));
        }
    }
    let mut claimed = false;
    let joining = Joining {
        store: &store,
        rank,
        world_size,
        ranks_per_machine: None,
        deadline: Deadline::within(PATIENCE),
        on_wait: &WaitListener::default(),
    };
    let outcome = joining.join(|| claimed = true);
    match outcome {
        Ok(()) => assert!(claimed, "joined without its rank: {entries:?}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A member, a verdict, a number, or anything else.
fn value(script: &mut Script<'_>) -> Vec<u8> {
    let member = |script: &mut Script<'_>| {
        format!(
            r#"{{"rank":{},"world_size":{},"process":{{"id":{},"host":"\u001b","nonce":{}}},"elastic":{}}}"#,
            script.number(),
            script.number(),
            script.number(),
            script.number(),
            ["null", "[1,2]"][script.below(2)]
        )
    };
    match script.below(6) {
        0 => member(script).into_bytes(),
        1 => br#""Agreed""#.to_vec(),
        2 => format!(
            r#"{{"{}":{{"first":{},"other":{}}}}}"#,
            ["WorldSizes", "RankTaken", "Elastic"][script.below(3)],
            member(script),
            member(script)
        )
        .into_bytes(),
        3 => (script.number() as i64).to_string().into_bytes(),
        4 => vec![b'['; 1 << script.below(14)],
        _ => script.bytes().to_vec(),
    }
}

/// Settings from an init method and an environment that hold anything.
///
/// # Panics
/// Where reading them panics, or accepts a rank outside its world.
pub fn settings(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut text = |beginnings: &[&str]| {
        let beginning = beginnings[script.below(beginnings.len())];
        let rest = String::from_utf8_lossy(script.bytes()).into_owned();
        format!("{beginning}{rest}")
    };
    let init_method = text(&["env://", "tcp://", "file:///", "tcp://[::1]:", ""]);
    let numbers = ["", "0", "1", "-1", "18446744073709551615", "1e3"];
    let variables = [
        ("RANK", text(&numbers)),
        ("WORLD_SIZE", text(&numbers)),
        ("MASTER_ADDR", text(&["", "localhost", "::1"])),
        ("MASTER_PORT", text(&["", "29500", "65536"])),
        ("LOCAL_RANK", text(&numbers)),
        ("TORCHELASTIC_USE_AGENT_STORE", text(&["", "True"])),
        ("TORCHELASTIC_RESTART_COUNT", text(&numbers)),
        ("EVERBURN_JOB_TOKEN", text(&[""])),
    ];
    let mut number = |_| (script.chance()).then(|| script.number() as usize);
    let request = RendezvousRequest {
        rank: number(()),
        world_size: number(()),
        ..RendezvousRequest::default()
    };
    let lookup = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone())
    };
    match Settings::gather(&init_method, &request, Variables::of(&lookup)) {
        Ok(settings) => assert!(settings.rank < settings.world_size),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
