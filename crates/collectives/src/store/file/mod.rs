//! A store in one file, in PyTorch's format, for ranks that share a file system.
//!
//! The file is a log without header. A record is `u32` key length, key, `u32` value length, value,
//! all native-endian; the last record of a key wins. User keys carry the prefix `/`; a record
//! `-/key` deletes `/key`. The counters `refcount/` and `cleanup/` (no slash in front) say how
//! many stores are open and how many were closed; who closes last removes the file.
//!
//! The file is the user's alone: who can write to it can take part in the job. It is made with mode
//! 0600, and one that belongs to another user, that others may read or write, or that is a symbolic
//! link is not used; see [`owner`].
//!
//! Each operation opens the file, takes `flock` (exclusive to write, shared to read), replays what
//! is new and closes it. A process killed while writing leaves a record cut short: readers stop
//! before it and the next writer cuts it off.

mod log;
mod owner;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use self::log::{Log, ReplayFault, Replayed};
use super::semantics::{self, CompareSet};
use super::{
    DEFAULT_STORE_TIMEOUT, Store, StoreError, check_key, check_keys, check_value, user_key,
};
use crate::sync::lock;

const REFCOUNT_KEY: &[u8] = b"refcount/";
const CLEANUP_KEY: &[u8] = b"cleanup/";

/// How often a waiting reader looks at the file, as in PyTorch.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How often a held lock is tried again: `flock` itself has no deadline.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);

/// How long closing may wait for the lock; a file that stays is better than a hang.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// A [`Store`] in a file that ranks of one or several processes share, PyTorch's included.
///
/// The file must be the user's alone, of mode 0600. PyTorch makes its files by the umask, so
/// that others may mostly read them; where PyTorch's ranks take part, start them with `umask 077`, or
/// make the empty file beforehand: `install -m 600 /dev/null PATH`.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::store::{FileStore, Store};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("store");
/// let store = FileStore::open(&path, Some(1))?;
/// store.set("address", b"127.0.0.1:29500")?;
/// assert_eq!(store.get("address")?, b"127.0.0.1:29500");
/// drop(store); // the last of 1 worker removes the file
/// assert!(!path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    workers: Option<usize>,
    timeout: Duration,
    /// Whether `refcount/` counts this store, so that closing must count it out.
    counted: bool,
    replayed: Mutex<Replayed>,
}

impl FileStore {
    /// Opens the store in `path`, making the file if need be, with [`DEFAULT_STORE_TIMEOUT`].
    ///
    /// With `workers`, the store that closes as the last of that many removes the file; without,
    /// the file stays.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] when the file cannot be opened or locked, is a symbolic link, or
    /// belongs to others or is open to them,
    /// [`StoreError::Protocol`] when it holds something else than a store.
    pub fn open(path: impl AsRef<Path>, workers: Option<usize>) -> Result<Self, StoreError> {
        Self::open_with_timeout(path, workers, DEFAULT_STORE_TIMEOUT)
    }

    /// [`FileStore::open`] with another deadline for operations that are given none.
    ///
    /// # Errors
    /// As [`FileStore::open`].
    pub fn open_with_timeout(
        path: impl AsRef<Path>,
        workers: Option<usize>,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let mut store = Self {
            path: path.as_ref().to_owned(),
            workers,
            timeout,
            counted: false,
            replayed: Mutex::default(),
        };
        if let Some(warning) = owner::warning_of_folder(&store.path) {
            tracing::warn!("{}: {warning}", store.address());
        }
        store.write("open", timeout, |log| log.add(REFCOUNT_KEY, 1))?;
        store.counted = true;
        Ok(store)
    }

    fn address(&self) -> String {
        format!("file://{}", self.path.display())
    }

    fn unreachable(&self, operation: &'static str, error: &io::Error) -> StoreError {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "; check that the folder exists",
            io::ErrorKind::PermissionDenied => "; check the permissions of the file and its folder",
            io::ErrorKind::StorageFull => "; the disk is full",
            _ if Errno::from_io_error(error) == Some(Errno::LOOP) => {
                "; a symbolic link is not followed: give the path of the file itself"
            }
            _ => "",
        };
        self.refused(operation, format!("{error}{hint}"))
    }

    fn refused(&self, operation: &'static str, reason: String) -> StoreError {
        StoreError::Unreachable {
            address: self.address(),
            operation,
            reason,
        }
    }

    /// Opens and locks the file; `None` where a reader finds no file.
    fn lock(
        &self,
        operation: &'static str,
        exclusive: bool,
        deadline: Duration,
    ) -> Result<Option<File>, StoreError> {
        let start = Instant::now();
        let how = if exclusive {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        };
        loop {
            let file = match owner::open(&self.path, exclusive) {
                Ok(file) => file,
                Err(error) if !exclusive && error.kind() == io::ErrorKind::NotFound => {
                    return Ok(None);
                }
                Err(error) => return Err(self.unreachable(operation, &error)),
            };
            let metadata = file.metadata();
            let metadata = metadata.map_err(|error| self.unreachable(operation, &error))?;
            owner::check_file(&metadata).map_err(|reason| self.refused(operation, reason))?;
            loop {
                match flock(&file, how) {
                    Ok(()) => break,
                    Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < deadline => {
                        std::thread::sleep(LOCK_INTERVAL);
                    }
                    Err(Errno::WOULDBLOCK | Errno::INTR) => {
                        let held = start.elapsed();
                        let reason = format!(
                            "another process has held the file's lock for {held:?}; check for a stopped rank"
                        );
                        return Err(self.refused(operation, reason));
                    }
                    Err(error) => return Err(self.unreachable(operation, &error.into())),
                }
            }
            let metadata = file.metadata();
            let metadata = metadata.map_err(|error| self.unreachable(operation, &error))?;
            // Who held the lock before may have removed the file: take the new one then.
            if metadata.nlink() > 0 {
                return Ok(Some(file));
            }
        }
    }

    fn read<R>(
        &self,
        operation: &'static str,
        deadline: Duration,
        look: impl FnOnce(&HashMap<Vec<u8>, Vec<u8>>) -> R,
    ) -> Result<R, StoreError> {
        let mut replayed = lock(&self.replayed);
        match self.lock(operation, false, deadline)? {
            Some(file) => self.replay(operation, &mut replayed, &file)?,
            None => *replayed = Replayed::default(),
        }
        Ok(look(&replayed.values))
    }

    fn write<R>(
        &self,
        operation: &'static str,
        deadline: Duration,
        change: impl FnOnce(&mut Log<'_>) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let mut replayed = lock(&self.replayed);
        // A writer makes the file, so it is always there.
        let Some(file) = self.lock(operation, true, deadline)? else {
            return Err(self.unreachable(operation, &io::ErrorKind::NotFound.into()));
        };
        self.replay(operation, &mut replayed, &file)?;
        change(&mut Log::new(self, operation, &file, &mut replayed))
    }

    fn replay(
        &self,
        operation: &'static str,
        replayed: &mut Replayed,
        file: &File,
    ) -> Result<(), StoreError> {
        replayed.catch_up(file).map_err(|fault| match fault {
            ReplayFault::Io(error) => self.unreachable(operation, &error),
            ReplayFault::Foreign => StoreError::Protocol {
                address: self.address(),
                reason:
                    "the file does not hold a store; give the path of a file that does not exist"
                        .into(),
            },
        })
    }

    fn wait_for<R>(
        &self,
        operation: &'static str,
        keys: &[&str],
        deadline: Duration,
        look: impl Fn(&HashMap<Vec<u8>, Vec<u8>>) -> R,
    ) -> Result<R, StoreError> {
        check_keys(operation, keys)?;
        let start = Instant::now();
        let wanted: Vec<Vec<u8>> = keys.iter().map(|key| user_key(key)).collect();
        loop {
            let left = deadline.saturating_sub(start.elapsed());
            let (missing, found) = self.read(operation, left, |values| {
                let absent = |index: &usize| !values.contains_key(&wanted[*index]);
                let missing: Vec<usize> = (0..wanted.len()).filter(absent).collect();
                let found = missing.is_empty().then(|| look(values));
                (missing, found)
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
            let left = deadline.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(StoreError::Timeout {
                    operation,
                    keys: missing.iter().map(|&i| keys[i].to_owned()).collect(),
                    waited: start.elapsed(),
                });
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    /// Counts this store out and removes the file if it was the last; see the module's text.
    fn close(&self) -> Result<(), StoreError> {
        if !self.path.exists() {
            return Ok(());
        }
        self.write("close", CLOSE_DEADLINE, |log| {
            let closed = log.add(CLEANUP_KEY, 1)?;
            let open = log.add(REFCOUNT_KEY, -1)?;
            let Some(workers) = self.workers else {
                return Ok(());
            };
            if open == 0 && u64::try_from(closed).is_ok_and(|closed| closed >= workers as u64) {
                std::fs::remove_file(&self.path)
                    .map_err(|error| self.unreachable("close", &error))?;
            }
            Ok(())
        })
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        if let Err(error) = self.close() {
            tracing::warn!("closing a file store: {error}");
        }
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        check_key("set", key)?;
        check_value("set", key, value)?;
        self.write("set", self.timeout, |log| log.set(&user_key(key), value))
    }

    fn get_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        let wanted = user_key(key);
        self.wait_for("get", &[key], deadline, |values| {
            values.get(&wanted).cloned().unwrap_or_default()
        })
    }

    fn try_get_many(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.read("try_get", self.timeout, |values| {
            let found = keys.iter().map(|key| values.get(&user_key(key)).cloned());
            found.collect()
        })
    }

    fn wait_within(&self, keys: &[&str], deadline: Duration) -> Result<(), StoreError> {
        self.wait_for("wait", keys, deadline, |_| ())
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        self.add_within(key, amount, self.timeout)
    }

    fn add_within(&self, key: &str, amount: i64, limit: Duration) -> Result<i64, StoreError> {
        check_key("add", key)?;
        self.write("add", limit, |log| log.add(&user_key(key), amount))
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        check_key("compare_set", key)?;
        check_value("compare_set", key, desired)?;
        let key = user_key(key);
        self.write("compare_set", self.timeout, |log| {
            let current = log.get(&key);
            match semantics::compare_set(current, expected) {
                CompareSet::Store => {
                    log.set(&key, desired)?;
                    Ok(desired.to_vec())
                }
                CompareSet::Return(value) => Ok(value.to_vec()),
            }
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.read("check", self.timeout, |values| {
            keys.iter().all(|key| values.contains_key(&user_key(key)))
        })
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        self.write("delete", self.timeout, |log| log.delete(&user_key(key)))
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        // Without the store's own two counters.
        self.read("num_keys", self.timeout, |values| {
            values.keys().filter(|key| key.starts_with(b"/")).count() as u64
        })
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}
