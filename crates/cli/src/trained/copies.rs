//! Files that are tested and that the training had, too.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toml::Table;

use super::settings::place_of_data;

/// How long files are compared, at most.
const LONGEST: Duration = Duration::from_secs(5);

/// How many bytes of two files are compared at a time: a file of weights or a film does not fill the memory.
const PIECE: usize = 64 << 10;

/// How many of the files that are tested are copies, and of how many.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) count: usize,
    pub(super) compared: usize,
}

impl Copies {
    /// Compares the files of classes in the folder that the sections of `now` name with those in the folder that a run with the
    /// sections of `before` has learnt from, where they have the same class, name and length. `None` if no file is a copy. What
    /// cannot be read is none: this is a hint.
    pub(super) fn find(before: &Table, now: &Table) -> Option<Self> {
        let (learnt, tested) = (place_of_data(before)?, place_of_data(now)?);
        let part_of = |place: &Path, parts: &[&str]| {
            let mut parts = parts.iter().map(|part| place.join(part));
            let part = parts.find(|part| part.is_dir());
            part.unwrap_or_else(|| place.to_owned())
        };
        let learnt = part_of(learnt, &["train"]);
        let tested = part_of(tested, &["test", "val"]);
        let until = Instant::now() + LONGEST;
        let mut copies = Self {
            count: 0,
            compared: 0,
        };
        let files = entries(&tested).flat_map(|class| entries(&class));
        for file in files.take_while(|_| Instant::now() <= until) {
            let Ok(of_class) = file.strip_prefix(&tested) else {
                continue;
            };
            if !file.is_file() {
                continue;
            }
            let Some(is_copy) = is_same(&file, &learnt.join(of_class), until) else {
                break;
            };
            copies.compared += 1;
            copies.count += usize::from(is_copy);
        }
        (copies.count > 0).then_some(copies)
    }
}

/// What is in a folder, but for hidden files; nothing where that is none.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    entries.map(|entry| entry.path())
}

/// Whether two files have the same bytes; `None` if that is not known `until` then.
fn is_same(one: &Path, other: &Path, until: Instant) -> Option<bool> {
    let length = |file: &Path| {
        let metadata = fs::metadata(file).ok()?;
        metadata.is_file().then_some(metadata.len())
    };
    if length(one).is_none() || length(one) != length(other) {
        return Some(false);
    }
    let (Ok(one), Ok(other)) = (File::open(one), File::open(other)) else {
        return Some(false);
    };
    have_same_bytes(one, other, until).unwrap_or(Some(false))
}

/// The same of what is read, up to the first difference.
fn have_same_bytes(one: impl Read, other: impl Read, until: Instant) -> io::Result<Option<bool>> {
    let mut one = BufReader::with_capacity(PIECE, one);
    let mut other = BufReader::with_capacity(PIECE, other);
    while Instant::now() <= until {
        let (of_one, of_other) = (one.fill_buf()?, other.fill_buf()?);
        let length = of_one.len().min(of_other.len());
        if length == 0 || of_one[..length] != of_other[..length] {
            return Ok(Some(of_one == of_other));
        }
        one.consume(length);
        other.consume(length);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_by_class_name_and_content() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        let named = |name: &str| {
            let place = folder.path().join(name);
            let data = Table::from_iter([("name".to_owned(), place.to_str().unwrap().into())]);
            Table::from_iter([("data".to_owned(), data.into())])
        };
        for (name, content) in [
            ("a/1", "one"),
            ("a/2", "two"),
            ("b/1", "three"),
            ("b/3", ""),
        ] {
            write(&format!("all/{name}"), content);
            write(&format!("parted/train/{name}"), content);
        }
        // The same name in another class, other content, and a file that the training had not.
        for (name, content) in [
            ("a/1", "one"),
            ("a/2", "TWO"),
            ("b/2", "two"),
            ("b/1", "three"),
        ] {
            write(&format!("fresh/{name}"), content);
            write(&format!("parts/test/{name}"), content);
        }
        let found = Copies {
            count: 2,
            compared: 4,
        };
        for learnt in ["all", "parted"] {
            for tested in ["fresh", "parts"] {
                let copies = Copies::find(&named(learnt), &named(tested));
                assert_eq!(copies.as_ref(), Some(&found), "{learnt}, {tested}");
            }
        }
        write("others/a/1", "another");
        assert_eq!(Copies::find(&named("all"), &named("others")), None);
        assert_eq!(Copies::find(&named("gone"), &named("fresh")), None);
        assert_eq!(Copies::find(&Table::new(), &named("fresh")), None);
    }

    #[test]
    fn files_are_compared_up_to_their_first_difference_and_no_longer_than_allowed() {
        let long = Instant::now() + Duration::from_secs(600);
        let same = |one: &[u8], other: &[u8]| have_same_bytes(one, other, long).unwrap();
        let whole = vec![7_u8; 2 * PIECE + 1];
        let mut changed = whole.clone();
        changed[2 * PIECE] = 8;
        assert_eq!(same(&whole, &whole), Some(true));
        assert_eq!(same(&whole, &changed), Some(false));
        assert_eq!(same(&whole, &whole[..PIECE]), Some(false));
        assert_eq!(same(&[], &[]), Some(true));
        // Neither has an end.
        let endless = |other: u8, until| have_same_bytes(io::repeat(7), io::repeat(other), until);
        assert_eq!(endless(8, long).unwrap(), Some(false));
        let soon = Instant::now() + Duration::from_millis(1);
        assert_eq!(endless(7, soon).unwrap(), None);
    }
}
