//! What a run looks like while it continues: burn-train's dashboard, plain lines, or nothing.

/// The methods of a trait that another renderer has, in the field `$to`.
macro_rules! hand_on {
    ($to:ident: $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&mut self, $($argument: $type),*) $(-> $result)? {
            self.$to.$name($($argument),*)
        })*
    };
}

/// All that `$renderer` shows of tests, by the renderer in the field `$to`.
macro_rules! hand_on_tests {
    ($renderer:ident, $to:ident) => {
        impl MetricsRendererEvaluation for $renderer {
            hand_on! { $to:
                fn update_test(name: EvaluationName, state: MetricState);
                fn on_test_end(summary: Option<LearnerSummary>) -> Result<(), Box<dyn std::error::Error>>;
            }
        }

        impl EvaluationProgressLogger for $renderer {
            hand_on! { $to:
                fn start_global_progress(total_tests: usize);
                fn start_test(name: &str, total_items: usize);
                fn update_test_progress(items_processed: usize);
                fn end_test();
                fn end_global_progress();
                fn log_event_evaluation(event: String);
            }
        }
    };
}

mod dashboard;
mod lines;
mod named_metrics;
mod replay;

pub use dashboard::Dashboard;
pub use lines::Lines;
pub(crate) use named_metrics::NamedMetrics;
pub use replay::Replay;

use std::io::Write;

use burn_train::Interrupter;
use burn_train::renderer::MetricsRenderer;
use everburn_record::StopSignal;
use serde::{Deserialize, Serialize};

use crate::record::run_directory::RunDirectory;

/// How a rank shows its training.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::renderer::Display;
///
/// assert_eq!(Display::default(), Display::Silent);
/// ```
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
    pub(crate) fn renderer(
        self,
        interrupter: &Interrupter,
        run: Option<&RunDirectory>,
        stop: &StopSignal,
    ) -> Box<dyn MetricsRenderer> {
        match self {
            Self::Dashboard => Box::new(Dashboard::of_run(interrupter.clone(), run, stop)),
            Self::Lines => Box::new(Lines::stdout()),
            Self::Silent => Box::new(Lines::new(Box::new(std::io::sink()))),
        }
    }

    /// Shows a line before the training begins: the dashboard has not taken the terminal yet.
    pub(crate) fn announce(self, text: &str) {
        match self {
            // Nobody is left to tell when standard output is closed; the training continues.
            Self::Lines | Self::Dashboard => drop(writeln!(std::io::stdout(), "{text}")),
            Self::Silent => {}
        }
    }

    /// Shows a text that is not progress: among the lines; in the log where there is a dashboard.
    pub(crate) fn show(self, text: &str) {
        match self {
            // Nobody is left to tell when standard output is closed; the training continues.
            Self::Lines => drop(writeln!(std::io::stdout(), "{text}")),
            Self::Dashboard => tracing::info!("{text}"),
            Self::Silent => {}
        }
    }
}
