//! The rules by which findings are made.

use everburn_record::statistics::median;
use everburn_record::units;

use super::{Finding, FindingKind, percent};
use crate::analysis::{Analysis, RankProfile};
use crate::phase::Phase;
use crate::recording::Facts;

/// How much longer than the others a rank must work to be called slow.
const SLOW: f64 = 1.2;

/// Which part of a step the optimizer may take without a word: Adam's few operations a number are cheap where there
/// are passes of some samples.
const USUAL_OPTIMIZER: f64 = 0.2;

/// From which part of a step on the largest layer is worth a look.
const LARGE_LAYER: f64 = 0.2;

/// Which part of a step loader threads may be at work before there are too few of them.
const BUSY: f64 = 0.9;

/// Which part of a step mending wins, if it takes `without` of each rank's own work away.
pub(super) fn won(analysis: &Analysis, without: impl Fn(&RankProfile) -> f64) -> f64 {
    let ranks = || analysis.ranks.iter();
    let now = ranks().map(RankProfile::own_seconds).fold(0.0, f64::max);
    let mended = ranks().map(|rank| rank.own_seconds() - without(rank).min(rank.own_seconds()));
    let mended = mended.fold(0.0, f64::max);
    (now - mended).max(0.0) / analysis.step_seconds.max(f64::MIN_POSITIVE)
}

/// The rank of which `number` is largest, with the number.
fn largest(
    analysis: &Analysis,
    number: impl Fn(&RankProfile) -> f64,
) -> Option<(&RankProfile, f64)> {
    let ranks = analysis.ranks.iter().map(|rank| (rank, number(rank)));
    ranks.max_by(|one, other| one.1.total_cmp(&other.1))
}

/// Ranks wait for their batches.
pub(super) fn data(analysis: &Analysis) -> Option<Finding> {
    let of = |rank: &RankProfile| rank.phase(Phase::Data).seconds;
    let (worst, seconds) = largest(analysis, of)?;
    let facts = &worst.facts;
    let workers = facts.workers;
    let advice = if workers == 0 {
        "raise `training.input.workers`, which is 0: the training thread itself assembles each batch while nothing computes".to_owned()
    } else if worst.loading > BUSY * workers as f64 * worst.step_seconds {
        format!("raise `training.input.workers`: the {workers} that there are read all the time")
    } else {
        format!(
            "raise `training.input.prefetch`, which is {}: the {workers} of `training.input.workers` rest for a part of the time, and \
             batches take unequally long",
            facts.prefetch
        )
    };
    let rank = facts.rank;
    let share = percent(seconds, worst.step_seconds);
    Some(Finding {
        kind: FindingKind::Data,
        rank: Some(rank),
        layer: None,
        share: won(analysis, of),
        text: format!(
            "{share} of rank {rank}'s step waits for data ({})",
            units::seconds(seconds)
        ),
        advice,
    })
}

/// What a rank works without waiting for others or for data.
fn work(rank: &RankProfile) -> f64 {
    rank.own_seconds() - rank.phase(Phase::Data).seconds
}

/// One rank does the same as the others, and takes longer.
pub(super) fn slow_rank(analysis: &Analysis) -> Option<Finding> {
    let (slow, seconds) = largest(analysis, work)?;
    let others = || {
        analysis
            .ranks
            .iter()
            .filter(|rank| rank.facts.rank != slow.facts.rank)
    };
    let usual = median(&others().map(work).collect::<Vec<_>>())?;
    if seconds < SLOW * usual {
        return None;
    }
    let rank = slow.facts.rank;
    let more = |phase: Phase| {
        let usual = median(
            &others()
                .map(|rank| rank.phase(phase).seconds)
                .collect::<Vec<_>>(),
        );
        slow.phase(phase).seconds - usual.unwrap_or(0.0)
    };
    let own = Phase::ALL
        .into_iter()
        .filter(|phase| !phase.waits() && *phase != Phase::Data);
    let most = own.max_by(|one, other| more(*one).total_cmp(&more(*other)))?;
    let times = seconds / usual.max(f64::MIN_POSITIVE);
    let where_it_is = match most {
        Phase::Other => "outside of its passes".to_owned(),
        phase => format!("in its {} phase", phase.name()),
    };
    Some(Finding {
        kind: FindingKind::SlowRank,
        rank: Some(rank),
        layer: None,
        share: won(analysis, |other| match other.facts.rank == rank {
            true => seconds - usual,
            false => 0.0,
        }),
        text: format!(
            "rank {rank} works {times:.1} times as long as the others ({} of a step, not {}), mostly {where_it_is}, and \
             all wait for it",
            units::seconds(seconds),
            units::seconds(usual)
        ),
        advice: format!(
            "look at what else runs on {}, at its clock and heat, and whether its device is the others'",
            slow.facts.host.as_deref().unwrap_or("its machine")
        ),
    })
}

/// A layer copies between device and host.
pub(super) fn host_copy(analysis: &Analysis) -> Option<Finding> {
    // All copies of a layer: several calls are one fault.
    let of_layer = |rank: &RankProfile, layer: &str| -> f64 {
        let copies = rank.copies.iter().filter(|copy| copy.layer == layer);
        copies.map(|copy| copy.seconds).sum()
    };
    let each = analysis.ranks.iter().flat_map(|rank| {
        let layers = rank.copies.iter().map(|copy| copy.layer.as_str());
        layers.map(move |layer| (rank, layer, of_layer(rank, layer)))
    });
    let (rank, layer, seconds) = each.max_by(|one, other| one.2.total_cmp(&other.2))?;
    let first = rank.copies.iter().find(|copy| copy.layer == layer)?;
    let place = match layer {
        "" => "a pass".to_owned(),
        layer => format!("layer {layer}"),
    };
    let caller = match first.caller.as_str() {
        "" => String::new(),
        caller => format!(", called by {caller}"),
    };
    let number = rank.facts.rank;
    Some(Finding {
        kind: FindingKind::HostCopy,
        rank: Some(number),
        layer: (!layer.is_empty()).then(|| layer.to_owned()),
        share: won(analysis, |rank| of_layer(rank, layer)),
        text: format!(
            "{} of rank {number}'s step goes into copies between device and host in {place} (`{}`{caller})",
            percent(seconds, rank.step_seconds),
            first.by
        ),
        advice: "compute with tensors there, and read numbers only after the step".to_owned(),
    })
}

/// The exchange of gradients takes longer than the backward pass can hide.
pub(super) fn exchange(analysis: &Analysis) -> Option<Finding> {
    // Who comes last does not wait for others: what it waits is the exchange's own.
    let ranks = analysis.ranks.iter();
    let least = ranks.min_by(|one, other| {
        let of = |rank: &RankProfile| rank.phase(Phase::Exchange).seconds;
        of(one).total_cmp(&of(other))
    })?;
    if least.facts.world_size < 2 {
        return None;
    }
    let exposed = least.phase(Phase::Exchange).seconds;
    let all = exposed + least.hidden_exchange;
    Some(Finding {
        kind: FindingKind::Exchange,
        rank: None,
        layer: None,
        share: exposed / analysis.step_seconds.max(f64::MIN_POSITIVE),
        text: format!(
            "{} of a step waits for the exchange of gradients ({} of {} are not hidden by the backward pass)",
            percent(exposed, analysis.step_seconds),
            units::seconds(exposed),
            units::seconds(all)
        ),
        advice:
            "raise `training.batch_size`, so that a step computes more for the same exchange; send less by \
                 `training.ddp.communication = bf16`; or exchange less often by `training.sync = 8`"
                .to_owned(),
    })
}

fn kept_waiting(rank: &RankProfile) -> f64 {
    rank.kept_waiting.unwrap_or(0.0)
}

/// How long it was kept waiting for a core while it had work of its own: what it did not compute of that at most. Who
/// waits for
/// other ranks is ready now and then, too, and loses nothing by it.
fn kept_from_work(rank: &RankProfile) -> f64 {
    let own = rank.phases.iter().filter(|cost| !cost.phase.waits());
    let idle: f64 = own.map(|cost| (cost.seconds - cost.cpu).max(0.0)).sum();
    kept_waiting(rank).min(idle)
}

/// On how many threads the ranks of `facts`'s machine compute, if these are more than it has cores.
fn wanted_in_vain(analysis: &Analysis, facts: &Facts) -> Option<usize> {
    let ranks = analysis.ranks.iter();
    let here = ranks.filter(|rank| rank.facts.machine == facts.machine);
    let wanted = here.map(|rank| rank.facts.threads).sum();
    (wanted > facts.cores && facts.cores > 0).then_some(wanted)
}

/// Whether the rank that most lacks a core lacks it because of the training itself.
pub(super) fn ranks_want_more_than_there_is(analysis: &Analysis) -> bool {
    let worst = largest(analysis, kept_waiting);
    worst.is_some_and(|(worst, _)| wanted_in_vain(analysis, &worst.facts).is_some())
}

/// Whether `finding` is of a slow rank that stood without a core for half of what it is late, or longer.
pub(super) fn is_slow_for_want_of_cores(analysis: &Analysis, finding: &Finding) -> bool {
    let (slow, others): (Vec<&RankProfile>, Vec<&RankProfile>) = analysis
        .ranks
        .iter()
        .partition(|rank| Some(rank.facts.rank) == finding.rank);
    let [slow] = slow.as_slice() else {
        return false;
    };
    let more = |number: fn(&RankProfile) -> f64| {
        let usual = median(&others.iter().map(|rank| number(rank)).collect::<Vec<_>>());
        number(slow) - usual.unwrap_or(0.0)
    };
    more(kept_from_work) >= 0.5 * more(work)
}

/// Others have the cores.
pub(super) fn cores(analysis: &Analysis) -> Option<Finding> {
    let (worst, seconds) = largest(analysis, kept_waiting)?;
    let facts = &worst.facts;
    let advice = match wanted_in_vain(analysis, facts) {
        Some(wanted) => format!(
            "take fewer `ranks.ranks` or `ranks.threads_per_rank`: the ranks of this machine compute on {wanted} threads and may \
             use {} cores",
            facts.cores
        ),
        None => "end what else computes on this machine".to_owned(),
    };
    let rank = facts.rank;
    Some(Finding {
        kind: FindingKind::Cores,
        rank: Some(rank),
        layer: None,
        share: won(analysis, kept_waiting),
        text: format!(
            "rank {rank} is ready to compute and has no core for {} of its step",
            percent(seconds, worst.step_seconds)
        ),
        advice,
    })
}

/// The optimizer takes a large part.
pub(super) fn optimizer(analysis: &Analysis) -> Option<Finding> {
    let of = |rank: &RankProfile| rank.phase(Phase::Optimizer).seconds;
    let (worst, seconds) = largest(analysis, of)?;
    let usual = |rank: &RankProfile| USUAL_OPTIMIZER * rank.step_seconds;
    let rank = worst.facts.rank;
    Some(Finding {
        kind: FindingKind::Optimizer,
        rank: Some(rank),
        layer: None,
        share: won(analysis, |rank| (of(rank) - usual(rank)).max(0.0)),
        text: format!(
            "{} of rank {rank}'s step is the optimizer's",
            percent(seconds, worst.step_seconds)
        ),
        advice: "raise `training.batch_size`: what the optimizer does is the same for any number of samples"
            .to_owned(),
    })
}

/// Records, comparisons and checkpoints take a large part.
pub(super) fn records(analysis: &Analysis) -> Option<Finding> {
    let of = |rank: &RankProfile| rank.phase(Phase::Records).seconds;
    let (worst, seconds) = largest(analysis, of)?;
    let rank = worst.facts.rank;
    Some(Finding {
        kind: FindingKind::Records,
        rank: Some(rank),
        layer: None,
        share: won(analysis, of),
        text: format!(
            "{} of rank {rank}'s step goes into records, comparisons and checkpoints after it",
            percent(seconds, worst.step_seconds)
        ),
        advice:
            "raise `training.log_every`, `training.compare_every` or `training.checkpoint_every`"
                .to_owned(),
    })
}

/// Where most of the time is, if that is a fifth of a step or more: no fault.
pub(super) fn largest_layer(analysis: &Analysis) -> Option<Finding> {
    let layers = analysis.ranks.iter();
    let layers = layers.flat_map(|rank| rank.layers.iter().map(move |layer| (rank, layer)));
    let (rank, layer) =
        layers.max_by(|one, other| one.1.seconds().total_cmp(&other.1.seconds()))?;
    if layer.seconds() < LARGE_LAYER * rank.step_seconds {
        return None;
    }
    let name = &layer.name;
    Some(Finding {
        kind: FindingKind::LargestLayer,
        rank: Some(rank.facts.rank),
        layer: Some(name.clone()),
        share: 0.0,
        text: format!(
            "layer {name} takes most of rank {}'s time, {} of its step",
            rank.facts.rank,
            percent(layer.seconds(), rank.step_seconds)
        ),
        advice: format!(
            "{} forward and {} backward: a faster step begins there",
            units::seconds(layer.forward),
            units::seconds(layer.backward)
        ),
    })
}
