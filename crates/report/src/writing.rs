//! Reports as files.

use std::fs;
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

/// Writes a whole file, or none: who looks at it meanwhile sees the old one.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), ReportError> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(name);
    let failed = |error| ReportError::file("writing", path, &error);
    fs::write(&partial, text)
        .and_then(|()| fs::rename(&partial, path))
        .map_err(|error| {
            // What stays of it is nobody's; the first error is the one that is told.
            let _ = fs::remove_file(&partial);
            failed(error)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

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
