//! Layers that could be faster ones by another import.

use super::{Finding, FindingKind, percent, rules};
use crate::analysis::{Analysis, RankProfile};

/// Burn's own layers compute on the CPU. Their whole time is what the other layers win at most: how much faster these
/// are depends on shapes.
pub(super) fn burn_layers(analysis: &Analysis) -> Option<Finding> {
    let of = |rank: &RankProfile| -> f64 { rank.burn_layers.iter().map(|it| it.seconds).sum() };
    let ranks = analysis.ranks.iter();
    let worst = ranks.max_by(|one, other| of(one).total_cmp(&of(other)))?;
    let of_step = |seconds: f64| percent(seconds, worst.step_seconds);
    let kinds: Vec<String> = worst
        .burn_layers
        .iter()
        .map(|layer| format!("{} {}", layer.kind, of_step(layer.seconds)))
        .collect();
    let rank = worst.facts.rank;
    Some(Finding {
        kind: FindingKind::BurnLayers,
        rank: Some(rank),
        layer: None,
        share: rules::won(analysis, of),
        text: format!(
            "{} of rank {rank}'s step goes into Burn's own layers on the CPU ({})",
            of_step(of(worst)),
            kinds.join(", ")
        ),
        advice: "write `use everburn::nn` for `use burn::nn` in the model, and `use everburn::tensor` for `use \
                 burn::tensor`: the same layers and checkpoints with faster kernels"
            .to_owned(),
    })
}
