//! One file, read and written by PyTorch's `FileStore` and by ours.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use everburn_collectives::store::{FileStore, SharedStore, Store};
use everburn_tests::DEADLINE;

use crate::crowd::Crowd;
use crate::operations::{every_operation_of_pytorch, every_store, gloo_adds_up, script_answers};

fn open(path: &Path) -> FileStore {
    FileStore::open_with_timeout(path, None, DEADLINE).unwrap()
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    (folder, path)
}

/// The referee: what the script expects is PyTorch's word and not ours.
#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn the_script_states_what_pytorchs_own_file_store_answers() {
    let (_folder, path) = place();
    script_answers(["--file", path.to_str().unwrap()], &[]);
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn pytorch_does_every_operation_on_a_file_of_ours_and_we_read_its() {
    let (_folder, path) = place();
    every_operation_of_pytorch(["--file", path.to_str().unwrap()], &open(&path));
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn we_do_every_operation_on_a_file_of_pytorchs() {
    let (_folder, path) = place();
    let alone = Crowd {
        of_each: 1,
        rounds: 1,
    };
    alone.meet(["--file", path.to_str().unwrap()], || open(&path));
    let store: SharedStore = Arc::new(open(&path));
    every_store(&store, &open(&path));
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn four_stores_of_pytorch_and_four_of_ours_share_a_file_at_once() {
    let (_folder, path) = place();
    let crowd = Crowd {
        of_each: 4,
        rounds: 25,
    };
    crowd.meet(["--file", path.to_str().unwrap()], || open(&path));
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn a_gloo_group_of_pytorch_meets_and_adds_up_over_a_file_of_ours() {
    let (_folder, path) = place();
    let store = open(&path);
    store.set("made by", b"everburn").unwrap();
    gloo_adds_up(&format!("file://{}", path.display()), &[]);
    // Ours still counts as open, so the last rank has left the file.
    assert_eq!(store.get("made by").unwrap(), b"everburn");
}
