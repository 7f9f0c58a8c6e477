//! Addresses in place of paths.

use std::path::Path;

use crate::DatasetError;
use crate::error::damaged;
use crate::tar_shards::is_tar;

/// Whether a path is an address that is read over HTTP: it begins with `http://` or `https://`.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::is_url;
///
/// assert!(is_url("https://example.org/train-{000..099}.tar"));
/// assert!(!is_url("shards/train-000.tar"));
/// ```
pub fn is_url(path: impl AsRef<Path>) -> bool {
    let bytes = path.as_ref().as_os_str().as_encoded_bytes();
    [b"http://".as_slice(), b"https://"].iter().any(|scheme| {
        bytes
            .get(..scheme.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
    })
}

/// Refuses an address that names no tar files, and one with a credential in it: the run directory, logs and errors show
/// addresses.
///
/// # Errors
/// [`DatasetError::Data`] with the address, without what may be secret.
pub(crate) fn check_url(path: &Path) -> Result<&str, DatasetError> {
    let url = path.to_str().unwrap_or_default();
    let refused = |shown: String, problem: &str| damaged(Path::new(&shown), "address", problem);
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if let Some((_, host)) = rest.rsplit_once('@') {
        let host = host.split(['?', '#']).next().unwrap_or_default();
        let problem = "it has a user or a password, which the run directory would show: name an address that needs none, or copy \
                       the shards to a disk (an `@` of a name is `%40`)";
        return Err(refused(format!("{scheme}://***@{host}"), problem));
    }
    if let Some((before, _)) = url.split_once(['?', '#']) {
        let problem = "it has a query or a fragment, which may be a credential that the run directory would show: name an \
                       address without one, or copy the shards to a disk";
        return Err(refused(format!("{before}?***"), problem));
    }
    let shown = url.escape_debug().to_string();
    if url.is_empty() || !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        let problem =
            "it has characters that are not in addresses: write them as `%` and two digits";
        return Err(refused(shown, problem));
    }
    let (place, name) = rest.rsplit_once('/').unwrap_or_default();
    if place.is_empty() || place.starts_with('/') || !is_tar(name) {
        let problem = "only tar files are read over HTTP: expected https://HOST/FOLDER/NAME.tar, or NAME with a range as \
                       train-{000..099}.tar";
        return Err(refused(shown, problem));
    }
    if place.contains(['{', '*']) || name.contains('*') {
        let problem =
            "a server lists no files: expected a range in the name, as train-{000..099}.tar";
        return Err(refused(shown, problem));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_tar_files_and_no_secret() {
        for url in [
            "http://127.0.0.1:80/a.tar",
            "https://h.org/a/b%20c/train-{000..099}.TAR",
        ] {
            assert_eq!(check_url(Path::new(url)).unwrap(), url);
        }
        for case in [
            "https://secret:secret@h.org/a.tar | https://***@h.org/a.tar: address: it has a user",
            "https://u:sec/ret@h.org/a.tar?secret | https://***@h.org/a.tar: address",
            "HTTPS://secret@h.org | HTTPS://***@h.org: address",
            "https://h.org/a.tar?sig=secret | https://h.org/a.tar?***: address: it has a query",
            "https://h.org/a.tar#secret | https://h.org/a.tar?***",
            "https://h.org/a.zip | only tar files",
            "https://h.org/shards/ | only tar files",
            "https://a.tar | only tar files",
            "https:///a.tar | only tar files",
            "https://h.org/a b.tar | characters",
            "https://h.org/*.tar | a server lists no files",
            "https://h.org/{0..1}/a.tar | a server lists no files",
        ] {
            let (url, problem) = case.split_once(" | ").unwrap();
            assert!(is_url(url));
            let error = check_url(Path::new(url)).unwrap_err().to_string();
            assert!(error.contains(problem), "{url}: {error}");
            assert!(!error.contains("sec"), "{error}");
        }
    }
}
