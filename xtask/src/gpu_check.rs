//! `cargo xtask gpu-check`: builds the binary for machines with a GPU, and checks this one's; or, with
//! `--build-only`, leaves it stripped and compressed for a machine that has a GPU and no Rust.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use everburn_launch::keep_freed_memory;
use everburn_record::units::bytes;
use miette::{IntoDiagnostic, WrapErr, miette};

use crate::binary;
use crate::cargo::{remove_traces_of_cargo_run, target_dir};
use crate::gpu::gpus_asked_for;

/// Machines with a GPU are often lent for minutes, and take no more than so much.
const LARGEST: u64 = 60 << 20;

#[derive(Debug, Args)]
pub struct Options {
    /// Build the binary for a machine with a GPU, say how large it is, and check nothing
    #[arg(long)]
    build_only: bool,

    /// What `everburn-bench gpu-check` is told, as in `-- --sections numbers` (`-- --help` shows it)
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Builds, and checks where there is a GPU.
pub fn run(options: &Options) -> miette::Result<ExitCode> {
    let asked = gpus_asked_for(&options.arguments).map(|asked| asked.apis);
    let features = match asked.as_deref() {
        None | Some([]) => "cuda".to_string(),
        Some(apis) => apis.join(","),
    };
    let is_software = names_software_gpu(&options.arguments) && !options.build_only;
    // Before a build of many minutes that could only end in the same words.
    let missing = match features.as_str() {
        _ if options.build_only => None,
        _ if is_software => no_software_gpu(),
        "cuda" => everburn_nccl::gpus().err().map(|error| error.to_string()),
        _ => None,
    };
    if let Some(missing) = missing {
        eprintln!(
            "SKIPPED: {missing}\n`cargo xtask gpu-check --build-only` makes the binary for a machine with a GPU; \
             docs/gpu-check.md says how it is used there"
        );
        return Ok(ExitCode::FAILURE);
    }
    let program = match is_software {
        // It stays on this machine.
        true => binary::bench_for_software_gpu()?,
        false => packed(&features)?,
    };
    let Some(program) = program else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    if options.build_only {
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = Command::new(&program);
    remove_traces_of_cargo_run(&mut command);
    keep_freed_memory(&mut command);
    command.arg("gpu-check").args(&options.arguments);
    binary::become_program(command)
}

/// Whether the arguments name the device that is made of the CPU.
fn names_software_gpu(arguments: &[OsString]) -> bool {
    let names = |word: &OsString| {
        let word = word.to_string_lossy();
        word.split('=').next_back() == Some("webgpu:cpu")
    };
    arguments.iter().any(names)
}

/// What is missing for a Vulkan device that is made of the CPU.
pub fn no_software_gpu() -> Option<String> {
    let has_lavapipe = everburn_nccl::vulkan_drivers()
        .iter()
        .any(|name| name == "lvp");
    let missing =
        "lavapipe is not among the Vulkan drivers: install it (Debian: mesa-vulkan-drivers)";
    (!has_lavapipe).then(|| missing.to_string())
}

/// Builds for the GPUs of `features`, packs the binary, and returns its path; `None` when it does not build.
fn packed(features: &str) -> miette::Result<Option<PathBuf>> {
    let Some(program) = binary::bench_for_gpus(features)? else {
        eprintln!(
            "if LLVM could not be fetched: `cargo xtask doctor` says where the build looks for it"
        );
        return Ok(None);
    };
    let folder = target_dir().join("gpu-check");
    let packed = pack(&program, &folder)?;
    println!("{packed}");
    if packed.compressed >= LARGEST {
        return Err(miette!(
            "it takes {} compressed, and machines that are lent take no more than {}",
            bytes(packed.compressed),
            bytes(LARGEST)
        ));
    }
    Ok(Some(packed.program))
}

/// The binary as it travels.
struct Packed {
    program: PathBuf,
    archive: PathBuf,
    size: u64,
    compressed: u64,
}

impl std::fmt::Display for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {}\n{}: {}",
            self.program.display(),
            bytes(self.size),
            self.archive.display(),
            bytes(self.compressed)
        )
    }
}

/// Leaves `program` in `folder` without its symbols, and beside it the same compressed.
fn pack(program: &Path, folder: &Path) -> miette::Result<Packed> {
    let failed = |what: &Path| format!("cannot write {}", what.display());
    std::fs::create_dir_all(folder)
        .into_diagnostic()
        .wrap_err_with(|| failed(folder))?;
    let stripped = folder.join("everburn-bench");
    std::fs::copy(program, &stripped)
        .into_diagnostic()
        .wrap_err_with(|| failed(&stripped))?;
    strip(&stripped);
    let archive = folder.join("everburn-bench.xz");
    compress(&stripped, &archive)
        .into_diagnostic()
        .wrap_err_with(|| failed(&archive))?;
    let size = |path: &Path| std::fs::metadata(path).map(|file| file.len());
    Ok(Packed {
        size: size(&stripped).into_diagnostic()?,
        compressed: size(&archive).into_diagnostic()?,
        program: stripped,
        archive,
    })
}

/// Takes the names of functions out, which a machine does not need; the binary works with them as well.
fn strip(program: &Path) {
    let stripped = Command::new("strip")
        .arg(program)
        .stdin(Stdio::null())
        .status();
    if !stripped.is_ok_and(|status| status.success()) {
        eprintln!("`strip` (binutils) did not work: the binary is larger than it need be");
    }
}

/// By the program `xz`, which is a third smaller than gzip: a crate of it would have Burn built twice, for features of
/// `cc`.
fn compress(from: &Path, to: &Path) -> io::Result<()> {
    let status = Command::new("xz")
        .args(["--threads=0", "--keep", "--stdout"])
        .arg(from)
        .stdin(Stdio::null())
        .stdout(File::create(to)?)
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(io::Error::other(format!("xz: {status}"))),
        Err(error) => Err(io::Error::other(format!(
            "xz cannot be run: {error} (it is in the package xz-utils)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use everburn_tests::skip_missing;

    use super::*;

    #[test]
    fn the_device_that_is_made_of_the_cpu_is_seen_by_its_name() {
        let names = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            names_software_gpu(&words)
        };
        assert!(names("--device webgpu:cpu --sections numbers"));
        assert!(names("--device=webgpu:cpu"));
        assert!(!names("--device webgpu:0") && !names("--sections numbers"));
    }

    #[test]
    fn what_is_packed_is_the_same_when_unpacked_and_says_how_large_it_is() {
        if Command::new("xz").arg("--version").output().is_err() {
            return skip_missing("packing the binary", "xz is not installed", "xz-utils");
        }
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let bytes = b"no program, but many of the same bytes ".repeat(1 << 12);
        std::fs::write(&program, &bytes).unwrap();
        let archive = folder.path().join("program.xz");
        compress(&program, &archive).unwrap();
        let unpacked = Command::new("xz").args(["-dc"]).arg(&archive).output();
        let unpacked = unpacked.unwrap().stdout;
        assert_eq!(unpacked, bytes);
        let packed = Packed {
            program,
            archive,
            size: 3 << 20,
            compressed: 1 << 19,
        };
        let text = packed.to_string();
        assert!(text.contains("program: 3 MiB"), "{text}");
        assert!(text.ends_with("program.xz: 512 KiB"), "{text}");
    }
}
