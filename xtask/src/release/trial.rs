//! A release tried as its users have it: in fresh folders, with nothing on the path but what was installed, away from
//! this repository.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use miette::{IntoDiagnostic, miette};

use super::output_of;

/// A run of a moment.
const SMALL: &str =
    "--data synthetic --train-samples 512 --validation-samples 64 --test-samples 128";

/// Unpacks the archive and installs the wheel, and uses each. Without Python the wheel is not tried, and that is a
/// failure: nobody would know.
pub(super) fn run(archive: &Path, wheel: &Path) -> miette::Result<ExitCode> {
    let folder = tempfile::tempdir().into_diagnostic()?;
    let unpacked = folder.path().join("unpacked");
    fs::create_dir(&unpacked).into_diagnostic()?;
    output_of(
        Command::new("tar")
            .arg("-xzf")
            .arg(archive)
            .arg("-C")
            .arg(&unpacked),
    )?;
    let programs = fs::read_dir(&unpacked)
        .into_diagnostic()?
        .flatten()
        .map(|entry| entry.path());
    let [programs] = &programs.collect::<Vec<_>>()[..] else {
        return Err(miette!("{} has not one folder", archive.display()));
    };
    Installed::new(folder.path().join("by archive"), programs)?.use_it("the archive")?;

    let environment = folder.path().join("venv");
    output_of(
        Command::new(python()?)
            .args(["-m", "venv"])
            .arg(&environment),
    )?;
    let programs = environment.join("bin");
    let installed = Installed::new(folder.path().join("by wheel"), &programs)?;
    // The index is not asked: the wheel depends on nothing.
    let mut pip = installed.command(&programs.join("python"));
    output_of(
        pip.args(["-m", "pip", "install", "--quiet", "--no-index"])
            .arg(wheel),
    )?;
    installed.use_it("the wheel")?;
    for file in [
        "share/man/man1/everburn-train.1",
        "share/bash-completion/completions/everburn",
    ] {
        let path = environment.join(file);
        if !path.is_file() {
            return Err(miette!("the wheel has not put {} there", path.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Python itself: a shim, as of pyenv, would look for its tools on the path.
fn python() -> miette::Result<PathBuf> {
    let print = ["-c", "import sys, venv; print(sys.executable)"];
    let said = output_of(Command::new("python3").args(print))?;
    Ok(String::from_utf8_lossy(&said).trim().into())
}

/// An everburn that is alone on the path, and a folder to use it in.
struct Installed {
    folder: PathBuf,
    programs: OsString,
}

impl Installed {
    fn new(folder: PathBuf, programs: &Path) -> miette::Result<Self> {
        fs::create_dir(&folder).into_diagnostic()?;
        Ok(Self {
            folder,
            programs: programs.into(),
        })
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", &self.programs)
            .env("HOME", &self.folder)
            .current_dir(&self.folder);
        command
    }

    /// What `everburn <line>` prints on standard output.
    fn everburn(&self, line: &str) -> miette::Result<String> {
        let program = Path::new(&self.programs).join("everburn");
        let mut command = self.command(&program);
        let said = output_of(command.args(line.split(' ')));
        let said = said.map_err(|error| error.wrap_err(format!("everburn {line}")))?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    fn use_it(&self, which: &str) -> miette::Result<()> {
        let train =
            format!("train mnist --ranks 2 --epochs 1 --no-dashboard --run-dir runs/a {SMALL}");
        let verify = format!("verify mnist --ranks 1,2 --steps 8 --no-cost -- {SMALL}");
        for (line, expected) in [
            ("--version", concat!("everburn ", env!("CARGO_PKG_VERSION"))),
            ("devices", "flex"),
            ("doctor --ranks 2", "0 failed"),
            (&train, "recorded in runs/a"),
            ("eval runs/a", "accuracy"),
            (&verify, "to the bit"),
            ("report runs/a", "report.html"),
            ("completions bash", "complete"),
        ] {
            let said = self.everburn(line)?;
            if !said.contains(expected) || said.contains("cargo") {
                return Err(miette!(
                    "{which}: `everburn {line}` does not print `{expected}`:\n{said}"
                ));
            }
            println!("{which}: everburn {line}: ok");
        }
        // What goes wrong is told in words of this program too.
        let unknown = self
            .everburn("train nothing")
            .map_err(|error| error.chain().map(ToString::to_string).collect::<String>());
        match unknown {
            Err(why) if why.contains("everburn train --list`") && !why.contains("cargo") => Ok(()),
            said => Err(miette!("{which}: `everburn train nothing` says {said:?}")),
        }
    }
}
