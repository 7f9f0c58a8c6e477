//! The file store's format and its life on disk.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use everburn_collectives::store::{FileStore, Store, StoreError};

fn open(path: &Path, workers: Option<usize>) -> FileStore {
    FileStore::open_with_timeout(path, workers, Duration::from_secs(30)).unwrap()
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
        fs::write(&path, &whole).unwrap();
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
    fs::write(&path, "dear diary, this is no store").unwrap();
    let error = FileStore::open(&path, None).unwrap_err();
    assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
    assert!(error.to_string().contains("notes.txt"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"dear diary, this is no store");
}

#[test]
fn a_missing_folder_is_named() {
    let error = FileStore::open("/nonexistent/folder/store", None).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("/nonexistent/folder/store"), "{message}");
    assert!(message.contains("folder exists"), "{message}");
}
