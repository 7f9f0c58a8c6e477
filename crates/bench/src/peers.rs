//! The scripts of the peers, which are beside this crate.

use std::path::{Path, PathBuf};

/// The script `name`, where this binary was built.
pub(crate) fn script(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    folder.join(name)
}
