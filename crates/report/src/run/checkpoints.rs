//! Which checkpoints `checkpoints/` has.

use std::path::Path;

use everburn_record::{Event, EventKind, Place, file, units};
use serde::Deserialize;

use super::Note;

/// How many are read.
const MOST: usize = 200;

/// A manifest has some hundred bytes a tensor.
const LONGEST_MANIFEST: u64 = 1 << 26;

/// Of a manifest, what a report needs.
#[derive(Deserialize)]
struct Manifest {
    progress: Progress,
    #[serde(default)]
    files: Vec<FileEntry>,
}

#[derive(Deserialize)]
struct Progress {
    step: u64,
}

#[derive(Deserialize)]
struct FileEntry {
    bytes: u64,
}

/// An event for each checkpoint that is still there, the newest last.
pub(super) fn read(folder: &Path, notes: &mut Vec<Note>) -> Vec<Event> {
    let folder = folder.join("checkpoints");
    let mut places = Place::all_in(&folder).unwrap_or_default();
    if places.len() > MOST {
        let what = format!(
            "it has {} checkpoints: the newest {MOST} are listed",
            places.len()
        );
        notes.push(Note::new("checkpoints", what));
        places.drain(..places.len() - MOST);
    }
    let mut events = Vec::new();
    for place in places {
        match manifest(&place.found_in(&folder).join("manifest.json")) {
            Ok(manifest) => {
                let files = manifest.files.iter().map(|file| file.bytes);
                let bytes = files.fold(0, u64::saturating_add);
                let text = format!("checkpoint {place}, {}", units::bytes(bytes));
                events.push(Event {
                    step: Some(manifest.progress.step),
                    ..Event::new(EventKind::Checkpoint, text)
                });
            }
            Err(why) => notes.push(Note::new(format!("checkpoints/{place}/manifest.json"), why)),
        }
    }
    events
}

fn manifest(path: &Path) -> Result<Manifest, String> {
    let text = file::read_text(path, LONGEST_MANIFEST)
        .map_err(|error| super::why(&error, "it is missing"))?;
    serde_json::from_str(&text).map_err(|error| format!("it is damaged: {error}"))
}
