//! The records of a file store: replaying them and appending to them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::FileStore;
use crate::store::{MAX_VALUE_BYTES, StoreError, semantics};

/// Beyond these lengths a record is taken for the content of some other file, which is then left
/// untouched. PyTorch sets no bound of its own here, hence the room above our own limits.
const MAX_RECORD_KEY: u64 = 1 << 20;
const MAX_RECORD_VALUE: u64 = 8 * MAX_VALUE_BYTES as u64;

/// Why a file could not be replayed.
#[derive(Debug)]
pub(super) enum ReplayFault {
    Io(io::Error),
    /// A length that no store writes: this is some other file.
    Foreign,
}

impl From<io::Error> for ReplayFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What has been read of the file so far.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) values: HashMap<Vec<u8>, Vec<u8>>,
    /// Just after the last whole record.
    offset: u64,
    /// Device and inode, to notice when the file was removed and made anew.
    identity: (u64, u64),
}

impl Replayed {
    /// Reads the whole records after `offset`; the file must be locked.
    pub(super) fn catch_up(&mut self, file: &File) -> Result<(), ReplayFault> {
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        if identity != self.identity || metadata.len() < self.offset {
            *self = Self {
                identity,
                ..Self::default()
            };
        }
        let new = usize::try_from(metadata.len() - self.offset).unwrap_or(usize::MAX);
        if new == 0 {
            return Ok(());
        }
        // The first length is judged before the rest is read, so a huge foreign file costs nothing.
        let mut head = vec![0; new.min(4)];
        file.read_exact_at(&mut head, self.offset)?;
        Records { rest: &head }.length(MAX_RECORD_KEY)?;
        let mut bytes = vec![0; new];
        file.read_exact_at(&mut bytes, self.offset)?;
        let mut records = Records { rest: &bytes };
        while let Some((key, value)) = records.next()? {
            match key.strip_prefix(b"-") {
                Some(deleted) => drop(self.values.remove(deleted)),
                None => drop(self.values.insert(key.to_vec(), value.to_vec())),
            }
            self.offset += (8 + key.len() + value.len()) as u64;
        }
        Ok(())
    }
}

/// The file while it is locked for writing and wholly replayed.
pub(super) struct Log<'a> {
    store: &'a FileStore,
    operation: &'static str,
    file: &'a File,
    replayed: &'a mut Replayed,
}

impl<'a> Log<'a> {
    pub(super) fn new(
        store: &'a FileStore,
        operation: &'static str,
        file: &'a File,
        replayed: &'a mut Replayed,
    ) -> Self {
        Self {
            store,
            operation,
            file,
            replayed,
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.replayed.values.get(key).map(Vec::as_slice)
    }

    /// Appends one record, in one write, after the last whole record.
    fn append(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let mut record = Vec::with_capacity(8 + key.len() + value.len());
        for part in [key, value] {
            let length = u32::try_from(part.len()).map_err(|_| StoreError::Invalid {
                operation: self.operation,
                reason: format!("{} bytes do not fit in a record", part.len()),
            })?;
            record.extend_from_slice(&length.to_ne_bytes());
            record.extend_from_slice(part);
        }
        let end = self.replayed.offset;
        let written = (|| {
            // A record that a killed writer left unfinished would swallow the start of the next one.
            if self.file.metadata()?.len() > end {
                self.file.set_len(end)?;
            }
            self.file.write_all_at(&record, end)
        })();
        if let Err(error) = written {
            // Best effort: readers tolerate what may be left of the record.
            let _ = self.file.set_len(end);
            return Err(self.store.unreachable(self.operation, &error));
        }
        self.replayed.offset += record.len() as u64;
        Ok(())
    }

    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.append(key, value)?;
        self.replayed.values.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    pub(super) fn add(&mut self, key: &[u8], amount: i64) -> Result<i64, StoreError> {
        let sum = semantics::counter_after(self.get(key), amount).map_err(|fault| {
            let shown = String::from_utf8_lossy(key.strip_prefix(b"/").unwrap_or(key));
            fault.into_error(&shown, amount)
        })?;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        if !self.replayed.values.contains_key(key) {
            return Ok(false);
        }
        self.append(&[b"-", key].concat(), b"")?;
        self.replayed.values.remove(key);
        Ok(true)
    }
}

/// Key and value.
type Record<'a> = (&'a [u8], &'a [u8]);

/// Whole records at the start of `rest`.
struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    fn length(&mut self, limit: u64) -> Result<Option<usize>, ReplayFault> {
        let Some((length, rest)) = self.rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        self.rest = rest;
        let length = u32::from_ne_bytes(*length);
        if u64::from(length) > limit {
            return Err(ReplayFault::Foreign);
        }
        Ok(Some(length as usize))
    }

    fn part(&mut self, limit: u64) -> Result<Option<&'a [u8]>, ReplayFault> {
        let Some(length) = self.length(limit)? else {
            return Ok(None);
        };
        let Some((part, rest)) = self.rest.split_at_checked(length) else {
            return Ok(None);
        };
        self.rest = rest;
        Ok(Some(part))
    }

    fn next(&mut self) -> Result<Option<Record<'a>>, ReplayFault> {
        let Some(key) = self.part(MAX_RECORD_KEY)? else {
            return Ok(None);
        };
        Ok(self.part(MAX_RECORD_VALUE)?.map(|value| (key, value)))
    }
}
