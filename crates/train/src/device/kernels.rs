//! The kernels of a GPU: generated, compiled and tuned while a program runs, and kept for the next one.
//!
//! CubeCL keeps all that in a database, one for each process that runs at the same time. Here is said where it is, and
//! seen how much there is to do.

use std::path::{Path, PathBuf};

/// Where what is compiled and tuned is kept.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{KernelCache, keep_kernels};
///
/// let folder = std::env::temp_dir().join("everburn-example-kernels");
/// match keep_kernels(&folder) {
///     KernelCache::Folder(kept) => assert_eq!(kept, folder),
///     KernelCache::Configured(file) => println!("as {} has it", file.display()),
///     KernelCache::Nowhere(why) => println!("{why}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelCache {
    /// In this folder.
    Folder(PathBuf),
    /// Where CubeCL's own configuration file says, which counts first.
    Configured(PathBuf),
    /// Nowhere, and why.
    Nowhere(String),
}

impl std::fmt::Display for KernelCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "kept in {} for the next time", folder.display()),
            Self::Configured(file) => write!(f, "kept as {} says", file.display()),
            Self::Nowhere(why) => write!(f, "not kept: {why}"),
        }
    }
}

/// Has all kernels of this process be kept in `folder`, and read from there. To be called before anything is
/// done on a GPU. Processes may share a folder: each takes a database there that no other uses.
#[cfg(feature = "gpu")]
pub fn keep_kernels(folder: &Path) -> KernelCache {
    use burn::cubecl::config::cache::CacheConfig;
    use burn::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

    let here = std::env::current_dir();
    if let Some(file) = here.ok().and_then(|here| configuration_above(&here)) {
        return KernelCache::Configured(file);
    }
    if let Err(error) = std::fs::create_dir_all(folder) {
        return KernelCache::Nowhere(format!("{} cannot be made: {error}", folder.display()));
    }
    /// For as long as this process lives.
    static HELD: std::sync::Mutex<Vec<(std::fs::File, turso::Database)>> =
        std::sync::Mutex::new(Vec::new());
    let taken = take_database(folder).and_then(|(name, lock)| {
        let database = open_database(&folder.join(format!("{name}.db")))?;
        Ok((name, (lock, database)))
    });
    let (name, held) = match taken {
        Ok(taken) => taken,
        Err(error) => {
            return KernelCache::Nowhere(format!("{} cannot be used: {error}", folder.display()));
        }
    };
    let mut config = CubeClRuntimeConfig::default();
    config.compilation.cache = true;
    config.environment.path = CacheConfig::Directory(folder.to_path_buf());
    config.environment.name = name;
    // Variables of CubeCL still win, as they do over its files.
    match CubeClRuntimeConfig::try_set(config.override_from_env()) {
        true => {
            let mut all = HELD
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            all.push(held);
            KernelCache::Folder(folder.to_path_buf())
        }
        false => KernelCache::Nowhere("CubeCL was set up before".to_string()),
    }
}

/// This program generates no kernels.
#[cfg(not(feature = "gpu"))]
pub fn keep_kernels(_folder: &Path) -> KernelCache {
    KernelCache::Nowhere("this program was built for no GPUs".to_string())
}

/// Opens the database of kernels for this process alone, before CubeCL does. CubeCL asks turso for a database that
/// processes share; of such a one, a connection that is opened ends the transactions of other threads, which then panic
/// (<https://github.com/tursodatabase/turso/pull/8851>). turso has one object for each file in a process, with the
/// settings of the first to open it: so CubeCL takes this one.
#[cfg(feature = "gpu")]
fn open_database(file: &Path) -> std::io::Result<turso::Database> {
    let path = file
        .to_str()
        .ok_or_else(|| std::io::Error::other("its path is not valid UTF-8"))?;
    burn::cubecl::future::block_on(turso::Builder::new_local(path).build())
        .map_err(|error| std::io::Error::other(format!("{path}: {error}")))
}

/// Takes the first database of kernels in `folder` that no other process uses: its name, and a lock that is held for as
/// long as this process lives. With several processes at one database of turso, one panics, and after one was killed, all
/// later ones only read.
#[cfg(any(feature = "gpu", test))]
fn take_database(folder: &Path) -> std::io::Result<(String, std::fs::File)> {
    let mut number = 0;
    loop {
        let name = match number {
            0 => "kernels".to_string(),
            _ => format!("kernels-{number}"),
        };
        let lock = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join(format!("{name}.lock")))?;
        match lock.try_lock() {
            Ok(()) => {
                // Who has the database open; left by a process that was killed.
                let _ = std::fs::remove_file(folder.join(format!("{name}.db-tshm")));
                return Ok((name, lock));
            }
            Err(std::fs::TryLockError::WouldBlock) if number < MOST_DATABASES => number += 1,
            Err(std::fs::TryLockError::WouldBlock) => {
                let message = format!("{MOST_DATABASES} processes use it");
                return Err(std::io::Error::other(message));
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// More processes than a machine has ranks on GPUs.
#[cfg(any(feature = "gpu", test))]
const MOST_DATABASES: usize = 256;

/// The file that CubeCL would read, from `folder` upwards.
#[cfg(any(feature = "gpu", test))]
fn configuration_above(folder: &Path) -> Option<PathBuf> {
    const NAMES: [&str; 4] = ["cubecl.toml", "CubeCL.toml", "burn.toml", "Burn.toml"];
    // Burn's file may be about other things, and CubeCL would take its defaults then.
    let is_about_cubecl = |file: &PathBuf| {
        let all = file
            .file_name()
            .is_some_and(|name| name.eq_ignore_ascii_case("cubecl.toml"));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut lines = text.lines().map(str::trim_start);
        file.is_file() && (all || lines.any(|line| line.starts_with("[cubecl")))
    };
    folder.ancestors().find_map(|folder| {
        let files = NAMES.map(|name| folder.join(name));
        files.into_iter().find(is_about_cubecl)
    })
}

/// Counts the kernels that are launched while it lives.
pub(crate) struct LaunchCount {
    #[cfg(feature = "gpu")]
    seen: std::sync::Arc<Seen>,
    #[cfg(feature = "gpu")]
    _watching: burn::cubecl::logging::LaunchObservation,
}

#[cfg(feature = "gpu")]
#[derive(Default)]
struct Seen(std::sync::Mutex<std::collections::HashSet<&'static str>>);

#[cfg(feature = "gpu")]
impl burn::cubecl::logging::LaunchObserver for Seen {
    fn launched(&self, kernel: &'static str) {
        let mut seen = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.insert(kernel);
    }
}

impl LaunchCount {
    #[cfg(feature = "gpu")]
    pub(crate) fn begin() -> Self {
        let seen = std::sync::Arc::<Seen>::default();
        Self {
            _watching: burn::cubecl::logging::LaunchObservation::new(seen.clone()),
            seen,
        }
    }

    #[cfg(not(feature = "gpu"))]
    pub(crate) fn begin() -> Self {
        Self {}
    }

    /// How many different kinds there were, tuning included.
    #[cfg(feature = "gpu")]
    pub(crate) fn kinds(&self) -> usize {
        let seen = self.seen.0.lock();
        seen.unwrap_or_else(std::sync::PoisonError::into_inner)
            .len()
    }

    /// None is launched where none is generated.
    #[cfg(not(feature = "gpu"))]
    #[expect(clippy::unused_self, reason = "with GPUs it is used")]
    pub(crate) fn kinds(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_database_of_its_own_and_what_a_killed_one_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("kernels.db-tshm");
        std::fs::write(&left, "").unwrap();
        let (first, lock) = take_database(folder.path()).unwrap();
        assert_eq!(first, "kernels");
        assert!(!left.exists());
        std::fs::write(&left, "").unwrap();
        let (second, _other) = take_database(folder.path()).unwrap();
        assert_eq!(second, "kernels-1");
        assert!(left.exists(), "it is in use");
        drop(lock);
        assert_eq!(take_database(folder.path()).unwrap().0, "kernels");
    }

    #[test]
    fn cubecls_own_file_is_found_from_any_folder_below() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        let file = folder.path().join("burn.toml");
        std::fs::write(&file, "[fusion.logger]\n").unwrap();
        assert_eq!(configuration_above(&below), None);
        std::fs::write(&file, "[cubecl.compilation]\n").unwrap();
        assert_eq!(configuration_above(&below), Some(file));
    }

    #[test]
    fn it_is_said_where_kernels_are_kept() {
        let kept = KernelCache::Folder("/var/kernels".into()).to_string();
        assert_eq!(kept, "kept in /var/kernels for the next time");
        let nowhere = KernelCache::Nowhere("no room".into()).to_string();
        assert_eq!(nowhere, "not kept: no room");
    }
}
