//! Where the kernels of GPUs are kept.

use std::path::{Path, PathBuf};

use everburn_train::{KernelCache, keep_kernels};

/// The variable that names the folder.
pub const VARIABLE: &str = "EVERBURN_KERNEL_CACHE";

/// Keeps what this process compiles in `folder`, else in `$EVERBURN_KERNEL_CACHE`, else below the user's cache.
/// All processes of a job come to the same.
pub fn keep(folder: Option<&Path>) -> KernelCache {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match folder
        .map(Path::to_path_buf)
        .or_else(|| default_in(variable))
    {
        Some(folder) => keep_kernels(&folder),
        None => KernelCache::Nowhere(format!(
            "this user has no home folder: name one in {VARIABLE}"
        )),
    }
}

fn default_in(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    if let Some(folder) = variable(VARIABLE) {
        return Some(folder.into());
    }
    let cache = match variable("XDG_CACHE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(variable("HOME")?).join(".cache"),
    };
    Some(cache.join("everburn").join("kernels"))
}

#[cfg(test)]
mod tests {
    use everburn_tests::lookup;

    use super::*;

    #[test]
    fn the_users_cache_is_used_unless_the_environment_names_another_folder() {
        let folder = |set: &[(&str, &str)]| default_in(|name| Some(lookup(set)(name)?.into()));
        assert_eq!(folder(&[]), None);
        assert_eq!(
            folder(&[("HOME", "/home/ada")]),
            Some("/home/ada/.cache/everburn/kernels".into())
        );
        assert_eq!(
            folder(&[("HOME", "/home/ada"), ("XDG_CACHE_HOME", "/c")]),
            Some("/c/everburn/kernels".into())
        );
        assert_eq!(
            folder(&[("EVERBURN_KERNEL_CACHE", "/k")]),
            Some("/k".into())
        );
    }
}
