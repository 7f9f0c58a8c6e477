//! Samples in tar files (WebDataset's shards), read by their numbers.
//!
//! A WebDataset is usually read from front to back, through a buffer that shuffles. Here the headers are read once, which
//! seeks over the contents, and each sample is then read where it is. So the order is that of the sampler: shuffled over all
//! shards, dealt to any number of ranks, and resumed at the exact sample.
//!
//! The index has about 100 bytes per file of a shard, which itself has 512 or more.

mod images;
mod pattern;
mod remote;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use self::images::TarImages;
pub(crate) use self::pattern::{TarFiles, is_pattern, is_tar};
use self::remote::{Patience, RemoteFile};
use crate::DatasetError;
use crate::error::{damaged, unreadable};
use crate::tar::{Members, Skip};
use crate::url::{check_url, is_url};

/// The largest file of a sample that is read, in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// The largest file of a sample that the index of a shard on a server keeps: a class would else be a request of its own.
const SMALL: u64 = 64;

/// Tar files whose members are samples: consecutive files of one name up to the first dot belong together, as
/// `000.jpg` and `000.cls`. A file is a path, or an address that begins with `http://` or `https://`, whose server answers
/// ranges.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::TarShards;
/// # use everburn_tests::tar::member;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("shard-0.tar");
/// std::fs::write(&path, [member("000.txt", b"roses"), member("000.cls", b"1"), member("001.txt", b"are")].concat())?;
///
/// let shards = TarShards::open(&[path])?;
/// assert_eq!(shards.len(), 2);
/// assert_eq!(shards.read(0, "cls")?.as_deref(), Some(b"1".as_slice()));
/// let sample = shards.sample(1)?;
/// assert_eq!((sample.key.as_str(), &sample.files["txt"][..]), ("001", b"are".as_slice()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "WebDataset")]
pub struct TarShards {
    shards: Vec<Shard>,
    /// The different extensions.
    extensions: Vec<String>,
    samples: Vec<Sample>,
    parts: Vec<Part>,
    /// The contents of small parts of shards on a server.
    small: BTreeMap<usize, Box<[u8]>>,
    fingerprint: String,
}

struct Shard {
    path: Arc<Path>,
    /// Absent of a file on a disk.
    remote: Option<RemoteFile>,
}

struct Sample {
    key: Box<str>,
    /// The number of its file.
    shard: u32,
    /// Its first part; the next sample begins after its last one.
    first: usize,
}

/// A file of a sample.
struct Part {
    /// The number of its extension.
    extension: u32,
    offset: u64,
    size: u64,
}

/// A sample of [`TarShards`].
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::TarSample;
///
/// fn bytes(sample: &TarSample) -> usize {
///     sample.files.values().map(|content| content.len()).sum()
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarSample {
    /// The name of its files up to the first dot, with their folder.
    pub key: String,
    /// The contents of its files, by extension in lower case.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl TarShards {
    /// The samples of these files, in their order. Of files, only headers are read; a shard on a server is read once from
    /// front to back, but for what is large.
    ///
    /// # Errors
    /// [`DatasetError::Read`], with what a server answered; [`DatasetError::Data`] with the file and the place of a header that
    /// is damaged, with an address that is none, or with the sample that has two files of one extension, or if there are no
    /// samples.
    pub fn open(files: &[PathBuf]) -> Result<Self, DatasetError> {
        Self::open_with(files, Patience::USUAL)
    }

    fn open_with(files: &[PathBuf], patience: Patience) -> Result<Self, DatasetError> {
        let mut this = Self {
            shards: opened(files, patience)?,
            extensions: Vec::new(),
            samples: Vec::new(),
            parts: Vec::new(),
            small: BTreeMap::new(),
            fingerprint: String::new(),
        };
        let mut hash = Sha256::new();
        let mut numbers = BTreeMap::new();
        // Aside, as the index is being changed.
        let shards = std::mem::take(&mut this.shards);
        for (number, Shard { path, remote }) in shards.iter().enumerate() {
            let number = number as u32;
            match remote {
                None => {
                    let members = Members::open(path)?;
                    this.index(number, path, members, false, &mut numbers, &mut hash)?;
                }
                Some(remote) => {
                    let members = Members::of_length(remote.reader(), path, remote.length());
                    this.index(number, path, members, true, &mut numbers, &mut hash)?;
                }
            }
        }
        this.shards = shards;
        if this.samples.is_empty() {
            let path = files.first().map_or(Path::new("no file"), PathBuf::as_path);
            let problem = "there are no files in it: expected samples such as 000.jpg and 000.cls";
            return Err(damaged(path, "members", problem));
        }
        this.fingerprint = format!("{:x}", hash.finalize());
        Ok(this)
    }

    /// Adds the samples of one file.
    fn index<R: Skip>(
        &mut self,
        shard: u32,
        file: &Path,
        mut members: Members<R>,
        keep_small: bool,
        numbers: &mut BTreeMap<String, u32>,
        hash: &mut Sha256,
    ) -> Result<(), DatasetError> {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        hash.update(format!("{name}\n"));
        let begin = self.samples.len();
        let mut seen = BTreeSet::new();
        while let Some(member) = members.next()? {
            let Some((key, extension)) = key_and_extension(&member.name) else {
                continue;
            };
            hash.update(format!("{} {}\n", member.name, member.size));
            let last = self.samples[begin..].last();
            if last.is_none_or(|last| *last.key != *key) {
                seen.clear();
                self.samples.push(Sample {
                    key: key.into(),
                    shard,
                    first: self.parts.len(),
                });
            }
            let known = numbers.len() as u32;
            // Cameras write `.JPG`.
            let extension = extension.to_lowercase();
            let number = *numbers.entry(extension.clone()).or_insert_with(|| {
                self.extensions.push(extension.clone());
                known
            });
            if !seen.insert(number) {
                let problem = format!("the sample has two files `.{extension}`");
                return Err(damaged(file, &member.name, problem));
            }
            if keep_small && member.size <= SMALL {
                let content = members.content(&member, SMALL)?;
                self.small.insert(self.parts.len(), content.into());
            }
            self.parts.push(Part {
                extension: number,
                offset: member.offset,
                size: member.size,
            });
        }
        Ok(())
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are no samples; [`open`](Self::open) refuses such files.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The number of files.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The name of a sample.
    ///
    /// # Panics
    /// Panics if `index >= len()`.
    pub fn key(&self, index: usize) -> &str {
        &self.samples[index].key
    }

    /// SHA-256 of the names of shards and of their members, and of the members' lengths, in hexadecimal. Contents are not
    /// read.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The extensions of a sample's files, in lower case.
    ///
    /// # Panics
    /// Panics if `index >= len()`.
    pub fn extensions(&self, index: usize) -> impl Iterator<Item = &str> {
        let parts = self.parts(index).iter();
        parts.map(|part| self.extensions[part.extension as usize].as_str())
    }

    /// The content of the sample's file with this extension, in lower case; `None` if it has none.
    ///
    /// # Errors
    /// [`DatasetError::Data`] with the file and the sample, if it is too large or cut off since the shards were opened.
    ///
    /// # Panics
    /// Panics if `index >= len()`.
    pub fn read(&self, index: usize, extension: &str) -> Result<Option<Vec<u8>>, DatasetError> {
        let has = |part: &Part| self.extensions[part.extension as usize] == extension;
        let part = self.parts(index).iter().position(has);
        part.map(|part| self.content(index, part)).transpose()
    }

    /// All files of a sample.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Panics
    /// Panics if `index >= len()`.
    pub fn sample(&self, index: usize) -> Result<TarSample, DatasetError> {
        let files = self.parts(index).iter().enumerate().map(|(number, part)| {
            let extension = self.extensions[part.extension as usize].clone();
            Ok((extension, self.content(index, number)?))
        });
        Ok(TarSample {
            key: self.key(index).to_owned(),
            files: files.collect::<Result<_, DatasetError>>()?,
        })
    }

    /// The shard and the key of a sample, for errors and names.
    fn place(&self, index: usize) -> (&Arc<Path>, &str) {
        let sample = &self.samples[index];
        (&self.shards[sample.shard as usize].path, &sample.key)
    }

    fn parts(&self, index: usize) -> &[Part] {
        let next = self.samples.get(index + 1);
        let end = next.map_or(self.parts.len(), |next| next.first);
        &self.parts[self.samples[index].first..end]
    }

    /// The content of one of the sample's parts.
    fn content(&self, index: usize, number: usize) -> Result<Vec<u8>, DatasetError> {
        let Sample { key, shard, first } = &self.samples[index];
        if let Some(content) = self.small.get(&(first + number)) {
            return Ok(content.to_vec());
        }
        let part = &self.parts[first + number];
        let Shard { path, remote } = &self.shards[*shard as usize];
        let field = || format!("{key}.{}", self.extensions[part.extension as usize]);
        if part.size > MOST_BYTES {
            let problem = format!(
                "{} bytes are more than the {MOST_BYTES} that are read",
                part.size
            );
            return Err(damaged(path, &field(), problem));
        }
        if let Some(remote) = remote {
            let content = remote.read(part.offset, part.size);
            return content.map_err(|source| unreadable(path, source));
        }
        let opened = File::open(path).map_err(|source| unreadable(path, source))?;
        // Its length was compared with the file's when the header was read.
        let mut content = vec![0; part.size as usize];
        let read = opened.read_exact_at(&mut content, part.offset);
        read.map_err(|source| damaged(path, &field(), source.to_string()))?;
        Ok(content)
    }
}

burn_set!(TarShards of TarSample by sample);

debug_by!(TarShards, it => files: it.shards.len(), samples: it.samples.len());

/// The files, and what their servers say of those that are addresses.
fn opened(files: &[PathBuf], patience: Patience) -> Result<Vec<Shard>, DatasetError> {
    let https = |file: &PathBuf| {
        let begin = file.to_string_lossy().to_ascii_lowercase();
        !is_url(file) || begin.starts_with("https:")
    };
    let agent = remote::agent(&patience, files.iter().all(https));
    let shards = files.iter().map(|file| {
        let remote = match is_url(file) {
            false => None,
            true => {
                let opened = RemoteFile::open(&agent, patience, check_url(file)?);
                Some(opened.map_err(|source| unreadable(file, source))?)
            }
        };
        Ok(Shard {
            path: file.as_path().into(),
            remote,
        })
    });
    shards.collect()
}

/// The name of a member up to the first dot of its last part, and what follows the dot; `None` of hidden files and of
/// names without a dot.
fn key_and_extension(name: &str) -> Option<(&str, &str)> {
    let name = name.trim_start_matches("./");
    let begin = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = begin + name[begin..].find('.')?;
    (dot > begin).then(|| (&name[..dot], &name[dot + 1..]))
}

#[cfg(test)]
mod tests;
