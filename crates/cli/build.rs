//! Copies the projects that `everburn new` begins with into the build folder, with a list of their files: from the
//! repository's examples, or from `templates/` in a published package, whose manifests have another name there because
//! cargo leaves packages within a package out.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

const TEMPLATES: [&str; 4] = ["autoencoder", "images", "table", "text"];

fn main() -> Result<(), Box<dyn Error>> {
    // Relative to the package: cargo then finds a checkout unchanged that was moved.
    let packaged = Path::new("templates");
    let examples = if packaged.is_dir() {
        packaged
    } else {
        Path::new("../../examples")
    };
    // A published package builds projects from the registry; a checkout may be of a state that no registry has.
    println!(
        "cargo::rustc-env=EVERBURN_FROM_REGISTRY={}",
        packaged.is_dir()
    );
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut list = String::from("&[\n");
    for name in TEMPLATES {
        let mut files = Vec::new();
        collect(&examples.join(name), Path::new(""), &mut files)?;
        files.sort();
        list += &format!("({name:?}, &[\n");
        for file in files {
            let source = examples.join(name).join(&file);
            println!("cargo::rerun-if-changed={}", source.display());
            let copy = Path::new("templates").join(name).join(&file);
            fs::create_dir_all(out.join(&copy).parent().ok_or("a file without a folder")?)?;
            fs::copy(&source, out.join(&copy))?;
            let file = file.to_str().ok_or("a name that is not UTF-8")?;
            let file = if file == "manifest.toml" {
                "Cargo.toml"
            } else {
                file
            };
            list += &format!(
                "({file:?}, include_str!(concat!(env!(\"OUT_DIR\"), \"/{}\"))),\n",
                copy.display()
            );
        }
        list += "]),\n";
    }
    fs::write(out.join("templates.rs"), list + "]")?;
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}

/// The files below `folder`, relative to it.
fn collect(folder: &Path, below: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &name, files)?;
        } else {
            files.push(name);
        }
    }
    Ok(())
}
