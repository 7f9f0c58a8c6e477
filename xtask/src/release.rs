//! `cargo xtask release`: the binary for those who have no Rust: an archive and a Python wheel, with completions and
//! manual pages.

mod binary_needs;
mod crates;
mod trial;
mod wheel;
mod zip;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use data_encoding::HEXLOWER;
use everburn_record::units;
use miette::{IntoDiagnostic, WrapErr, miette};
use sha2::{Digest, Sha256};

use self::wheel::WheelFile;
use crate::binary;
use crate::cargo::{remove_traces_of_cargo_run, root, target_dir};

/// The version of the whole workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Which shells have completions, with where a system looks for them below `share`.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/everburn"),
    ("zsh", "zsh/site-functions/_everburn"),
    ("fish", "fish/vendor_completions.d/everburn.fish"),
];

/// What goes into the archive besides what the binary says of itself.
const DOCUMENTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// How a release is made. `EVERBURN_BIN` names a binary that is there already.
#[derive(Debug, Args)]
pub struct Options {
    /// The folder of archive and wheel [default: release-archives in Cargo's target folder]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Build for machines with GPUs too
    #[arg(long)]
    cuda: bool,

    /// Then unpack and install both in fresh folders without Rust, and train, verify and examine there
    #[arg(long = "try")]
    try_out: bool,

    /// Pack the crates for a registry instead, in their order, and upload nothing
    #[arg(long, conflicts_with_all = ["output", "cuda", "try_out"])]
    crates: bool,

    /// Upload them, which cannot be taken back
    #[arg(long, requires = "crates")]
    upload: bool,
}

/// Builds, packs, and says what there is.
pub fn run(options: &Options) -> miette::Result<ExitCode> {
    if options.crates {
        return crates::publish(options.upload).map(|()| ExitCode::SUCCESS);
    }
    let program = match options.cuda {
        true => binary::for_gpus()?,
        // A binary that was built on an older system runs on more of them.
        false => binary::built_or_named()?,
    };
    let Some(program) = program else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    let output = match &options.output {
        Some(folder) => std::path::absolute(folder).into_diagnostic()?,
        None => target_dir().join("release-archives"),
    };
    fs::create_dir_all(&output)
        .into_diagnostic()
        .wrap_err_with(|| cannot_write(&output))?;
    let workshop = tempfile::tempdir_in(&output).into_diagnostic()?;
    let staged = Staged::lay_out(&program, workshop.path())?;
    let archive = staged.archive(&output)?;
    let wheel = staged.wheel(&output)?;
    for packed in [&archive, &wheel] {
        seal(packed)?;
    }
    match options.try_out {
        true => trial::run(&archive, &wheel),
        false => Ok(ExitCode::SUCCESS),
    }
}

/// All files of a release, in a folder that has the archive's name.
struct Staged {
    folder: PathBuf,
}

impl Staged {
    /// Lays the files out in `workshop`: the stripped binary, what it writes of itself, and the documents.
    fn lay_out(program: &Path, workshop: &Path) -> miette::Result<Self> {
        let name = format!(
            "everburn-{VERSION}-{}-unknown-linux-gnu",
            std::env::consts::ARCH
        );
        let this = Self {
            folder: workshop.join(name),
        };
        let write = |path: &Path, bytes: &[u8]| {
            let folder = path.parent().unwrap_or(path);
            let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, bytes));
            written
                .into_diagnostic()
                .wrap_err_with(|| cannot_write(path))
        };
        fs::create_dir_all(&this.folder).into_diagnostic()?;
        fs::copy(program, this.program()).into_diagnostic()?;
        strip(&this.program())?;
        for (shell, place) in SHELLS {
            let script = this.say(&["completions", shell])?;
            write(&this.folder.join("share").join(place), &script)?;
        }
        let manual = this.folder.join("share/man/man1");
        this.say(&["man", &manual.to_string_lossy()])?;
        for document in DOCUMENTS {
            let text = fs::read(root().join(document)).into_diagnostic()?;
            write(&this.folder.join(document), &text)?;
        }
        Ok(this)
    }

    fn program(&self) -> PathBuf {
        self.folder.join("everburn")
    }

    /// What the binary prints, told that a person has started it.
    fn say(&self, arguments: &[&str]) -> miette::Result<Vec<u8>> {
        let mut command = Command::new(self.program());
        remove_traces_of_cargo_run(&mut command);
        output_of(command.args(arguments))
    }

    fn archive(&self, output: &Path) -> miette::Result<PathBuf> {
        let name = self.folder.file_name().unwrap_or_default();
        let path = output.join(format!("{}.tar.gz", name.to_string_lossy()));
        // The same files make the same archive, whoever packs them and when.
        let flags = [
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mtime=@0",
        ];
        let mut tar = Command::new("tar");
        tar.args(["--create", "--gzip"])
            .args(flags)
            .arg("--file")
            .arg(&path);
        tar.arg("--directory")
            .arg(self.folder.parent().unwrap_or(&self.folder))
            .arg(name);
        output_of(&mut tar)?;
        Ok(path)
    }

    fn wheel(&self, output: &Path) -> miette::Result<PathBuf> {
        let needs = binary_needs::of(&self.program())?;
        let mut files = vec![WheelFile::script("everburn", read(&self.program())?)];
        for (_, place) in SHELLS {
            let place = format!("share/{place}");
            let text = read(&self.folder.join(&place))?;
            files.push(WheelFile::data(&place, text));
        }
        let mut pages: Vec<_> = fs::read_dir(self.folder.join("share/man/man1"))
            .and_then(Iterator::collect)
            .into_diagnostic()?;
        pages.sort_by_key(fs::DirEntry::file_name);
        for page in pages {
            let place = format!("share/man/man1/{}", page.file_name().to_string_lossy());
            files.push(WheelFile::data(&place, read(&page.path())?));
        }
        for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
            files.push(WheelFile::license(
                license,
                read(&self.folder.join(license))?,
            ));
        }
        let readme = read(&self.folder.join("README.md"))?;
        let (name, bytes) = wheel::pack(files, &readme, &needs.platform_tag())?;
        let path = output.join(name);
        fs::write(&path, bytes)
            .into_diagnostic()
            .wrap_err_with(|| cannot_write(&path))?;
        println!("the wheel is for {}: {needs}", needs.platform_tag());
        Ok(path)
    }
}

/// Writes the file's SHA-256 beside it, as `sha256sum --check` reads it, and says how large the file is.
fn seal(path: &Path) -> miette::Result<()> {
    let bytes = read(path)?;
    let digest = HEXLOWER.encode(&Sha256::digest(&bytes));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!("{name}.sha256"));
    fs::write(&beside, format!("{digest}  {name}\n")).into_diagnostic()?;
    println!(
        "{}: {}, SHA-256 {digest}",
        path.display(),
        units::bytes(bytes.len() as u64)
    );
    Ok(())
}

/// Takes the names of functions out: half of the file, and no user needs them.
fn strip(program: &Path) -> miette::Result<()> {
    output_of(Command::new("strip").arg(program)).map(|_| ())
}

/// What a program prints; one that fails or is not there is an error with its last words.
fn output_of(command: &mut Command) -> miette::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().into_diagnostic();
    let output = output.wrap_err_with(|| format!("cannot run `{name}`"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(miette!(
        "`{name}` has failed ({}): {}",
        output.status,
        said.trim()
    ))
}

fn read(path: &Path) -> miette::Result<Vec<u8>> {
    fs::read(path)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot read {}", path.display()))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sealed_as_sha256sum_checks_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.whl");
        fs::write(&path, "abc").unwrap();
        seal(&path).unwrap();
        let seal = fs::read_to_string(folder.path().join("a.whl.sha256")).unwrap();
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(seal, format!("{expected}  a.whl\n"));
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let mut shell = Command::new("sh");
        let error = output_of(shell.args(["-c", "echo why >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`sh` has failed") && error.ends_with("why"),
            "{error}"
        );
    }
}
