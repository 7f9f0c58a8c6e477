//! Where the workspace is, and how Cargo is called in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// The folder that Cargo builds into.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
        // Relative to where the user is, as Cargo has it.
        Some(folder) => std::path::absolute(&folder).unwrap_or_else(|_| folder.into()),
        None => root().join("target"),
    }
}

/// A call of Cargo as if the user had made it: without what `cargo run` added for this process,
/// because build scripts that look at it would run again at every change between the two.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    remove_traces_of_cargo_run(&mut command);
    command
}

/// Takes from `command` the variables that `cargo run` has set for this process.
pub fn remove_traces_of_cargo_run(command: &mut Command) {
    let ours = [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_BIN_",
        "CARGO_CRATE_",
        "CARGO_PRIMARY_",
    ];
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| ours.iter().any(|prefix| name.starts_with(prefix)))
        {
            command.env_remove(name);
        }
    }
    if let Some(paths) = std::env::var_os("LD_LIBRARY_PATH") {
        match users_library_path(&paths, &target_dir()) {
            Some(paths) => command.env("LD_LIBRARY_PATH", paths),
            None => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
}

/// `paths` without the target folder's and the toolchain's own; `None` when nothing else is there.
fn users_library_path(paths: &OsString, target: &Path) -> Option<OsString> {
    let users = std::env::split_paths(paths).filter(|path| {
        let toolchain = path.components().any(|part| part.as_os_str() == "rustlib");
        let toolchain = toolchain
            || path
                .components()
                .any(|part| part.as_os_str() == "toolchains")
                && path.ends_with("lib");
        !toolchain && !path.starts_with(target) && !path.as_os_str().is_empty()
    });
    std::env::join_paths(users)
        .ok()
        .filter(|paths| !paths.is_empty())
}

/// `EVERBURN_DATA_DIR` for those who have not set it: the data that is beside the workspace.
pub fn data_dir_beside() -> Option<PathBuf> {
    if std::env::var_os("EVERBURN_DATA_DIR").is_some_and(|folder| !folder.is_empty()) {
        return None;
    }
    root()
        .join("../shared/data")
        .canonicalize()
        .ok()
        .filter(|folder| folder.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_users_library_folders_stay() {
        let paths = "/t/debug/build/x/out:/t/debug:/home/u/.rustup/toolchains/stable/lib:\
                     /home/u/.rustup/toolchains/stable/lib/rustlib/x/lib:/opt/cuda/lib64";
        let target = Path::new("/t");
        assert_eq!(
            users_library_path(&paths.into(), target),
            Some("/opt/cuda/lib64".into())
        );
        assert_eq!(users_library_path(&"/t/debug".into(), target), None);
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("xtask/Cargo.toml").exists());
    }
}
