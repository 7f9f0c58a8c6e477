//! What the process's surroundings say about data.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

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
/// let nowhere = Surroundings::new(|name| (name == "EVERBURN_OFFLINE").then(|| "1".into()), None);
/// let request = DataRequest { choice: DataChoice::Mnist, ..DataRequest::default() };
/// let error = load_in(&request, &nowhere).unwrap_err().to_string();
/// assert!(error.contains("EVERBURN_OFFLINE"));
/// ```
pub struct Surroundings {
    variable: Box<Lookup>,
    cache_dir: Option<PathBuf>,
    mirrors: Option<Vec<String>>,
}

/// Answers the name of an environment variable with its value.
type Lookup = dyn Fn(&str) -> Option<OsString> + Send + Sync;

impl Surroundings {
    /// Folder that holds data sets as sub-folders `mnist` and `fashion-mnist`.
    pub const DATA_DIR_VARIABLE: &'static str = "EVERBURN_DATA_DIR";

    /// `1` keeps away from the network.
    pub const OFFLINE_VARIABLE: &'static str = "EVERBURN_OFFLINE";

    /// Surroundings where `variable` answers for the environment and `cache_dir` is the user's
    /// cache folder (ours is `everburn` below it).
    pub fn new(
        variable: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static,
        cache_dir: Option<PathBuf>,
    ) -> Self {
        Self {
            variable: Box::new(variable),
            cache_dir,
            mirrors: None,
        }
    }

    /// The surroundings of this process.
    pub fn of_process() -> Self {
        Self::new(|name| std::env::var_os(name), dirs::cache_dir())
    }

    /// Downloads from `mirrors` (each a URL that ends in `/`) in place of the public ones.
    #[must_use]
    pub fn with_mirrors(mut self, mirrors: Vec<String>) -> Self {
        self.mirrors = Some(mirrors);
        self
    }

    /// `$EVERBURN_DATA_DIR`, if it is set and not empty.
    pub(crate) fn data_dir(&self) -> Option<PathBuf> {
        (self.variable)(Self::DATA_DIR_VARIABLE)
            .filter(|value| !value.is_empty())
            .map(Into::into)
    }

    /// Our folder below the user's cache folder.
    pub(crate) fn cache_dir(&self) -> Option<PathBuf> {
        self.cache_dir
            .as_ref()
            .map(|folder| folder.join("everburn"))
    }

    pub(crate) fn mirrors(&self) -> Option<&[String]> {
        self.mirrors.as_deref()
    }

    /// Whether `$EVERBURN_OFFLINE` forbids the network.
    pub(crate) fn offline(&self) -> Result<bool, DatasetError> {
        let Some(value) = (self.variable)(Self::OFFLINE_VARIABLE) else {
            return Ok(false);
        };
        match value.to_str() {
            Some("1" | "true" | "yes") => Ok(true),
            Some("" | "0" | "false" | "no") => Ok(false),
            _ => Err(DatasetError::Request(format!(
                "{} is '{}': expected 1 (keep away from the network) or 0",
                Self::OFFLINE_VARIABLE,
                value.to_string_lossy()
            ))),
        }
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings")
            .field("cache_dir", &self.cache_dir)
            .field("mirrors", &self.mirrors)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Surroundings {
        Surroundings::new(move |asked| (asked == name).then(|| value.into()), None)
    }

    #[test]
    fn offline_is_read_as_a_switch_and_anything_else_is_refused() {
        let offline = |value| with("EVERBURN_OFFLINE", value).offline();
        assert!(offline("1").unwrap() && offline("true").unwrap());
        assert!(!offline("0").unwrap() && !offline("").unwrap());
        let error = offline("perhaps").unwrap_err().to_string();
        assert!(
            error.contains("EVERBURN_OFFLINE") && error.contains("'perhaps'"),
            "{error}"
        );
    }

    #[test]
    fn an_empty_data_dir_variable_counts_as_unset() {
        assert_eq!(with("EVERBURN_DATA_DIR", "").data_dir(), None);
        assert_eq!(
            with("EVERBURN_DATA_DIR", "/d").data_dir(),
            Some(PathBuf::from("/d"))
        );
    }
}
