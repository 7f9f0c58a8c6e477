//! What the process's surroundings say about data.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::DatasetError;

/// The environment variables and the cache folder that [`load_in`](crate::load_in) may use.
///
/// [`load`](crate::load) uses those of the process; a test passes its own, so that no test has to
/// set a variable for the whole process.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{DataChoice, DataRequest, Surroundings, load_in};
///
/// let nowhere = Surroundings { offline: Some("1".into()), ..Surroundings::default() };
/// let request = DataRequest { choice: DataChoice::Mnist, ..DataRequest::default() };
/// let error = load_in(&request, &nowhere).unwrap_err().to_string();
/// assert!(error.contains("EVERBURN_OFFLINE"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// `EVERBURN_DATA_DIR`, a folder that holds data sets as sub-folders `mnist` and `fashion-mnist`. An empty one is none.
    pub data_dir: Option<PathBuf>,
    /// `EVERBURN_OFFLINE`, of which `1` keeps away from the network.
    pub offline: Option<OsString>,
    /// The user's cache folder; ours is `everburn` below it.
    pub cache_dir: Option<PathBuf>,
    /// What to download from in place of the public mirrors: each a URL that ends in `/`.
    pub mirrors: Option<Vec<String>>,
}

impl Surroundings {
    /// The surroundings of this process.
    pub fn of_process() -> Self {
        Self {
            data_dir: std::env::var_os("EVERBURN_DATA_DIR").map(Into::into),
            offline: std::env::var_os("EVERBURN_OFFLINE"),
            cache_dir: dirs::cache_dir(),
            mirrors: None,
        }
    }

    pub(crate) fn data_dir(&self) -> Option<&Path> {
        let folder = self.data_dir.as_deref();
        folder.filter(|folder| !folder.as_os_str().is_empty())
    }

    /// Our folder below the user's cache folder.
    pub(crate) fn cache_dir(&self) -> Option<PathBuf> {
        Some(self.cache_dir.as_ref()?.join("everburn"))
    }

    /// Whether `$EVERBURN_OFFLINE` forbids the network.
    pub(crate) fn is_offline(&self) -> Result<bool, DatasetError> {
        let Some(value) = &self.offline else {
            return Ok(false);
        };
        match value.to_str() {
            Some("1" | "true" | "yes") => Ok(true),
            Some("" | "0" | "false" | "no") => Ok(false),
            _ => Err(DatasetError::Request(format!(
                "EVERBURN_OFFLINE is '{}': expected 1 (keep away from the network) or 0",
                value.to_string_lossy()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn offline_is_read_as_a_switch_and_anything_else_is_refused() {
        let offline = |value: &str| {
            let offline = Some(value.into());
            Surroundings {
                offline,
                ..Surroundings::default()
            }
            .is_offline()
        };
        assert!(offline("1").unwrap() && offline("true").unwrap());
        assert!(!offline("0").unwrap() && !offline("").unwrap());
        let error = offline("perhaps").unwrap_err().to_string();
        error.assert_contains(["EVERBURN_OFFLINE", "'perhaps'"]);
    }

    #[test]
    fn an_empty_data_dir_variable_counts_as_unset() {
        let of = |folder: &str| Surroundings {
            data_dir: Some(folder.into()),
            ..Surroundings::default()
        };
        assert_eq!(of("").data_dir(), None);
        assert_eq!(of("/d").data_dir(), Some(Path::new("/d")));
    }
}
