//! The analysis as text.

use std::fmt::{self, Display, Formatter};

use everburn_record::units::counted;
use everburn_record::{plain, ranks, table};

use crate::analysis::{Analysis, RankProfile};
use crate::findings::percent;
use crate::phase::Phase;

/// How many layers and copies are shown of a rank.
const MOST_ROWS: usize = 12;

/// [`Analysis`] for people to read.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Analysis, Facts, Phase, Recorder, Summary};
///
/// let recorder = Recorder::new(Facts::default());
/// for step in 1..=4 {
///     recorder.begin_step(step);
///     recorder.enter(Phase::Forward);
/// }
/// let analysis = Analysis::of(&[recorder.finish()])?;
/// let text = Summary(&analysis).to_string();
/// assert!(text.contains("rank 0") && text.contains("forward"), "{text}");
/// # Ok::<(), everburn_profile::ProfileError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Summary<'a>(pub &'a Analysis);

impl Display for Summary<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let analysis = self.0;
        let (steps, left_out) = (analysis.steps, analysis.left_out);
        let timed = match analysis.kernels_timed {
            0 => String::new(),
            timed => format!(", nor {timed} in which kernels were timed"),
        };
        writeln!(
            f,
            "{} of {:.2} ms, the first {left_out} not counted{timed}; milliseconds per step by rank:",
            counted(steps, "step"),
            analysis.step_seconds * 1e3
        )?;
        if !analysis.missing.is_empty() {
            writeln!(
                f,
                "the recordings of {} are missing: name the folders that have them (`elsewhere`), else slow ranks and \
                 long exchanges are not found",
                ranks(&analysis.missing)
            )?;
        }
        writeln!(f)?;
        phases(f, analysis)?;
        raised_peaks(f, analysis)?;
        for rank in &analysis.ranks {
            layers(f, rank)?;
            device(f, rank)?;
        }
        Ok(())
    }
}

fn device(f: &mut Formatter<'_>, rank: &RankProfile) -> fmt::Result {
    let Some(device) = &rank.device else {
        return Ok(());
    };
    writeln!(
        f,
        "\nkernels of rank {}, {} timed",
        rank.facts.rank,
        counted(device.steps, "step")
    )?;
    let all: f64 = device.kernels.iter().map(|kernel| kernel.seconds).sum();
    let rows = device.kernels.iter().take(MOST_ROWS).map(|kernel| {
        vec![
            // The end of its name says least.
            plain::line(&kernel.name, 45),
            format!("{:.1}", kernel.launches),
            format!("{:.3}", kernel.seconds * 1e3),
            percent(kernel.seconds, all),
            kernel.asked_in.clone(),
        ]
    });
    let header = ["kernel", "a step", "ms / step", "share", "asked for in"];
    let rows: Vec<_> = rows.collect();
    writeln!(f, "{}", table::aligned(&header, &rows, &[4]))?;
    if let Some(rest) = device
        .kernels
        .get(MOST_ROWS..)
        .filter(|rest| !rest.is_empty())
    {
        let seconds: f64 = rest.iter().map(|kernel| kernel.seconds).sum();
        writeln!(f, "{} more, together {:.3}", rest.len(), seconds * 1e3)?;
    }
    writeln!(
        f,
        "{:.0} kernels per step, at least one of them running for {:.2} ms",
        device.launches,
        device.busy * 1e3
    )?;
    if device.dropped > 0 {
        writeln!(
            f,
            "  missing at the end, for they did not fit: {}",
            counted(device.dropped as usize, "kernel")
        )?;
    }
    Ok(())
}

fn phases(f: &mut Formatter<'_>, analysis: &Analysis) -> fmt::Result {
    write!(f, "{:<22}", "")?;
    for rank in &analysis.ranks {
        write!(f, "{:>17}", format!("rank {}", rank.facts.rank))?;
    }
    writeln!(f)?;
    let line = |f: &mut Formatter<'_>, name: &str, of: &dyn Fn(&RankProfile) -> String| {
        write!(f, "{name:<22}")?;
        for rank in &analysis.ranks {
            write!(f, "{:>17}", of(rank))?;
        }
        writeln!(f)
    };
    for phase in Phase::ALL {
        line(f, phase.name(), &|rank| {
            let seconds = rank.phase(phase).seconds;
            let share = percent(seconds, rank.step_seconds);
            format!("{:.2} {share:>5}", seconds * 1e3)
        })?;
    }
    line(f, "step", &|rank| {
        format!("{:.2} 100 %", rank.step_seconds * 1e3)
    })?;
    line(f, "exchange, hidden", &|rank| {
        format!("{:.2}      ", rank.hidden_exchange * 1e3)
    })?;
    line(f, "loader threads", &|rank| {
        format!("{:.2}      ", rank.loading * 1e3)
    })?;
    line(
        f,
        "ready, without a core",
        &|rank| match rank.kept_waiting {
            Some(seconds) => format!("{:.2}      ", seconds * 1e3),
            None => "-      ".to_owned(),
        },
    )?;
    let total = |rank: &RankProfile, number: fn(&crate::analysis::PhaseCost) -> f64| -> f64 {
        rank.phases.iter().map(number).sum()
    };
    line(f, "allocations", &|rank| {
        format!("{:.0}      ", total(rank, |cost| cost.allocations))
    })?;
    line(f, "allocated, MiB", &|rank| {
        format!(
            "{:.1}      ",
            total(rank, |cost| cost.bytes) / f64::from(1 << 20)
        )
    })?;
    line(f, "GFLOP/s of passes", &|rank| {
        let peak = rank.peak_operations;
        match (rank.operations_a_second(), peak) {
            (None, _) => "-      ".to_owned(),
            (Some(reached), None) => format!("{:.1}      ", reached / 1e9),
            (Some(reached), Some(peak)) => {
                format!("{:.1} {:>5}", reached / 1e9, percent(reached, peak))
            }
        }
    })?;
    line(f, "  at its peak", &|rank| match rank.peak_operations {
        Some(peak) => format!("{:.1} 100 %", peak / 1e9),
        None => "-      ".to_owned(),
    })?;
    line(f, "peak memory, MiB", &|rank| match rank.peak_memory {
        Some(bytes) => format!("{:.0}      ", bytes as f64 / f64::from(1 << 20)),
        None => "-      ".to_owned(),
    })
}

/// Which peaks are not those that were measured, and why.
fn raised_peaks(f: &mut Formatter<'_>, analysis: &Analysis) -> fmt::Result {
    for rank in &analysis.ranks {
        let measured = rank.facts.peak_operations.zip(rank.peak_raised_by.as_ref());
        if let Some((measured, raised_by)) = measured {
            writeln!(
                f,
                "the peak of rank {} is what {raised_by} reached: before the training {:.1} GFLOP/s were measured, beside other \
                 programs or at a lower clock",
                rank.facts.rank,
                measured / 1e9
            )?;
        }
    }
    Ok(())
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn layers(f: &mut Formatter<'_>, rank: &RankProfile) -> fmt::Result {
    if rank.layers.is_empty() {
        return Ok(());
    }
    let requested = match rank.facts.is_asynchronous {
        true => ", as the host requests them: the device computes asynchronously",
        false => "",
    };
    writeln!(f, "\nlayers of rank {}{requested}", rank.facts.rank)?;
    let mut layers: Vec<_> = rank.layers.iter().collect();
    if layers.len() > MOST_ROWS {
        layers.sort_by(|one, other| other.seconds().total_cmp(&one.seconds()));
    }
    let rows = layers.iter().take(MOST_ROWS).map(|layer| {
        let reached = layer.operations_a_second;
        let of_peak = layer.share_of_peak;
        vec![
            layer.name.clone(),
            format!("{:.2}", layer.forward * 1e3),
            format!("{:.2}", layer.backward * 1e3),
            percent(layer.seconds(), rank.step_seconds),
            or_dash(reached.map(|reached| format!("{:.1}", reached / 1e9))),
            or_dash(of_peak.map(|share| percent(share, 1.0))),
        ]
    });
    let header = [
        "layer", "forward", "backward", "share", "GFLOP/s", "of peak",
    ];
    let rows: Vec<_> = rows.collect();
    writeln!(f, "{}", table::aligned(&header, &rows, &[]))?;
    if let Some(rest) = layers.get(MOST_ROWS..).filter(|rest| !rest.is_empty()) {
        let seconds: f64 = rest.iter().map(|layer| layer.seconds()).sum();
        writeln!(f, "{} more, together {:.2}", rest.len(), seconds * 1e3)?;
    }
    for copy in rank
        .copies
        .iter()
        .take(MOST_ROWS)
        .filter(|copy| copy.seconds > 1e-5)
    {
        let layer = if copy.layer.is_empty() {
            "a pass"
        } else {
            &copy.layer
        };
        writeln!(
            f,
            "  {:.2} ms in `{}` in {layer}, called by {}",
            copy.seconds * 1e3,
            copy.by,
            copy.caller
        )?;
    }
    if rank.samples_dropped > 0 {
        writeln!(
            f,
            "  missing at the end, for they did not fit: {} of the CPU",
            counted(rank.samples_dropped as usize, "sample")
        )?;
    }
    Ok(())
}
