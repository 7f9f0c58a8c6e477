//! The files of a set, in an archive or in a folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use flate2::read::GzDecoder;

use super::{CIFAR_10, CIFAR_100, CifarSet, PIXELS};
use crate::DatasetError;
use crate::error::unreadable;
use crate::files::read_if_there;
use crate::tar::{Members, Unseekable};

/// The most bytes of a file in an archive: all training images of CIFAR-100 with both labels.
const MOST_BYTES: u64 = 50_000 * (PIXELS as u64 + 2);

/// The most bytes of a list of names.
const MOST_NAMES: u64 = 64 << 10;

/// The most bytes of a file with this name; `None` of files that are not read.
fn most_bytes(name: &str) -> Option<u64> {
    [&CIFAR_10, &CIFAR_100].into_iter().find_map(|set| {
        if set.train.contains(&name) || set.test == name {
            Some(MOST_BYTES)
        } else {
            (set.names == name).then_some(MOST_NAMES)
        }
    })
}

/// The files of an archive, compressed or not, by name.
pub(super) fn from_archive(path: &Path) -> Result<BTreeMap<String, Vec<u8>>, DatasetError> {
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    let mut files = BTreeMap::new();
    let mut members = Members::of(Unseekable(GzDecoder::new(BufReader::new(file))), path);
    while let Some(member) = members.next()? {
        let name = member
            .name
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        if let Some(most) = most_bytes(&name) {
            files.insert(name, members.content(&member, most)?);
        }
    }
    Ok(files)
}

pub(super) fn from_folder(
    folder: &Path,
    set: &CifarSet,
) -> Result<BTreeMap<String, Vec<u8>>, DatasetError> {
    let names = set.train.iter().chain([&set.test, &set.names]);
    let mut files = BTreeMap::new();
    for name in names {
        let most = most_bytes(name).unwrap_or(MOST_BYTES);
        // One that is not there is named as missing, if it is needed.
        if let Some(content) = read_if_there(&folder.join(name), most)? {
            files.insert((*name).to_owned(), content);
        }
    }
    Ok(files)
}
