//! Says where the projects are that `everburn new` begins with: the repository's examples, or their copies in a published
//! package, whose manifests have another name there because cargo leaves packages within a package out.

use std::path::PathBuf;

fn main() {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let copies = package.join("templates");
    let (folder, manifest) = if copies.is_dir() {
        (copies, "manifest.toml")
    } else {
        (package.join("../../examples"), "Cargo.toml")
    };
    println!("cargo::rustc-env=EVERBURN_EXAMPLES={}", folder.display());
    println!("cargo::rustc-env=EVERBURN_EXAMPLE_MANIFEST={manifest}");
    println!("cargo::rerun-if-changed=build.rs");
}
