//! How idle a schedule is by its formula.

use crate::ScheduleKind;

/// The share of its time for which a rank is idle, if all stages cost the same, the backward pass for
/// inputs and that for weights each take as long as the forward pass, and transfers take no time.
///
/// With `p` ranks, `m` micro-batches and `v` chunks:
///
/// | schedule | idle share | source |
/// |---|---|---|
/// | `gpipe`, `1f1b` | `(p-1) / (m+p-1)` | Huang et al. 2019, section 2.3; Narayanan et al. 2021 (SC), section 2.2.1 |
/// | `interleaved`, `m >= p` | `(p-1) / (v m+p-1)` | Narayanan et al. 2021 (SC), section 2.2.2 |
/// | `interleaved`, `m < p` | `(v p+m-1-v m) / (v p+m-1)` | below |
/// | `zb-h1`, `m >= p` | `(p-1) / (3 m+p-1)` | Qi et al. 2023, section 2: a bubble of `(p-1)(T_F+T_B-T_W)` |
/// | `zb-h1`, `m < p` | `(2p-1-m) / (2p-1+2m)` | below |
///
/// The papers divide the bubble by the time of work; here it is divided by the whole time, which
/// is what a clock shows. The first formulas of GPipe and 1F1B hold for any length of the backward
/// pass, the others only as said above.
///
/// With fewer micro-batches than ranks nothing fills the pipeline, and the papers give no formula.
/// Interleaved, the micro-batches then follow each other through all `v p` stages and back. In
/// ZB-H1 the first gradient comes to the first rank after `2p-1` passes, and `2m` passes of that
/// rank follow. The tests compare all of these with the simulation.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{ScheduleKind, theoretical_idle};
///
/// assert_eq!(theoretical_idle(ScheduleKind::GPipe, 4, 8, 1), 3.0 / 11.0);
/// assert_eq!(theoretical_idle(ScheduleKind::Interleaved1F1B, 4, 8, 2), 3.0 / 19.0);
/// assert_eq!(theoretical_idle(ScheduleKind::ZeroBubbleH1, 4, 8, 1), 3.0 / 27.0);
/// ```
#[must_use]
pub fn theoretical_idle(
    kind: ScheduleKind,
    ranks: usize,
    micro_batches: usize,
    chunks: usize,
) -> f64 {
    let (p, m, v) = (ranks as f64, micro_batches as f64, chunks as f64);
    match kind {
        ScheduleKind::GPipe | ScheduleKind::OneForwardOneBackward => (p - 1.0) / (m + p - 1.0),
        ScheduleKind::Interleaved1F1B if m < p => {
            let whole = v * p + m - 1.0;
            (whole - v * m) / whole
        }
        ScheduleKind::Interleaved1F1B => (p - 1.0) / (v * m + p - 1.0),
        ScheduleKind::ZeroBubbleH1 if m < p => (2.0 * p - 1.0 - m) / (2.0 * p - 1.0 + 2.0 * m),
        ScheduleKind::ZeroBubbleH1 => (p - 1.0) / (3.0 * m + p - 1.0),
    }
}
