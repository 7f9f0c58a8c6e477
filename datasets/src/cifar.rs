//! CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from their binary archives.
//!
//! A record is one or two labels and 3 x 32 x 32 pixels: red, green, blue, row by row.

mod files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use self::files::{from_archive, from_folder};
use crate::error::damaged;
use crate::rgb_item::{checked_size, resized};
use crate::{DatasetError, RgbItem};

/// Rows and columns of an image.
const SIDE: usize = 32;

/// Bytes of an image.
const PIXELS: usize = 3 * SIDE * SIDE;

/// One of the two sets: what its archive holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CifarSet {
    /// Name in records and on the command line, and sub-folder of a data folder.
    pub(crate) name: &'static str,
    /// Name in prose.
    pub(crate) title: &'static str,
    /// The archive's file.
    pub(crate) archive: &'static str,
    /// SHA-256 of that, in hexadecimal, as TensorFlow Datasets publishes it.
    pub(crate) sha256: &'static str,
    /// URLs that end in `/`.
    pub(crate) mirrors: &'static [&'static str],
    train: &'static [&'static str],
    test: &'static str,
    /// The file of the classes' names.
    names: &'static str,
    classes: usize,
    /// Labels of a record, of which the last one is the class.
    labels: usize,
}

const MIRRORS: &[&str] = &["https://www.cs.toronto.edu/~kriz/"];

pub(crate) static CIFAR_10: CifarSet = CifarSet {
    name: "cifar10",
    title: "CIFAR-10",
    archive: "cifar-10-binary.tar.gz",
    sha256: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    mirrors: MIRRORS,
    train: &[
        "data_batch_1.bin",
        "data_batch_2.bin",
        "data_batch_3.bin",
        "data_batch_4.bin",
        "data_batch_5.bin",
    ],
    test: "test_batch.bin",
    names: "batches.meta.txt",
    classes: 10,
    labels: 1,
};

pub(crate) static CIFAR_100: CifarSet = CifarSet {
    name: "cifar100",
    title: "CIFAR-100",
    archive: "cifar-100-binary.tar.gz",
    sha256: "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    mirrors: MIRRORS,
    train: &["train.bin"],
    test: "test.bin",
    names: "fine_label_names.txt",
    classes: 100,
    labels: 2,
};

/// Images of 32 x 32 pixels in memory: those of CIFAR-10 or CIFAR-100, to train on or to test.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::Cifar;
///
/// // One record of each file: a label, and 3 x 32 x 32 pixels.
/// let folder = tempfile::tempdir()?;
/// for number in 1..=5 {
///     let record = [vec![number], vec![0; 3072]].concat();
///     std::fs::write(folder.path().join(format!("data_batch_{number}.bin")), record)?;
/// }
/// std::fs::write(folder.path().join("test_batch.bin"), vec![9; 3073])?;
///
/// let [train, test] = Cifar::open(folder.path(), [32, 32])?;
/// assert_eq!((train.len(), test.len(), test.classes().len()), (5, 1, 10));
/// assert_eq!(test.image(0)?.class, 9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cifar {
    set: &'static CifarSet,
    classes: Vec<String>,
    records: Vec<u8>,
    /// `train` or `test`.
    split: &'static str,
    size: [u32; 2],
}

impl Cifar {
    /// The training and the test set in an archive (`cifar-10-binary.tar.gz`, `cifar-100-binary.tar.gz`), or in the folder
    /// that it unpacks to, scaled to `size`: height and width, in pixels. All is read into memory; nothing is compared with
    /// what was published.
    ///
    /// # Errors
    /// [`DatasetError::Read`], and [`DatasetError::Data`] with the file if one is damaged or missing, or the size is zero
    /// or too large.
    pub fn open(path: impl AsRef<Path>, size: [usize; 2]) -> Result<[Self; 2], DatasetError> {
        let path = path.as_ref();
        let size = checked_size(path, size)?;
        match path.is_dir() {
            true => {
                let (set, folder) = set_in_folder(path).ok_or_else(|| {
                    let problem = format!("neither this nor {} is there", CIFAR_100.test);
                    damaged(path, CIFAR_10.test, problem)
                })?;
                set.parse(path, from_folder(&folder, set)?, size)
            }
            false => {
                let files = from_archive(path)?;
                if files.is_empty() {
                    let problem = "it has no file of CIFAR, whose archives alone are read compressed: unpack it, and name the \
                                   tar file or the folder";
                    return Err(damaged(path, "members", problem));
                }
                let set = match files.contains_key(CIFAR_100.test) {
                    true => &CIFAR_100,
                    false => &CIFAR_10,
                };
                set.parse(path, files, size)
            }
        }
    }

    /// The names of the classes, in the order of their numbers; the numbers where names are missing.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// `cifar10` or `cifar100`.
    pub fn name(&self) -> &'static str {
        self.set.name
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.records.len() / self.set.record()
    }

    /// Whether there are no images; [`open`](Self::open) refuses such a set.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// SHA-256 of all labels and images, in hexadecimal.
    pub fn fingerprint(&self) -> String {
        format!("{:x}", Sha256::digest(&self.records))
    }

    /// Image `index`.
    ///
    /// # Errors
    /// None today; images of other sets are read from files.
    ///
    /// # Panics
    /// Panics if `index >= len()`.
    pub fn image(&self, index: usize) -> Result<RgbItem, DatasetError> {
        let record = self.set.record();
        let record = &self.records[index * record..][..record];
        let (labels, pixels) = record.split_at(self.set.labels);
        let [height, width] = self.size;
        let (name, split) = (self.set.name, self.split);
        Ok(RgbItem {
            pixels: resized(pixels, [SIDE as u32; 2], self.size).into(),
            size: [height as usize, width as usize],
            file: PathBuf::from(format!("{name}/{split}/{index}")).into(),
            class: usize::from(labels[self.set.labels - 1]),
            mixed: None,
        })
    }
}

burn_set!(Cifar of RgbItem by image);

debug_by!(Cifar, it => name: it.set.name, split: it.split, len: it.len());

impl CifarSet {
    fn record(&self) -> usize {
        self.labels + PIXELS
    }

    /// The training and the test set of the files of an archive.
    fn parse(
        &'static self,
        path: &Path,
        mut files: BTreeMap<String, Vec<u8>>,
        size: [u32; 2],
    ) -> Result<[Cifar; 2], DatasetError> {
        let classes = self.class_names(path, files.remove(self.names))?;
        let mut part = |names: &[&str]| {
            let mut records: Vec<u8> = Vec::new();
            for name in names {
                let file = files.remove(*name).ok_or_else(|| {
                    let problem = format!("it is missing, and {} has it", self.title);
                    damaged(path, name, problem)
                })?;
                self.check(path, name, &file)?;
                match records.is_empty() {
                    true => records = file,
                    false => records.extend(file),
                }
            }
            Ok::<_, DatasetError>(records)
        };
        let (train, test) = (part(self.train)?, part(&[self.test])?);
        let set = |records, split, classes| Cifar {
            set: self,
            classes,
            records,
            split,
            size,
        };
        Ok([
            set(train, "train", classes.clone()),
            set(test, "test", classes),
        ])
    }

    fn check(&self, path: &Path, name: &str, file: &[u8]) -> Result<(), DatasetError> {
        let record = self.record();
        if file.is_empty() || !file.len().is_multiple_of(record) {
            let problem = format!(
                "{} bytes are no whole number of images of {record} bytes: it is cut off, or no file of {}",
                file.len(),
                self.title
            );
            return Err(damaged(path, name, problem));
        }
        let class = |record: &[u8]| usize::from(record[self.labels - 1]);
        let mut records = file.chunks(record).enumerate();
        match records.find(|(_, record)| class(record) >= self.classes) {
            None => Ok(()),
            Some((number, record)) => {
                let problem = format!(
                    "the label of image {number} is {}, and there are {} classes",
                    class(record),
                    self.classes
                );
                Err(damaged(path, name, problem))
            }
        }
    }

    fn class_names(
        &self,
        path: &Path,
        names: Option<Vec<u8>>,
    ) -> Result<Vec<String>, DatasetError> {
        let Some(names) = names else {
            return Ok((0..self.classes).map(|class| class.to_string()).collect());
        };
        let text = String::from_utf8(names);
        let text = text.map_err(|_| damaged(path, self.names, "it is not UTF-8"))?;
        let names: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        match names.len() == self.classes {
            true => Ok(names),
            false => {
                let problem = format!("{} names for {} classes", names.len(), self.classes);
                Err(damaged(path, self.names, problem))
            }
        }
    }
}

/// Whether this folder, or the one that an archive unpacks to in it, has the files of a set.
pub(crate) fn set_in_folder(folder: &Path) -> Option<(&'static CifarSet, PathBuf)> {
    let below = ["", "cifar-10-batches-bin", "cifar-100-binary"];
    let mut folders = below.iter().map(|name| folder.join(name));
    folders.find_map(|folder| {
        // CIFAR-100's names are common: both files are asked for.
        let has = |name: &&str| folder.join(name).is_file();
        if has(&CIFAR_10.test) && has(&CIFAR_10.train[0]) {
            Some((&CIFAR_10, folder))
        } else if has(&CIFAR_100.names) && has(&CIFAR_100.test) {
            Some((&CIFAR_100, folder))
        } else {
            None
        }
    })
}

/// A set whose pixels are of no interest, for tests.
#[cfg(test)]
pub(crate) mod writing {
    use std::io::Write;

    use everburn_tests::tar::archive;

    use super::*;

    /// An archive with `images` images in each file; the class of an image is its number.
    pub(crate) fn tiny(set: &CifarSet, images: usize) -> Vec<u8> {
        let record = |class: usize| {
            let mut record = vec![0; set.labels];
            record[set.labels - 1] = (class % set.classes) as u8;
            record.extend((0..PIXELS).map(|at| (at / 7 + class) as u8));
            record
        };
        let records: Vec<u8> = (0..images).flat_map(record).collect();
        let names: Vec<String> = (0..set.classes)
            .map(|class| format!("class{class}\n"))
            .collect();
        let names = names.concat();
        let folder = |name: &str| format!("cifar/{name}");
        let mut files: Vec<(String, &[u8])> = vec![(folder(set.names), names.as_bytes())];
        let parts = set.train.iter().chain([&set.test]);
        files.extend(parts.map(|name| (folder(name), records.as_slice())));
        let files: Vec<_> = files
            .iter()
            .map(|(name, content)| (name.as_str(), *content))
            .collect();
        gzip(&archive(&files))
    }

    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }
}

#[cfg(test)]
mod tests;
