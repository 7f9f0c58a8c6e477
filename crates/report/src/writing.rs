//! Reports as files.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use everburn_record::file;

use crate::{ReportError, Run};

/// The name of a run's report in its folder.
const REPORT: &str = "report.html";

/// Reads the run in `folder` and writes its report to `output`, or to `report.html` in the folder. Returns where it is.
///
/// # Errors
/// [`ReportError::File`] if the folder cannot be read or that of `output` is not there, [`ReportError::NoRun`] if there is no
/// run in it, [`ReportError::Write`] if the report cannot be written.
pub fn write_report(folder: &Path, output: Option<&Path>) -> Result<PathBuf, ReportError> {
    let run = Run::read(folder)?;
    let output = output.map_or_else(|| folder.join(REPORT), Path::to_path_buf);
    write(&output, &run.to_html(), "--output")?;
    Ok(output)
}

/// Writes a page to the place that `flag` gives.
pub(crate) fn write(path: &Path, text: &str, flag: &str) -> Result<(), ReportError> {
    let written = file::replace(path, |file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        // Of the folder: the request cannot be met.
        ErrorKind::NotFound => ReportError::file("writing", path, &error),
        _ => ReportError::Write {
            path: path.to_path_buf(),
            reason: file::with_hint(&error, flag),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_report_that_cannot_be_written_names_its_path() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.toml"), "model = 'mnist'").unwrap();
        let report = write_report(folder.path(), None).unwrap();
        assert!(fs::read_to_string(report).unwrap().contains("mnist"));
        let error = write(&folder.path().join("config.toml/c"), "", "--output").unwrap_err();
        let told = "config.toml/c failed: Not a directory (os error 20); a file is in the way: choose another --output";
        assert!(error.to_string().ends_with(told), "{error}");
        let error = write(&folder.path().join("none/c"), "", "--output").unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("writing ") && error.contains("none/c: "),
            "{error}"
        );
    }
}
