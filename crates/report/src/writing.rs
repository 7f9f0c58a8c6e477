//! Reports as files.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::{ReportError, Run};

/// The name of a run's report in its folder.
const REPORT: &str = "report.html";

/// Reads the run in `folder` and writes its report to `output`, or to `report.html` in the folder. Returns where it is.
///
/// # Errors
/// [`ReportError::File`] if the folder cannot be read or the report not be written, [`ReportError::NoRun`] if there is no
/// run in it.
pub fn write_report(folder: &Path, output: Option<&Path>) -> Result<PathBuf, ReportError> {
    let run = Run::read(folder)?;
    let output = output.map_or_else(|| folder.join(REPORT), Path::to_path_buf);
    write(&output, &run.to_html())?;
    Ok(output)
}

/// Writes a whole file, or none: readers see the old one until the new one is complete. A link of that name is
/// replaced, and not followed; the temporary name cannot be foreseen.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), ReportError> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let attempt = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(".everburn-")
            // As every file of a run: the process's umask applies.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    attempt().map_err(|error| ReportError::file("writing", path, &error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_planted_link_is_replaced_and_its_target_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("config.toml"), "model = 'mnist'").unwrap();
        fs::write(path("theirs"), "precious").unwrap();
        // Also at the name that a report had until it was complete.
        let partial = format!("report.html.{}.partial", std::process::id());
        for name in ["report.html", &partial] {
            std::os::unix::fs::symlink(path("theirs"), path(name)).unwrap();
        }
        let report = write_report(folder.path(), None).unwrap();
        assert_eq!(fs::read_to_string(path("theirs")).unwrap(), "precious");
        assert!(report.symlink_metadata().unwrap().is_file());
        assert!(fs::read_to_string(report).unwrap().contains("mnist"));
    }

    #[test]
    fn a_report_may_be_read_by_all_whom_the_umask_lets() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "").unwrap();
        write(&folder.path().join("b"), "").unwrap();
        let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions();
        assert_eq!(mode("b"), mode("a"));
    }

    #[test]
    fn a_report_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.html");
        write(&path, "one").unwrap();
        write(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::create_dir(folder.path().join("b")).unwrap();
        let error = write(&folder.path().join("b"), "three")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("writing ") && error.contains("/b: "),
            "{error}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let error = write(&folder.path().join("none/c"), "three")
            .unwrap_err()
            .to_string();
        assert!(error.contains("none/c: "), "{error}");
    }
}
