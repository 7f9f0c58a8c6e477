//! Words that messages of errors have for what they name.

/// ` after step 5 in epoch 2`, in a training.
pub(super) fn after(step: Option<usize>, epoch: Option<usize>) -> String {
    match (step, epoch) {
        (Some(step), Some(epoch)) => format!(" after step {step} in epoch {epoch}"),
        _ => String::new(),
    }
}

/// `of rank 2 differs from the other ranks': ...`
pub(super) fn whose_differs(ranks: &[usize], has_majority: bool) -> String {
    let named = ranks.iter().map(usize::to_string);
    let named = named.collect::<Vec<_>>().join(", ");
    match has_majority {
        true => format!(
            "of rank {named} differs from the other ranks': its memory or its arithmetic cannot be trusted, or it has changed \
             its parameters outside the synchronised step"
        ),
        false => format!(
            "is not the same on rank 0 and on rank {named}, and no majority says which of them is wrong: the memory or the \
             arithmetic of one cannot be trusted, or it has changed its parameters outside the synchronised step"
        ),
    }
}

/// `rank 1 does`, `ranks 0, 2 do`
pub(super) fn several(ranks: &[usize], one: &str, many: &str) -> String {
    let numbers = ranks.iter().map(usize::to_string).collect::<Vec<_>>();
    match ranks.len() {
        1 => format!("rank {} {one}", numbers.concat()),
        _ => format!("ranks {} {many}", numbers.join(", ")),
    }
}

/// Of a metric that this rank alone reports, or does not.
pub(super) fn change(is_new: bool) -> &'static str {
    match is_new {
        true => "was not reported in the steps before",
        false => "was reported in the steps before, and is missing on this rank",
    }
}
