//! Reports as files.

use std::io::Write;
use std::path::{Path, PathBuf};

use everburn_record::file;

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

pub(crate) fn write(path: &Path, text: &str) -> Result<(), ReportError> {
    file::replace(path, |file| file.write_all(text.as_bytes()))
        .map_err(|error| ReportError::file("writing", path, &error))
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
        let error = write(&folder.path().join("none/c"), "").unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("writing ") && error.contains("none/c: "),
            "{error}"
        );
    }
}
