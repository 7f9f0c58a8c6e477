//! The real library, as far as it goes without a GPU. `cargo xtask test` runs these tests where NCCL is
//! installed, and says why not where it is not.

use std::sync::Arc;

use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
use everburn_nccl::{Library, LibraryError, NcclBackend, NcclVersion, gpus};

fn library() -> Library {
    Library::load().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
#[ignore = "needs NCCL: cargo xtask test runs it where NCCL is installed"]
fn the_library_is_new_enough_and_says_where_it_is() {
    let nccl = library();
    assert!(nccl.version() >= NcclVersion::from_code(21800), "{nccl:?}");
    assert!(nccl.path().exists(), "{nccl:?}");
}

/// `cargo xtask test` runs it where there is NCCL and no GPU; with one, `gpu.rs` connects ranks.
mod no_gpu {
    use super::*;

    #[test]
    #[ignore = "needs NCCL: cargo xtask test runs it where NCCL is installed"]
    fn a_backend_without_a_gpu_says_what_is_missing() {
        let missing = gpus().expect_err("this test is for machines without a GPU");
        let group = ProcessGroup::alone(GroupOptions::default());
        let told = NcclBackend::connect(Arc::new(library()).on_gpu(0), &group).unwrap_err();
        assert!(matches!(&told, CollectiveError::NoPath { .. }), "{told}");
        assert!(told.to_string().contains(&missing.to_string()), "{told}");
        assert!(!matches!(missing, LibraryError::NoNccl { .. }), "{missing}");
    }
}
