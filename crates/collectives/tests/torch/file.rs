//! One file, read and written by PyTorch's `FileStore` and by ours.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use everburn_collectives::store::{FileStore, SharedStore, Store};

use crate::crowd::Crowd;
use crate::operations::{binary, every_store};
use crate::python::{PATIENCE, Script};

const ALL_ANSWERED: &str = "every operation answers as it should";

fn open(path: &Path) -> FileStore {
    FileStore::open_with_timeout(path, None, PATIENCE).unwrap()
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
    let script = Script::start("operations.py", &["--file", path.to_str().unwrap()]);
    assert_eq!(script.line(), ALL_ANSWERED);
    script.finish();
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn pytorch_does_every_operation_on_a_file_of_ours_and_we_read_its() {
    let (_folder, path) = place();
    let store = open(&path);
    store.set("from rust", &binary()).unwrap();
    store.add("from both", 40).unwrap();
    let file = path.to_str().unwrap();
    let script = Script::start("operations.py", &["--file", file, "--rust"]);
    assert_eq!(script.line(), ALL_ANSWERED);
    script.finish();
    assert_eq!(store.get("from python").unwrap(), binary());
    assert_eq!(store.get("from both").unwrap(), b"42");
    assert!(!store.check(&["p/b"]).unwrap(), "PyTorch has deleted it");
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
    let method = format!("file://{}", path.display());
    let rank = |rank| {
        let arguments = [
            "--init-method",
            &method,
            "--world-size",
            "2",
            "--rank",
            rank,
        ];
        Script::start("gloo.py", &arguments)
    };
    let ranks = [rank("0"), rank("1")];
    for (rank, script) in ranks.into_iter().enumerate() {
        assert_eq!(script.line(), format!("rank {rank} of 2: 2997"));
        script.finish();
    }
    // Ours still counts as open, so the last rank has left the file.
    assert_eq!(store.get("made by").unwrap(), b"everburn");
}
