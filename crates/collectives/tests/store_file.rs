//! The file store's format and its life on disk.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use everburn_collectives::store::{FileStore, Store, StoreError};
use everburn_tests::{AssertContains, assert_matches};

fn open(path: &Path, workers: Option<usize>) -> FileStore {
    FileStore::open_with_timeout(path, workers, Duration::from_secs(30)).unwrap()
}

/// A file of the user's alone, as a store makes it.
fn write_private(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [key, value] {
        bytes.extend_from_slice(&(part.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

#[test]
fn the_bytes_are_those_of_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = open(&path, None);
    store.set("key", b"value").unwrap();
    store.add("n", 3).unwrap();
    store.delete("key").unwrap();
    drop(store);
    let expected = [
        record(b"refcount/", b"1"),
        record(b"/key", b"value"),
        record(b"/n", b"3"),
        record(b"-/key", b""),
        record(b"cleanup/", b"1"),
        record(b"refcount/", b"0"),
    ]
    .concat();
    assert_eq!(fs::read(&path).unwrap(), expected);
}

#[test]
fn a_record_cut_short_is_ignored_and_then_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let whole = [record(b"refcount/", b"1"), record(b"/a", b"1")].concat();
    let torn = record(b"/torn", b"value");
    for kept in 0..torn.len() {
        write_private(&path, &whole);
        let reader = open(&path, None);
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&torn[..kept]).unwrap();
        assert_eq!(reader.get("a").unwrap(), b"1");
        assert!(!reader.check(&["torn"]).unwrap());
        reader.set("b", b"2").unwrap();
        let other = open(&path, None);
        assert_eq!(other.get("b").unwrap(), b"2", "{kept} bytes were left");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_last_worker_removes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    drop(open(&path, Some(2)));
    assert!(path.exists(), "the second worker is still to come");
    drop(open(&path, Some(2)));
    assert!(!path.exists());
}

#[test]
fn a_foreign_file_is_left_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    write_private(&path, "dear diary, this is no store");
    let error = FileStore::open(&path, None).unwrap_err();
    assert_matches!(error, StoreError::Protocol { .. });
    assert!(error.to_string().contains("notes.txt"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"dear diary, this is no store");
}

#[test]
fn a_missing_folder_is_named() {
    let error = FileStore::open("/nonexistent/folder/store", None).unwrap_err();
    let message = error.to_string();
    message.assert_contains(["/nonexistent/folder/store", "folder exists"]);
}

fn refusal(path: &Path) -> String {
    let error = FileStore::open(path, None).unwrap_err();
    assert_matches!(error, StoreError::Unreachable { .. });
    error.to_string()
}

#[test]
fn the_file_is_the_users_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = open(&path, None);
    store.set("session_key", b"secret").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    // Made more open afterwards, it is used no more.
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    assert!(store.set("k", b"v").is_err() && store.check(&["k"]).is_err());
    let before = fs::read(&path).unwrap();
    drop(store);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_others_can_read_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    for mode in [0o644, 0o620, 0o602, 0o660] {
        fs::write(&path, record(b"refcount/", b"1")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let text = refusal(&path);
        text.assert_contains([
            format!("{mode:04o}"),
            "chmod 600".into(),
            "another path".into(),
            "umask 077".into(),
        ]);
        assert_eq!(fs::read(&path).unwrap(), record(b"refcount/", b"1"));
    }
    // As it says.
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    open(&path, None);
}

#[test]
fn a_link_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (target, path) = (folder.path().join("target"), folder.path().join("store"));
    symlink(&target, &path).unwrap();
    for exists in [false, true] {
        if exists {
            write_private(&target, "mine");
        }
        let text = refusal(&path);
        assert!(text.contains("symbolic link"), "{text}");
        assert_eq!(target.exists(), exists);
    }
    assert_eq!(fs::read(&target).unwrap(), b"mine");
}

#[test]
fn a_file_of_another_user_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    write_private(&path, record(b"refcount/", b"1"));
    if chown(&path, Some(65_534), None).is_err() {
        everburn_tests::skip("a file of another user", "only root can give a file away");
        return;
    }
    let text = refusal(&path);
    text.assert_contains(["65534", "another path"]);
}

/// Opening a pipe would wait for its writer.
#[test]
fn what_is_no_file_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let made = std::process::Command::new("mkfifo")
        .args(["-m", "600"])
        .arg(&path)
        .status();
    assert!(made.unwrap().success());
    let text = refusal(&path);
    assert!(text.contains("no file"), "{text}");
}
