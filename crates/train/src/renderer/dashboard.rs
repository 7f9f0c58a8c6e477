//! burn-train's dashboard, with a Ctrl-C that works.

use burn_train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn_train::metric::MetricDefinition;
use burn_train::renderer::tui::TuiMetricsRendererWrapper;
use burn_train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};
use burn_train::{Interrupter, LearnerSummary};
use everburn_monitor::{Purpose, Screen};
use everburn_record::StopSignal;

use crate::record::run_directory::RunDirectory;

/// burn-train's terminal dashboard, and by the key `r` the ranks ([`everburn_monitor::Screen`]).
///
/// The dashboard puts the terminal into raw mode, in which Ctrl-C is a key like any other, and it
/// ignores that key. This renderer switches the signal keys on again, so that Ctrl-C reaches the
/// launcher and all ranks as everywhere else; leaving raw mode restores the terminal as it was.
///
/// ```no_run
/// # mod everburn { pub use everburn_train as train; }
/// use burn_train::renderer::MetricsRenderer;
///
/// let interrupter = burn_train::Interrupter::new();
/// let mut dashboard = everburn::train::renderer::Dashboard::new(interrupter);
/// dashboard.manual_close();
/// ```
pub struct Dashboard {
    // Ends before the screen that it draws on.
    tui: TuiMetricsRendererWrapper,
    signals_restored: bool,
    _screen: Option<Screen>,
}

impl Dashboard {
    /// Takes over the terminal; `interrupter` is notified when the user asks to stop.
    pub fn new(interrupter: Interrupter) -> Self {
        Self {
            tui: TuiMetricsRendererWrapper::new(interrupter, None),
            signals_restored: false,
            _screen: None,
        }
    }

    /// The same, which shares the terminal with the view of the ranks of `run`, and kills by `stop`.
    pub fn of_run(interrupter: Interrupter, run: Option<&RunDirectory>, stop: &StopSignal) -> Self {
        let run = run.map(|run| run.path().to_path_buf());
        let stop = stop.clone();
        match Screen::take_over(Purpose::Train { run, stop }) {
            // Its raw mode leaves the signal keys as they are.
            Ok(screen) => Self {
                signals_restored: true,
                _screen: Some(screen),
                ..Self::new(interrupter)
            },
            Err(error) => {
                tracing::warn!("the ranks cannot be shown beside the dashboard: {error}");
                Self::new(interrupter)
            }
        }
    }

    /// The dashboard enters raw mode on a thread of its own, some time after it was made: so this
    /// is tried at each event until raw mode is seen.
    fn restore_signal_keys(&mut self) {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        if self.signals_restored {
            return;
        }
        let stdin = std::io::stdin();
        let Ok(mut modes) = tcgetattr(&stdin) else {
            self.signals_restored = true; // not a terminal
            return;
        };
        let is_raw = !modes.local_modes.contains(LocalModes::ICANON);
        if is_raw {
            modes.local_modes.insert(LocalModes::ISIG);
            self.signals_restored = tcsetattr(&stdin, OptionalActions::Now, &modes).is_ok();
        }
    }
}

impl MetricsRendererTraining for Dashboard {
    fn update_train(&mut self, state: MetricState) {
        self.restore_signal_keys();
        self.tui.update_train(state);
    }

    hand_on! { tui:
        fn update_valid(state: MetricState);
        fn on_train_end(summary: Option<LearnerSummary>) -> Result<(), Box<dyn std::error::Error>>;
    }
}

impl MetricsRenderer for Dashboard {
    fn register_metric(&mut self, definition: MetricDefinition) {
        self.restore_signal_keys();
        self.tui.register_metric(definition);
    }

    hand_on! { tui:
        fn manual_close();
    }
}

impl TrainingProgressLogger for Dashboard {
    fn start(
        &mut self,
        total_epochs: usize,
        starting_epoch: usize,
        total_items: Option<usize>,
        label: Option<&str>,
    ) {
        self.restore_signal_keys();
        self.tui
            .start(total_epochs, starting_epoch, total_items, label);
    }

    fn update_split(&mut self, items_processed: usize) {
        self.restore_signal_keys();
        self.tui.update_split(items_processed);
    }

    hand_on! { tui:
        fn update_epoch(epoch: usize);
        fn start_split(split: &str, total_items: usize);
        fn end_split();
        fn end();
        fn log_event_training(event: String);
    }
}

hand_on_tests!(Dashboard, tui);
