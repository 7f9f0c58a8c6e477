//! `everburn man`: manual pages from the definition of the command line.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::{ToolError, program_name};
use crate::arguments::Arguments;

/// Where to.
#[derive(Debug, Args)]
pub(crate) struct ManualArguments {
    /// The folder, created if missing: everburn.1, everburn-train.1, ...
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes a page for the program and for each command that is shown.
pub(crate) fn run(arguments: &ManualArguments) -> Result<ExitCode, ToolError> {
    let folder = &arguments.folder;
    write(folder, program_name()).map_err(|error| {
        ToolError::Failed(format!("cannot write {}: {error}", folder.display()))
    })?;
    say!("the pages are in {}", folder.display());
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path, program: String) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    // A name is for the whole process to clap; this is done once in one.
    let command = Arguments::of_program().name(&*program.leak());
    clap_mangen::generate_to(command, folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_shown_has_a_page_with_its_flags() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("man1");
        write(&folder, "flowers".to_owned()).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(page("flowers.1").contains("train"));
        assert!(page("flowers-train.1").contains("virtual\\-ranks"));
        assert!(page("flowers-verify.1").contains("resume\\-after"));
        assert!(!folder.join("flowers-doctor-rank.1").exists());
        assert!(!folder.join("flowers-help.1").exists());
    }
}
