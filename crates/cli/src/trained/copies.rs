//! Files that are tested and that the training had, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toml::Table;

use super::settings::place_of_data;

/// How long files are compared, at most.
const LONGEST: Duration = Duration::from_secs(5);

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
        for class in entries(&tested) {
            for file in entries(&class) {
                let Ok(of_class) = file.strip_prefix(&tested) else {
                    continue;
                };
                if Instant::now() > until || !file.is_file() {
                    continue;
                }
                copies.compared += 1;
                copies.count += usize::from(is_same(&file, &learnt.join(of_class)));
            }
        }
        (copies.count > 0).then_some(copies)
    }
}

/// What is in a folder, but for hidden files; nothing where that is none.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    entries.map(|entry| entry.path()).collect()
}

/// Whether two files have the same bytes.
fn is_same(one: &Path, other: &Path) -> bool {
    let length = |file: &Path| {
        let metadata = fs::metadata(file).ok()?;
        metadata.is_file().then_some(metadata.len())
    };
    let bytes = |file: &Path| fs::read(file).ok();
    length(one).is_some_and(|of_one| length(other) == Some(of_one))
        && bytes(one).is_some_and(|of_one| bytes(other) == Some(of_one))
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
}
