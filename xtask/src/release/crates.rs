//! The crates as a registry gets them.

use std::fs;
use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, WrapErr, miette};

use super::output_of;
use crate::cargo::{cargo, root, target_dir};

/// What `everburn new` begins with: these examples, and what a crate calls their manifest (`crates/cli/build.rs`).
const TEMPLATES: [&str; 4] = ["autoencoder", "images", "table", "text"];
const MANIFEST: &str = "manifest.toml";

/// Packs all crates in the order of their dependencies, and publishes them or, unless `upload`, does all but that.
pub fn publish(upload: bool) -> miette::Result<()> {
    let copies = Copies::make(&root().join("crates/cli/templates"))?;
    let mut publish = cargo();
    // What they are made of was built and tested in the workspace.
    let line = ["publish", "--workspace", "--no-verify", "--allow-dirty"];
    publish.current_dir(root()).args(line);
    if !upload {
        publish.arg("--dry-run");
    }
    publish.arg("--target-dir").arg(target_dir().join("crates"));
    let status = publish.status().into_diagnostic()?;
    if !status.success() {
        return Err(miette!("the crates cannot be published ({status})"));
    }
    holds_templates()?;
    drop(copies);
    if !upload {
        println!("all crates can be published: --upload does it, and cannot be taken back");
    }
    Ok(())
}

/// Whether the command line's crate has what `everburn new` writes.
fn holds_templates() -> miette::Result<()> {
    let mut list = cargo();
    let line = [
        "package",
        "--list",
        "--allow-dirty",
        "--package",
        "everburn-cli",
    ];
    let listed = output_of(list.current_dir(root()).args(line))?;
    let listed = String::from_utf8_lossy(&listed);
    for name in TEMPLATES {
        for file in [MANIFEST, "src/main.rs", "tests/ranks.rs"] {
            let file = format!("templates/{name}/{file}");
            if !listed.lines().any(|line| line == file) {
                return Err(miette!("the crate everburn-cli has no {file}"));
            }
        }
    }
    Ok(())
}

/// Copies of the examples within a crate, for as long as they are needed.
struct Copies(PathBuf);

impl Copies {
    fn make(folder: &Path) -> miette::Result<Self> {
        if folder.exists() {
            return Err(miette!(
                "{} is there already: another release makes it, or has left it",
                folder.display()
            ));
        }
        let this = Self(folder.to_path_buf());
        for name in TEMPLATES {
            let from = root().join("examples").join(name);
            copy(&from, &folder.join(name))
                .into_diagnostic()
                .wrap_err_with(|| format!("cannot copy {}", from.display()))?;
        }
        Ok(this)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}

/// Copies a folder, with the manifest under its other name.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &to.join(name))?,
            false if name == "Cargo.toml" => {
                fs::copy(entry.path(), to.join(MANIFEST))?;
            }
            false => {
                fs::copy(entry.path(), to.join(name))?;
            }
        }
    }
    Ok(())
}
