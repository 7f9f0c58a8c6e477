//! What the training thread was found doing in the passes, and how functions are named.

use crate::recording::{PhaseSpan, Recording, Sample};

/// When the training thread was asked within the passes among `phases`, and what it did: the names of functions, each
/// calling the next.
pub(super) fn in_passes<'a>(
    recording: &'a Recording,
    phases: &[PhaseSpan],
) -> impl Iterator<Item = (u64, Vec<&'a str>)> {
    let samples = &recording.samples;
    let thread = recording.facts.training_thread;
    let passes = phases.iter().filter(|span| span.phase.is_pass());
    let passes: Vec<(u64, u64)> = passes.map(|span| (span.begin, span.end)).collect();
    let in_pass = move |at: u64| {
        let next = passes.partition_point(|(_, end)| *end <= at);
        passes.get(next).is_some_and(|(begin, _)| *begin <= at)
    };
    let is_own = move |sample: &&Sample| sample.thread == thread;
    // Where it is asked as time passes, what is asked as it computes comes on top.
    let mut own = samples.samples.iter().filter(is_own);
    let on_the_clock = own.any(|sample| sample.on_the_clock);
    let own = samples.samples.iter().filter(is_own);
    let own = own.filter(move |sample| sample.on_the_clock == on_the_clock && in_pass(sample.at));
    own.filter_map(|sample| {
        let stack = samples.stacks.get(sample.stack as usize)?;
        let names = stack
            .iter()
            .filter_map(|number| samples.functions.get(*number as usize));
        Some((sample.at, names.map(String::as_str).collect()))
    })
}

/// `into_data` of `<burn_tensor::Tensor<2>>::into_data::<f32>::{closure#0}`.
pub(super) fn last_word(name: &str) -> &str {
    let mut name = name;
    while let Some((rest, end)) = name.rsplit_once("::")
        && end.starts_with('{')
    {
        name = rest;
    }
    let name = without_arguments(name);
    name.rsplit_once("::").map_or(name, |(_, word)| word)
}

/// `a::f` of `a::f::<b::g::<c>>`.
fn without_arguments(name: &str) -> &str {
    if !name.ends_with('>') {
        return name;
    }
    let mut depth = 0_i32;
    for (at, letter) in name.char_indices().rev() {
        depth += match letter {
            // Not that of `->`.
            '>' if !name[..at].ends_with('-') => 1,
            '<' => -1,
            _ => 0,
        };
        if depth == 0 && letter == '<' {
            return name[..at].trim_end_matches("::");
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_type_arguments_are_read() {
        for name in [
            "<burn_tensor::Tensor<2usize, K>>::into_data::<f32>",
            "<burn_tensor::Tensor<2usize>>::into_data::{closure#0}",
            "burn_tensor::into_data::<fn(a::B) -> core::Vec<c>>::{closure#0}::{closure#1}",
            "<burn_flex::FlexTensor>::into_data",
        ] {
            assert_eq!(last_word(name), "into_data", "{name}");
        }
        assert_eq!(last_word("main"), "main");
    }
}
