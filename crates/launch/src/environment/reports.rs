//! What a rank reports to its launcher: why it ends, and at which step.

use everburn_record::attempt;

use super::RankEnvironment;
use crate::failure::{RankReport, ReportKind, write_if_first};
use crate::panic_place::{naming_lost_device, place_of_panic};
use crate::stop::received_signal;

impl RankEnvironment {
    /// Reports to the launcher why this rank ends; the first report of a failure counts. Without a launcher, or
    /// when the file cannot be written, it does nothing: the error is on its way to the log anyway. A stop without a message
    /// is reported with the signal that this rank has got, and a device that has failed is named in the first line of the
    /// message, of a panic in the line after its place.
    pub fn report(&self, kind: ReportKind, step: Option<u64>, message: &str) {
        let named = naming_lost_device(message).filter(|_| kind.is_failure());
        let message = match (kind, message) {
            (ReportKind::Stopped, "") => received_signal().to_owned(),
            _ => named.unwrap_or_else(|| message.to_owned()),
        };
        self.send(&RankReport {
            step,
            ..RankReport::new(self.rank, kind, &message)
        });
    }

    /// Reports that this rank fails because of another one, `lost_rank` if that is certain, and whose machine is
    /// `silent_machine` if no rank of that sends heartbeats. Returns whether our
    /// launcher writes `message` to this rank's log, and shows the failure once for all ranks that report it:
    /// then it need not be printed.
    #[must_use]
    pub fn report_peer_lost(
        &self,
        lost_rank: Option<usize>,
        silent_machine: Option<usize>,
        step: Option<u64>,
        message: &str,
    ) -> bool {
        let sent = self.send(&RankReport {
            step,
            lost_rank,
            silent_machine,
            ..RankReport::new(self.rank, ReportKind::PeerLost, message)
        });
        sent.is_some() && self.launcher_pid.is_some()
    }

    /// Reports an error of this rank's own, at `step` if that is known. Returns whether our launcher writes `message` to this
    /// rank's log, and shows it once for all ranks that end alike: then it need not be printed. The launcher of an elastic
    /// job, which may start the rank again, does neither, and no launcher does if a failure was reported before.
    ///
    /// ```
    /// # mod everburn { pub use everburn_launch as launch; }
    /// use everburn::launch::RankEnvironment;
    ///
    /// fn fail(rank: &RankEnvironment, error: &str) {
    ///     if !rank.report_error(None, error) {
    ///         eprintln!("error: {error}");
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn report_error(&self, step: Option<u64>, message: &str) -> bool {
        let unprinted = self.launcher_pid.is_some() && self.elastic.is_none();
        let message = naming_lost_device(message).unwrap_or_else(|| message.to_owned());
        let is_first = self.send(&RankReport {
            step,
            unprinted,
            ..RankReport::new(self.rank, ReportKind::Own, message)
        });
        unprinted && is_first == Some(true)
    }

    /// Says at which step this rank fails, for the report of a failure that names none. The first call counts, and step 0 is
    /// none.
    pub fn failed_at(&self, step: u64) {
        if step > 0 {
            // What goes wrong later is a consequence.
            let _ = self.failed_at.set(step);
        }
    }

    /// Writes `report` for the launcher, and returns whether it is the first of its kind; `None` if there is no launcher, or it
    /// could not be written.
    fn send(&self, report: &RankReport) -> Option<bool> {
        let failed_at = || self.failed_at.get().copied();
        let known = || failed_at().or_else(|| self.present_step.get());
        let report = &RankReport {
            step: match report.kind.is_failure() {
                true => report.step.or_else(known),
                false => report.step,
            },
            ..report.clone()
        };
        let file = match report.kind.is_failure() {
            true => &self.error_file,
            false => &self.finished_file,
        };
        let path = file.as_ref()?;
        let written = write_if_first(path, report);
        if let Err(error) = &written {
            tracing::warn!(
                "the report could not be written to {}: {error}",
                path.display()
            );
        }
        written.ok()
    }

    /// Reports to the launcher that this rank has done all of its work: call it once the last file is written, and
    /// end with 0 then. Our launcher takes a rank that ends with 0 and has not called this for failed. A rank
    /// that was stopped or not needed ([`ReportKind::Stopped`], [`ReportKind::NotNeeded`]) has reported that by
    /// [`report`](Self::report) before, and the first report counts.
    pub fn report_finished(&self) {
        self.report(ReportKind::Finished, None, "");
    }

    /// Reports every panic of this process to the launcher, then does what was done before; none of an
    /// [`attempt`](everburn_record::attempt).
    pub fn report_panics(&self) {
        self.report_panics_as(|| ReportKind::Panic);
    }

    /// The same, where `kind` says of a panic whose fault it is.
    pub(crate) fn report_panics_as(&self, kind: impl Fn() -> ReportKind + Send + Sync + 'static) {
        let this = self.clone();
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let mut report = panic.to_string();
            if let Some(place) = place_of_panic(&report) {
                report.push('\n');
                report.push_str(&place);
            }
            if attempt::holds(&report) {
                return;
            }
            this.report(kind(), None, &report);
            previous(panic);
        }));
    }
}
