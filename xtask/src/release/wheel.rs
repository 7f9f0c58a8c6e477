//! A Python wheel that holds a program and no Python (the format: packaging.python.org, "Binary distribution format").
//! `pip` puts what is under `scripts` on the path and what is under `data` into the environment's folder.

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

use super::VERSION;
use super::zip::Zip;

/// Regular files that their owner may write.
const PLAIN: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;

pub(super) struct WheelFile {
    path: String,
    mode: u32,
    content: Vec<u8>,
}

impl WheelFile {
    /// A program for the path.
    pub(super) fn script(name: &str, content: Vec<u8>) -> Self {
        Self {
            path: format!("everburn-{VERSION}.data/scripts/{name}"),
            mode: EXECUTABLE,
            content,
        }
    }

    /// A file for the environment's folder.
    pub(super) fn data(path: &str, content: Vec<u8>) -> Self {
        Self {
            path: format!("everburn-{VERSION}.data/data/{path}"),
            mode: PLAIN,
            content,
        }
    }

    pub(super) fn license(name: &str, content: Vec<u8>) -> Self {
        Self::about(&format!("licenses/{name}"), content)
    }

    fn about(name: &str, content: Vec<u8>) -> Self {
        Self {
            path: format!("everburn-{VERSION}.dist-info/{name}"),
            mode: PLAIN,
            content,
        }
    }
}

/// The wheel's name and bytes. `readme` is what an index shows, in Markdown.
pub(super) fn pack(
    mut files: Vec<WheelFile>,
    readme: &[u8],
    platform: &str,
) -> miette::Result<(String, Vec<u8>)> {
    let tag = format!("py3-none-{platform}");
    files.push(WheelFile::about("METADATA", metadata(readme)));
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: cargo xtask release\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    files.push(WheelFile::about("WHEEL", wheel.into_bytes()));
    let mut record: String = files.iter().map(line_of_record).collect();
    let mut listing = WheelFile::about("RECORD", Vec::new());
    // It cannot have its own hash.
    record.push_str(&format!("{},,\n", listing.path));
    listing.content = record.into_bytes();
    files.push(listing);
    let mut zip = Zip::default();
    for file in &files {
        zip.add(&file.path, file.mode, &file.content)?;
    }
    Ok((format!("everburn-{VERSION}-{tag}.whl"), zip.finish()?))
}

fn metadata(readme: &[u8]) -> Vec<u8> {
    let repository = env!("CARGO_PKG_REPOSITORY");
    let mut text = format!(
        "Metadata-Version: 2.4\n\
         Name: everburn\n\
         Version: {VERSION}\n\
         Summary: Trains Burn models on any number of ranks: GPUs, cores, machines\n\
         License-Expression: {}\n\
         License-File: LICENSE-APACHE\n\
         License-File: LICENSE-MIT\n\
         Project-URL: Source, {repository}\n\
         Requires-Python: >=3.8\n\
         Description-Content-Type: text/markdown\n\n",
        env!("CARGO_PKG_LICENSE"),
    )
    .into_bytes();
    text.extend(readme);
    text
}

fn line_of_record(file: &WheelFile) -> String {
    let digest = BASE64URL_NOPAD.encode(&Sha256::digest(&file.content));
    format!("{},sha256={digest},{}\n", file.path, file.content.len())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn python_reads_the_wheel_and_finds_every_file_in_its_record() {
        let files = vec![
            WheelFile::script("everburn", b"#!/bin/sh\n".repeat(1000)),
            WheelFile::data("share/man/man1/everburn.1", b"page".to_vec()),
        ];
        let (name, bytes) = pack(files, b"# Read me", "manylinux_2_34_x86_64").unwrap();
        let tagged = format!("everburn-{VERSION}-py3-none-manylinux_2_34_x86_64.whl");
        assert_eq!(name, tagged);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let program = "\
import base64, hashlib, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
assert wheel.testzip() is None
record = next(name for name in wheel.namelist() if name.endswith('RECORD'))
lines = [line.split(',') for line in wheel.read(record).decode().split()]
assert sorted(line[0] for line in lines) == sorted(wheel.namelist())
for name, digest, size in lines:
    if digest:
        content = wheel.read(name)
        found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=')
        assert (digest, int(size)) == ('sha256=' + found.decode(), len(content)), name
print(oct(wheel.infolist()[0].external_attr >> 16))
";
        let python = Command::new("python3")
            .args(["-c", program])
            .arg(&path)
            .output();
        let Ok(python) = python else {
            // Nothing else here reads wheels.
            everburn_tests::skip_missing("a wheel", "there is no python3", "python3");
            return;
        };
        assert!(
            python.status.success(),
            "{}",
            String::from_utf8_lossy(&python.stderr)
        );
        assert_eq!(python.stdout, b"0o100755\n");
    }
}
