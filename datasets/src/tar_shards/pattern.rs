//! Which tar files a path names: a file, a folder, or a pattern.

use std::path::{Path, PathBuf};

use crate::DatasetError;
use crate::error::damaged;
use crate::files::names;
use crate::token_shards::is_held_out;
use crate::url::{check_url, is_url};

/// The most files that a range in a pattern may name.
const MOST_FILES: u64 = 1_000_000;

/// What a pattern in braces must be.
const NO_RANGE: &str = "braces take a range of two numbers, as {000..099}: of other names, give the folder, or a pattern with `*`";

/// Tar files, in the order of their names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TarFiles {
    /// Those to train on.
    pub(crate) train: Vec<PathBuf>,
    /// Those with `val`, `valid`, `validation` or `test` as a word of their name.
    pub(crate) held_out: Vec<PathBuf>,
}

impl TarFiles {
    /// The files that `path` names. The last part of a pattern may have `*`, `?`, and a range such as `{000..099}`; that of an
    /// address only a range.
    ///
    /// # Errors
    /// [`DatasetError::Read`] if a folder cannot be listed, [`DatasetError::Data`] if there are no files to train on.
    pub(crate) fn find(path: &Path) -> Result<Self, DatasetError> {
        if is_url(path) {
            check_url(path)?;
        }
        let files = match path {
            path if path.is_dir() => listed(path, is_tar)?,
            path if is_pattern(path) => matching(path)?,
            path => vec![path.to_owned()],
        };
        let (held_out, train): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| is_held_out(file));
        if train.is_empty() {
            let problem = match held_out.is_empty() {
                true => "there are none here",
                false => "all here are held out, by their names",
            };
            return Err(damaged(path, "tar files to train on", problem));
        }
        Ok(Self { train, held_out })
    }
}

/// Whether a path names several files by a pattern, and no file has this very name.
pub(crate) fn is_pattern(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.contains(['*', '?', '{']) && is_tar(&name) && !path.exists()
}

pub(crate) fn is_tar(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".tar")
}

fn listed(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, DatasetError> {
    let of_files = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_file() && name.is_some_and(&wanted)
    };
    let names = names(folder, of_files)?;
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn matching(path: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let pattern = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let refused = |problem: &str| damaged(path, &format!("the pattern {pattern}"), problem);
    let Some((before, first, last, after)) = range(&pattern) else {
        if is_url(path) || pattern.contains('{') {
            return Err(refused(NO_RANGE));
        }
        return listed(folder, |name| matches(pattern.as_bytes(), name.as_bytes()));
    };
    let digits = first.len();
    let number = |text: &str| text.parse::<u64>().ok();
    let (Some(from), Some(to)) = (number(first), number(last)) else {
        return Err(refused(NO_RANGE));
    };
    if from > to || to - from >= MOST_FILES {
        return Err(refused("a range goes up, to a million files at most"));
    }
    // Each must be there: a shard that is missing is not left out in silence.
    let file = |number| folder.join(format!("{before}{number:0digits$}{after}"));
    Ok((from..=to).map(file).collect())
}

/// What is before, in, and after a range `{first..last}`.
fn range(pattern: &str) -> Option<(&str, &str, &str, &str)> {
    let (before, rest) = pattern.split_once('{')?;
    let (range, after) = rest.split_once('}')?;
    let (first, last) = range.split_once("..")?;
    Some((before, first, last, after))
}

/// Whether a name matches a pattern of `*` (any characters) and `?` (one byte). Linear memory, and at most the product of
/// both lengths in time.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // The last `*`, and the place in the name that what follows it was last compared with.
    let mut star = None;
    while place < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[place] => {
                at += 1;
                place += 1;
            }
            _ => match star {
                None => return false,
                Some((begin, compared)) => {
                    star = Some((begin, compared + 1));
                    at = begin + 1;
                    place = compared + 1;
                }
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_a_shell_does() {
        for (pattern, name, expected) in [
            ("*.tar", "a.tar", true),
            ("*.tar", "a.tar.gz", false),
            ("train-*-?.tar", "train-a-b-1.tar", true),
            ("train-*-?.tar", "train-a-b-12.tar", false),
            ("a*a*a.tar", "aaaa.tar", true),
            ("?.tar", ".tar", false),
            ("*", "", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn an_address_has_a_range_too() {
        let find = |name: &str| TarFiles::find(Path::new(name));
        let text = |files: Vec<PathBuf>| files.into_iter().map(|file| file.display().to_string());
        let found = find("https://h.org/b-{08..10}.tar").unwrap();
        let expected = ["08", "09", "10"].map(|number| format!("https://h.org/b-{number}.tar"));
        assert_eq!(text(found.train).collect::<Vec<_>>(), expected);
        let one = find("http://h.org/c/a.tar").unwrap();
        assert_eq!(
            text(one.train).collect::<Vec<_>>(),
            ["http://h.org/c/a.tar"]
        );
        for (url, problem) in [
            ("https://h.org/b-{0,1}.tar", "a range of two numbers"),
            ("https://h.org/b-*.tar", "a server lists no files"),
            ("https://h.org/val-0.tar", "held out"),
        ] {
            let error = find(url).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains(url), "{error}");
        }
    }

    #[test]
    fn a_path_names_files_to_train_on_and_files_held_out() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b-1.tar", "b-0.tar", "b-val-0.tar", "notes.txt", ".x.tar"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let find = |name: &str| TarFiles::find(&folder.path().join(name));
        let paths = |names: &[&str]| {
            names
                .iter()
                .map(|name| folder.path().join(name))
                .collect::<Vec<_>>()
        };
        for path in ["", "*.tar"] {
            let found = find(path).unwrap();
            assert_eq!(found.train, paths(&["b-0.tar", "b-1.tar"]), "{path}");
            assert_eq!(found.held_out, paths(&["b-val-0.tar"]), "{path}");
        }
        assert_eq!(
            find("b-{0..2}.tar").unwrap().train,
            paths(&["b-0.tar", "b-1.tar", "b-2.tar"])
        );
        assert_eq!(
            find("b-{008..011}.tar").unwrap().train[2],
            folder.path().join("b-010.tar")
        );
        for (pattern, problem) in [
            ("c*.tar", "there are none here"),
            ("b-{1..x}.tar", "two numbers"),
            (
                "b-{train,val}.tar",
                "give the folder, or a pattern with `*`",
            ),
            ("b-{0..99999999999}.tar", "a million"),
            ("b-{2..1}.tar", "goes up"),
        ] {
            let error = find(pattern).unwrap_err().to_string();
            assert!(
                error.contains(problem) && error.contains(pattern),
                "{error}"
            );
        }
    }
}
