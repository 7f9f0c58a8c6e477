//! What a run looks like while it goes on: burn-train's dashboard, plain lines, or nothing.

mod dashboard;
mod lines;
mod silent;

pub use dashboard::Dashboard;
pub use lines::Lines;
pub use silent::Silent;

use std::io::Write;

use burn_train::Interrupter;
use burn_train::renderer::MetricsRenderer;
use serde::{Deserialize, Serialize};

/// How a rank shows its training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Display {
    /// burn-train's dashboard; needs a terminal.
    Dashboard,
    /// A line every few seconds.
    Lines,
    /// Nothing: every rank but the first.
    #[default]
    Silent,
}

impl Display {
    pub(crate) fn renderer(self, interrupter: &Interrupter) -> Box<dyn MetricsRenderer> {
        match self {
            Self::Dashboard => Box::new(Dashboard::new(interrupter.clone())),
            Self::Lines => Box::new(Lines::stdout()),
            Self::Silent => Box::new(Silent),
        }
    }

    /// Shows a text that is not progress: among the lines; in the log where there is a dashboard.
    pub(crate) fn show(self, text: &str) {
        match self {
            // Nobody is left to tell when standard output is closed; the training goes on.
            Self::Lines => drop(writeln!(std::io::stdout(), "{text}")),
            Self::Dashboard => tracing::info!("{text}"),
            Self::Silent => {}
        }
    }
}
