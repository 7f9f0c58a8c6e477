//! The command line, and looking on without a terminal.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use everburn_report::Phase;

use crate::error::MonitorError;
use crate::source::{Source, Target};
use crate::update::Update;

/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Where runs are recorded where nothing else is said.
const RUNS: &str = "runs";

/// Look on while a run goes on, or at one that is over: curves, ranks, events. Any number of monitors may look at a run,
/// come and go; none can change anything.
///
/// ```
/// use clap::Parser;
/// use everburn_monitor::MonitorCommand;
///
/// #[derive(Parser)]
/// struct Cli {
///     #[command(flatten)]
///     monitor: MonitorCommand,
/// }
///
/// let cli = Cli::parse_from(["monitor", "runs/a", "--json"]);
/// assert_eq!(cli.monitor.run.as_deref(), Some("runs/a"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct MonitorCommand {
    /// The folder of the run, or HOST:PORT where it is served [default: the run in runs/ that was written to last]
    #[arg(value_name = "RUN|HOST:PORT")]
    pub run: Option<String>,

    /// Print what is learnt of the run as lines of JSON, until it is over; so it is without a terminal, too
    #[arg(long)]
    pub json: bool,

    /// Serve the run to monitors on other machines; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "json")]
    pub listen: Option<String>,

    /// The job's secret; needed where the run is not served on loopback
    #[arg(
        long,
        env = "EVERBURN_JOB_TOKEN",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    pub job_token: Option<String>,
}

impl MonitorCommand {
    /// Which run is meant.
    ///
    /// # Errors
    /// [`MonitorError::NoRuns`] if none was named and there is none.
    pub fn target(&self) -> Result<Target, MonitorError> {
        match &self.run {
            Some(run) => Ok(run.parse().unwrap_or_else(|never| match never {})),
            None => Target::newest_in(Path::new(RUNS)),
        }
    }
}

/// Prints what is learnt of a run, a line of JSON each, until the run is over or nobody reads any more.
///
/// ```
/// use everburn_monitor::{Target, print_json};
///
/// let folder = tempfile::tempdir().unwrap();
/// std::fs::write(folder.path().join("config.toml"), "model = 'mnist'").unwrap();
/// let source = Target::Folder(folder.path().into()).open(None)?;
/// let mut lines = Vec::new();
/// print_json(source, &mut lines);
/// assert!(String::from_utf8(lines).unwrap().contains("mnist"));
/// # Ok::<(), everburn_monitor::MonitorError>(())
/// ```
pub fn print_json(mut source: Source, output: &mut dyn Write) {
    let (mut running, mut ended) = (true, false);
    loop {
        for update in source.poll() {
            match &update {
                Update::Running(now) => running = *now,
                Update::Live(live) => ended = live.phase == Phase::Ended,
                Update::Reset => continue,
                _ => {}
            }
            let Ok(text) = serde_json::to_string(&update) else {
                continue;
            };
            if writeln!(output, "{text}")
                .and_then(|()| output.flush())
                .is_err()
            {
                return;
            }
        }
        if source.has_more() {
            continue;
        }
        // Who holds the run may have ended without a word; who has said so may still be at its report.
        if !running {
            tracing::debug!("the run is over; it had said so: {ended}");
            return;
        }
        std::thread::sleep(LOOK);
    }
}
