//! The beat of a rank, as JSON in the store. A reader must expect other versions and garbage.

use std::cmp::Reverse;
use std::time::Duration;

use everburn_record::plain;
use serde::{Deserialize, Serialize};

use crate::group::FlightEntry;
use crate::store::{Store, StoreError, entry};

/// The longest beat that is read. Usual ones have a few kilobytes.
const MAX_BYTES: usize = 256 << 10;

/// The most flight-recorder entries per beat: unfinished operations first, then the newest finished ones.
const ENTRIES: usize = 16;

/// The longest text of a peer that is shown.
const MAX_TEXT: usize = 200;

/// The longest note, in bytes.
pub(super) const MAX_NOTE: usize = 512;

/// The most ranks in a peer's list of awaited ranks.
const MAX_RANKS: usize = 4096;

/// The state of one rank at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Beat {
    /// Random per process: a restarted rank counts from 1 again.
    pub(super) life: u64,
    pub(super) number: u64,
    /// The rank has ended in good order.
    pub(super) goodbye: bool,
    /// The process of the rank, for people who look for it.
    pub(super) pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
    pub(super) generation: u64,
    pub(super) rank: usize,
    pub(super) step: u64,
    /// For people who read the store; unused otherwise.
    pub(super) unix_seconds: u64,
    /// In a hang report: the job ranks that this rank waited for.
    pub(super) waiting_for: Vec<usize>,
    /// In a hang report: how long ago the group failed on this rank. A call after that came too late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed_for: Option<Duration>,
    /// In a hang report: the ranks of the group that this rank watches, and that send no beats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) silent: Vec<usize>,
    /// In a hang report: the ranks of the group on this rank's machine whose processes are stopped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) stopped: Vec<usize>,
    pub(super) records: Vec<FlightEntry>,
    /// Text of the program, for monitoring.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) note: String,
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BeatEntry {
    Beat(Box<Beat>),
    Unreadable,
    Nothing,
}

impl BeatEntry {
    pub(super) fn beat(&self) -> Option<&Beat> {
        match self {
            Self::Beat(beat) => Some(beat),
            Self::Unreadable | Self::Nothing => None,
        }
    }
}

pub(super) fn beat_key(member: usize) -> String {
    format!("watch/{member}")
}

/// The key of `member`'s report after the failure of the group of `generation`.
pub(super) fn hang_key(generation: u64, member: usize) -> String {
    format!("watch/hang/{generation}/{member}")
}

/// The key of the rank that prints the report of that failure on the machine `host`.
pub(super) fn reporter_key(generation: u64, host: &str) -> String {
    format!("watch/hang/{generation}/reporter/{host}")
}

/// The entries to publish: unfinished ones first, then the newest.
pub(super) fn newest(mut entries: Vec<FlightEntry>) -> Vec<FlightEntry> {
    // The oldest unfinished entry is the running one; of those queued after it the first matter.
    entries.sort_by_key(|entry| (entry.state.is_over(), entry.ended, Reverse(entry.began)));
    let unfinished = entries
        .iter()
        .take_while(|entry| !entry.state.is_over())
        .count();
    entries.drain(unfinished.min(ENTRIES / 2)..unfinished);
    entries.truncate(ENTRIES);
    entries
}

impl Beat {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain numbers and strings")
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        // Serde would accept a JSON array as the fields in order.
        if bytes.len() > MAX_BYTES || bytes.first() != Some(&b'{') {
            return None;
        }
        let mut beat: Self = serde_json::from_slice(bytes).ok()?;
        beat.waiting_for.truncate(MAX_RANKS);
        beat.silent.truncate(MAX_RANKS);
        beat.stopped.truncate(MAX_RANKS);
        beat.note = plain::line(&beat.note, MAX_NOTE);
        beat.host = beat.host.map(|host| plain::line(&host, MAX_TEXT));
        beat.records.truncate(ENTRIES);
        for record in &mut beat.records {
            record.operation = plain::line(&record.operation, MAX_TEXT);
            let name = record.group_name.as_ref();
            record.group_name = name.map(|name| plain::line(name, MAX_TEXT));
            record.waiting_for.truncate(MAX_RANKS);
        }
        Some(beat)
    }
}

/// Reads `keys` without waiting for them.
pub(super) fn read_many(store: &dyn Store, keys: &[String]) -> Result<Vec<BeatEntry>, StoreError> {
    let values = entry::values(store, keys)?;
    let found = |value: &Option<Vec<u8>>| value.as_deref().map_or(BeatEntry::Nothing, decoded);
    Ok(values.iter().map(found).collect())
}

/// The newest beat of a member, for a process that is in no group with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastBeat {
    pub(crate) life: u64,
    pub(crate) number: u64,
    pub(crate) step: u64,
}

/// The newest beats in the group of `generation` of `members`: of each one that has published some there, and has not ended.
pub(crate) fn last_beats(
    store: &dyn Store,
    generation: u64,
    members: impl IntoIterator<Item = usize>,
) -> Result<Vec<LastBeat>, StoreError> {
    let keys: Vec<String> = members.into_iter().map(beat_key).collect();
    let entries = read_many(store, &keys)?;
    let beats = entries.iter().filter_map(BeatEntry::beat);
    let of_group = beats.filter(|beat| beat.generation == generation && !beat.goodbye);
    let last = of_group.map(|beat| LastBeat {
        life: beat.life,
        number: beat.number,
        step: beat.step,
    });
    Ok(last.collect())
}

/// Reads all `keys` in one request; `None` if one of them is missing.
pub(super) fn read_all(
    store: &dyn Store,
    keys: &[String],
) -> Result<Option<Vec<BeatEntry>>, StoreError> {
    match store.multi_get_within(&entry::as_strs(keys), Duration::ZERO) {
        Ok(values) => Ok(Some(values.iter().map(|bytes| decoded(bytes)).collect())),
        Err(StoreError::Timeout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn decoded(bytes: &[u8]) -> BeatEntry {
    match Beat::decode(bytes) {
        Some(beat) => BeatEntry::Beat(Box::new(beat)),
        None => BeatEntry::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heartbeat::thread::tests::barrier;
    use crate::store::HashStore;

    #[test]
    fn garbage_is_refused_and_missing_fields_have_defaults() {
        for bytes in [
            &b"\xff\xfe"[..],
            b"",
            b"[]",
            b"{\"number\": \"x\"}",
            b"{\"records\": 5}",
        ] {
            assert_eq!(Beat::decode(bytes), None, "{bytes:?}");
        }
        assert_eq!(Beat::decode(&vec![b' '; MAX_BYTES + 1]), None);
        let beat = Beat::decode(b"{\"number\": 5, \"later\": true}").unwrap();
        assert_eq!(beat.note, "");
        assert_eq!((beat.number, beat.records.len()), (5, 0));
        assert_eq!(Beat::decode(&beat.encode()), Some(beat));
    }

    #[test]
    fn the_last_beats_are_those_of_members_that_are_in_the_group() {
        let store = HashStore::new();
        let beat = |generation: u64, goodbye| Beat {
            life: 7,
            number: 3,
            step: 20,
            generation,
            goodbye,
            ..Beat::default()
        };
        for (member, beat) in [beat(2, false), beat(1, false), beat(2, true)]
            .iter()
            .enumerate()
        {
            store.set(&beat_key(member), &beat.encode()).unwrap();
        }
        let first = LastBeat {
            life: 7,
            number: 3,
            step: 20,
        };
        assert_eq!(last_beats(&store, 2, 0..4).unwrap(), [first]);
    }

    #[test]
    fn control_characters_of_a_peer_become_marks() {
        let beat = Beat::decode(b"{\"number\": 5, \"note\": \"a\\u001b[2J\"}").unwrap();
        assert_eq!(beat.note, "a\u{fffd}[2J");
        assert_eq!(Beat::decode(&beat.encode()), Some(beat));
        let entry = FlightEntry {
            group: 7,
            group_name: Some("a\u{1b}[2J".to_owned()),
            operation: "b\u{1b}[2J".to_owned(),
            ..barrier(Vec::new())
        };
        let beat = Beat {
            records: vec![entry],
            ..Beat::default()
        };
        let beat = Beat::decode(&beat.encode()).unwrap();
        let text = beat.records[0].operation_of_group();
        assert_eq!(text, "b\u{fffd}[2J of the a\u{fffd}[2J group");
    }
}
