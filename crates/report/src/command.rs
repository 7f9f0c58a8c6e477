//! The command lines of reports and comparisons, for every program that has them.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use everburn_record::{RUNS, runs_in};

use crate::{ReportError, compare, write_report};

/// Make a run's report: one HTML file with curves, ranks, events, configuration and results.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ReportCommand {
    /// The folder of the run [default: the newest run in runs/]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,

    /// Where to write the report [default: report.html in the folder of the run]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl ReportCommand {
    /// Writes the report, and its path to `output`.
    ///
    /// # Errors
    /// As [`write_report`].
    pub fn run(&self, output: &mut dyn Write) -> Result<(), ReportError> {
        let path = write_report(&self.run_in(Path::new(RUNS)), self.output.as_deref())?;
        // Nobody is left to tell when the output is closed; the report is written.
        let _ = writeln!(output, "{}", path.display());
        Ok(())
    }

    /// The run that was named, else the newest in `runs`; where there is none, the error names that folder.
    fn run_in(&self, runs: &Path) -> PathBuf {
        let named = self.run.clone();
        let newest = || runs_in(runs).into_iter().next();
        named.or_else(newest).unwrap_or_else(|| runs.to_owned())
    }
}

/// Compare runs: configurations, results, speed.
///
/// ```
/// use clap::Parser;
/// use everburn_report::CompareCommand;
///
/// #[derive(Parser)]
/// struct Cli {
///     #[command(flatten)]
///     compare: CompareCommand,
/// }
///
/// let cli = Cli::parse_from(["compare", "runs/a", "runs/b", "--html", "both.html"]);
/// assert_eq!(cli.compare.runs.len(), 2);
/// assert!(cli.compare.run(&mut Vec::new()).unwrap_err().to_string().contains("runs/a"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CompareCommand {
    /// The folders of the runs; the others are compared with the first
    #[arg(value_name = "RUN", required = true, num_args = 2..)]
    pub runs: Vec<PathBuf>,

    /// Also write an HTML page with the curves of all runs in one chart
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl CompareCommand {
    /// Writes the table to `output`, and the page where it is wanted.
    ///
    /// # Errors
    /// As [`compare`], and [`ReportError::Write`] if the page cannot be written.
    pub fn run(&self, output: &mut dyn Write) -> Result<(), ReportError> {
        let comparison = compare(&self.runs)?;
        if let Some(path) = &self.html {
            crate::writing::write(path, &comparison.to_html(), "--html")?;
        }
        // Nobody is left to tell when the output is closed.
        let _ = write!(output, "{}", comparison.to_text());
        if let Some(path) = &self.html {
            let _ = writeln!(output, "\n{}", path.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_name_the_report_is_of_the_newest_run() {
        let runs = tempfile::tempdir().unwrap();
        let command = |run: Option<&str>| ReportCommand {
            run: run.map(PathBuf::from),
            output: None,
        };
        assert_eq!(command(None).run_in(runs.path()), runs.path());
        let run = runs.path().join("mlp-1");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("config.toml"), "model = 'mlp'").unwrap();
        assert_eq!(command(None).run_in(runs.path()), run);
        assert_eq!(command(Some("a")).run_in(runs.path()), Path::new("a"));
    }
}
