//! Flags of servers that show the run to others.

use clap::Args;

/// Where the run is served while it trains.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MonitoringFlags {
    /// Serve the run to monitors on other machines (`monitor HOST:PORT`). Needs a --job-token (or EVERBURN_JOB_TOKEN)
    /// on both sides. On this machine, monitors need no server: `monitor RUN`.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) monitor: Option<String>,

    /// Serve the run's figures to Prometheus, at /metrics. Needs a --job-token (or EVERBURN_JOB_TOKEN); Prometheus
    /// sends what `monitor --prometheus-token` prints.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) prometheus: Option<String>,
}
