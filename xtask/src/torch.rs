//! A Python that has PyTorch, for the tests in which PyTorch takes part.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use miette::{IntoDiagnostic, WrapErr, miette};

use crate::cargo::root;

/// Names the Python that has PyTorch.
pub const PYTHON: &str = "EVERBURN_PYTHON";

/// What is installed: the first release with all operations that the tests use, or a later one.
const PACKAGE: &str = "torch>=2.9";

/// What scripts of the tests need besides: that which makes goldens, and that which makes pretrained models.
const OTHERS: [&str; 4] = ["numpy", "transformers", "torchvision", "peft"];

/// Says the version, and fails as `import` does. On the CPU all need gloo, which not every build has.
const PROBE: &str = include_str!("../../crates/bench/peers/probe.py");

/// The Python that the user has named, whatever it has.
pub fn named_python() -> Option<OsString> {
    std::env::var_os(PYTHON).filter(|python| !python.is_empty())
}

/// The Python that the user has named, else that of a virtual environment outside the repository,
/// which is made and filled if need be. It has PyTorch, which is said.
pub fn python() -> miette::Result<OsString> {
    if let Some(python) = named_python() {
        let version = probe(&python).wrap_err_with(|| {
            format!("{PYTHON} names {}, which has no PyTorch", python.display())
        })?;
        println!("PyTorch {version} of {}", python.display());
        return Ok(python);
    }
    let folder = environment(|name| std::env::var_os(name))?;
    let python = folder.join("bin/python");
    let version = match probe(python.as_os_str()) {
        Ok(version) => version,
        Err(_) => {
            make(&folder, &python)?;
            probe(python.as_os_str())?
        }
    };
    println!("PyTorch {version} of {}", python.display());
    Ok(python.into_os_string())
}

/// The version of a Python's PyTorch.
fn probe(python: &OsStr) -> miette::Result<String> {
    let others = OTHERS.join(", ");
    let output = Command::new(python)
        .args(["-c", &format!("{PROBE}\nimport {others}\n")])
        .stdin(Stdio::null())
        .output()
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot run {}", python.display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(miette!(
        "{} cannot import torch, {others}: {}",
        python.display(),
        said.lines().last().unwrap_or("it has not said why")
    ))
}

/// Where the virtual environment is: in the user's cache, never in the repository.
fn environment(variable: impl Fn(&str) -> Option<OsString>) -> miette::Result<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")));
    let cache = cache.filter(|cache| cache.is_absolute() && !cache.starts_with(root()));
    cache
        .map(|cache| cache.join("everburn/torch"))
        .ok_or_else(|| {
            miette!(
                "no place for a virtual environment outside the repository: set HOME or \
                 XDG_CACHE_HOME, or name a Python with PyTorch in {PYTHON}"
            )
        })
}

/// Makes the virtual environment anew, and installs PyTorch as
/// pip is configured to.
fn make(folder: &Path, python: &Path) -> miette::Result<()> {
    println!(
        "installing PyTorch into {} (once; some minutes and up to some GB)",
        folder.display()
    );
    let mut environment = Command::new("python3");
    // What a broken-off attempt has left may not even be read by pip.
    environment.args(["-m", "venv", "--clear"]).arg(folder);
    let mut install = Command::new(python);
    // Python compiles what is imported, at its first import; pip would compile all of it.
    install.args(["-m", "pip", "install", "--quiet", "--no-compile"]);
    install.args(["--disable-pip-version-check"]);
    install.arg(PACKAGE).args(OTHERS);
    for mut command in [environment, install] {
        let line = format!("{command:?}");
        let status = command
            .stdin(Stdio::null())
            .status()
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot run {line}"))?;
        if !status.success() {
            return Err(miette!(
                help = "install PyTorch yourself and name that Python in EVERBURN_PYTHON",
                "{line} has failed ({status})"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_in_the_users_cache_and_never_in_the_repository() {
        let place = |cache: Option<&str>, home: Option<&str>| {
            environment(|name| match name {
                "XDG_CACHE_HOME" => cache.map(OsString::from),
                _ => home.map(OsString::from),
            })
            .ok()
        };
        assert_eq!(
            place(Some("/c"), Some("/h")),
            Some("/c/everburn/torch".into())
        );
        assert_eq!(
            place(Some(""), Some("/h")),
            Some("/h/.cache/everburn/torch".into())
        );
        let inside = root().join("cache");
        assert_eq!(place(inside.to_str(), None), None);
        assert_eq!(place(None, None), None);
    }

    #[test]
    fn a_python_without_pytorch_is_no_python_for_us() {
        let why = probe(OsStr::new("false")).unwrap_err().to_string();
        assert!(why.contains("cannot import torch"), "{why}");
    }
}
