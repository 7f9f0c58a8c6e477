//! A layer that computes much slower than its machine can.

use super::{Finding, FindingKind, LEAST_SHARE, rules};
use crate::analysis::{Analysis, Layer, RankProfile};
use crate::recording::Pass;

/// Which part of the peak a layer is expected to reach: below it something else than arithmetic takes most of its time.
const EXPECTED: f64 = 0.2;

/// Which part of the passes' time a layer must take to be looked at.
const LARGE: f64 = 0.15;

/// A batch of no more samples may be too small to keep the machine busy.
const SMALL_BATCH: f64 = 64.0;

/// How much sooner a layer's pass would be over at the expected part of the peak, in seconds.
fn lost(rank: &RankProfile, layer: &Layer, pass: Pass) -> f64 {
    let (seconds, operations) = match pass {
        Pass::Forward => (layer.forward, layer.forward_operations),
        Pass::Backward => (layer.backward, layer.backward_operations),
    };
    let peak = rank.peak_operations.unwrap_or(0.0);
    match operations > 0.0 && peak > 0.0 {
        true => (seconds - operations / (EXPECTED * peak)).max(0.0),
        false => 0.0,
    }
}

/// Whether a layer takes a large part of the passes, and is below what is expected in both together.
fn is_below(rank: &RankProfile, layer: &Layer) -> bool {
    let passes: f64 = rank.layers.iter().map(Layer::seconds).sum();
    let is_slow = layer.share_of_peak.is_some_and(|share| share < EXPECTED);
    is_slow && layer.seconds() >= LARGE * passes
}

/// The layer by which a step loses most against what the machine can. No win is promised: a layer's time holds what
/// follows it, of which nothing is counted.
pub(super) fn below_peak(analysis: &Analysis) -> Option<Finding> {
    let layers = analysis.ranks.iter();
    let layers = layers.flat_map(|rank| rank.layers.iter().map(move |layer| (rank, layer)));
    let passes = layers
        .filter(|(rank, layer)| is_below(rank, layer))
        .flat_map(|(rank, layer)| {
            [Pass::Forward, Pass::Backward].map(|pass| (rank, layer, pass, lost(rank, layer, pass)))
        });
    // Of ranks that lose as much, the first is named.
    let most = passes.reduce(|most, other| if other.3 > most.3 { other } else { most });
    let (rank, layer, pass, _) = most?;
    // As for a fault: if each rank's layer of this name were as fast as expected.
    let won = rules::won(analysis, |rank| {
        let of_name = rank.layers.iter().filter(|other| other.name == layer.name);
        of_name.map(|layer| lost(rank, layer, pass)).sum()
    });
    let (reached, peak) = (layer.operations_a_second_of(pass)?, rank.peak_operations?);
    if won < LEAST_SHARE {
        return None;
    }
    let (name, number) = (&layer.name, rank.facts.rank);
    let way = pass.name();
    let samples = rank.samples_a_pass();
    let small = samples.filter(|samples| *samples <= SMALL_BATCH);
    let batch = samples.map_or(String::new(), |samples| {
        format!(", at {samples:.0} samples a pass")
    });
    let behind =
        "its time holds what follows it without parameters, of which no operations are counted";
    Some(Finding {
        kind: FindingKind::BelowPeak,
        rank: Some(number),
        layer: Some(name.clone()),
        share: 0.0,
        text: format!(
            "layer {name} computes {way} at {:.0} % of rank {number}'s peak ({:.1} of {:.1} GFLOP/s{batch})",
            100.0 * reached / peak,
            reached / 1e9,
            peak / 1e9
        ),
        advice: match small {
            Some(_) => {
                format!("a larger `training.batch_size` may give more samples per second; {behind}")
            }
            None => format!(
                "it is bound by memory or by the next operation, and a larger batch will hardly help; {behind}"
            ),
        },
    })
}
