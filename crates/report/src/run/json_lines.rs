//! Files with a JSON document per line.

use std::fs::File;

use everburn_record::lines::{self, Line};
use serde::de::DeserializeOwned;

use super::Note;

/// The lines of a file that could not be read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Damage {
    pub(super) lines: u64,
    /// The last line has no end: a run may be writing it.
    pub(super) unfinished: bool,
}

/// Hands the documents of the file `name` to `take`, and notes what of it could not be read.
pub(super) fn each<T: DeserializeOwned>(
    file: File,
    name: &str,
    longest: usize,
    notes: &mut Vec<Note>,
    mut take: impl FnMut(T),
) -> Damage {
    let mut damage = Damage::default();
    let mut first = 0;
    let read = lines::each(file, longest, |number, line| {
        let (bytes, is_last) = match line {
            Line::Whole([]) => return,
            Line::Whole(bytes) => (bytes, false),
            Line::Unfinished(bytes) => (bytes, true),
            Line::TooLong(_) => (&[][..], false),
        };
        match serde_json::from_slice(bytes) {
            Ok(document) => take(document),
            Err(_) if is_last => damage.unfinished = true,
            Err(_) => {
                damage.lines += 1;
                if damage.lines == 1 {
                    first = number;
                }
            }
        }
    });
    if let Err(error) = read {
        let what = format!("it could be read in part only: {error}");
        notes.push(Note::new(name, what));
    }
    if damage.lines > 0 {
        let count = damage.lines;
        let what = format!(
            "{count} of its lines are damaged and were left out; the first is line {first}"
        );
        notes.push(Note::new(name, what));
    }
    damage
}
