//! Which module of the model a moment of a pass belongs to.
//!
//! The forward pass comes to a module when it asks for the first of its parameters, and stays there until it asks for
//! another module's. The backward pass has left a module when its last gradient is finished. So a module's time holds
//! that of what follows it without parameters (activations, pooling, dropout), forward as backward, and the last one's
//! that of the loss.

use std::collections::HashMap;

use serde::Serialize;

use crate::phase::Phase;
use crate::recording::{Mark, Pass, PhaseSpan, Recording};

/// A module with parameters, and what follows it until the next one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Layer {
    /// Its path in the model.
    pub name: String,
    /// How long a step's forward passes were in it, in seconds.
    pub forward: f64,
    /// How long a step's backward passes were in it, in seconds.
    pub backward: f64,
}

impl Layer {
    /// Both passes together, in seconds.
    pub fn seconds(&self) -> f64 {
        self.forward + self.backward
    }
}

/// A part of a pass that belongs to one module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Segment<'a> {
    pub(crate) module: &'a str,
    pub(crate) pass: Pass,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// The parts of all passes among `phases`, in their order.
pub(crate) fn segments<'a>(recording: &'a Recording, phases: &[PhaseSpan]) -> Vec<Segment<'a>> {
    let mut segments: Vec<Segment<'a>> = Vec::new();
    for span in phases.iter().filter(|span| span.phase.is_pass()) {
        // Marks are in the order of time: one thread makes them.
        let first = recording.marks.partition_point(|mark| mark.at < span.begin);
        let marks = recording.marks[first..]
            .iter()
            .take_while(|mark| mark.at < span.end);
        let pass = match span.phase {
            Phase::Forward => Pass::Forward,
            _ => Pass::Backward,
        };
        // Whoever collects gradients asks for parameters that the forward pass has not come to.
        let marks: Vec<Mark> = marks.filter(|mark| mark.pass == pass).copied().collect();
        let [Some(first), Some(last)] = [marks.first(), marks.last()] else {
            continue;
        };
        let edges: Vec<(u32, u64, u64)> = match pass {
            Pass::Forward => {
                let ends = marks.iter().skip(1).map(|mark| mark.at).chain([span.end]);
                let parts = marks.iter().zip(ends);
                let parts = parts.map(|(mark, end)| (mark.parameter, mark.at, end));
                // What comes before the first parameter prepares the first module's input.
                [(first.parameter, span.begin, first.at)]
                    .into_iter()
                    .chain(parts)
                    .collect()
            }
            Pass::Backward => {
                let begins = [span.begin]
                    .into_iter()
                    .chain(marks.iter().map(|mark| mark.at));
                let parts = begins.zip(&marks);
                let parts = parts.map(|(begin, mark)| (mark.parameter, begin, mark.at));
                parts.chain([(last.parameter, last.at, span.end)]).collect()
            }
        };
        for (parameter, begin, end) in edges {
            let Some(path) = recording.parameters.get(parameter as usize) else {
                continue;
            };
            let module = module_of(path);
            match segments.last_mut() {
                Some(before)
                    if before.module == module && before.end == begin && before.pass == pass =>
                {
                    before.end = end;
                }
                _ => segments.push(Segment {
                    module,
                    pass,
                    begin,
                    end,
                }),
            }
        }
    }
    segments
}

/// What each module took a step, in the order in which the forward pass first came to them.
pub(crate) fn sums(recording: &Recording, segments: &[Segment<'_>], steps: f64) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let order = recording.parameters.iter().map(|path| module_of(path));
    let used = segments
        .iter()
        .filter(|segment| segment.pass == Pass::Forward);
    // Modules that no forward pass of the window came to are found in the backward pass, if anywhere.
    for module in used.map(|segment| segment.module).chain(order) {
        places.entry(module).or_insert_with(|| {
            layers.push(Layer {
                name: module.to_owned(),
                forward: 0.0,
                backward: 0.0,
            });
            layers.len() - 1
        });
    }
    for segment in segments {
        let layer = &mut layers[places[segment.module]];
        let seconds = (segment.end - segment.begin) as f64 / 1e9 / steps;
        match segment.pass {
            Pass::Forward => layer.forward += seconds,
            Pass::Backward => layer.backward += seconds,
        }
    }
    layers.retain(|layer| layer.seconds() > 0.0);
    layers
}

/// `conv1` for `conv1.weight`; a parameter that the model itself holds is its own module.
fn module_of(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(module, _)| module)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(phase: Phase, begin: u64, end: u64) -> PhaseSpan {
        PhaseSpan {
            phase,
            step: 1,
            begin,
            end,
            cpu: 0,
            allocations: 0,
            bytes: 0,
        }
    }

    fn mark(parameter: u32, pass: Pass, at: u64) -> Mark {
        Mark {
            parameter,
            pass,
            at,
        }
    }

    #[test]
    fn a_pass_is_shared_out_to_the_modules_without_a_rest() {
        use Pass::{Backward, Forward};
        let recording = Recording {
            parameters: ["a.weight", "a.bias", "b.weight", "scale", "unused.weight"]
                .map(String::from)
                .to_vec(),
            marks: vec![
                mark(0, Forward, 105),
                mark(1, Forward, 110),
                mark(2, Forward, 130),
                mark(3, Forward, 180),
                mark(3, Backward, 220),
                mark(2, Backward, 250),
                mark(1, Backward, 260),
                mark(0, Backward, 290),
                // Nobody has used it.
                mark(4, Forward, 295),
            ],
            ..Recording::default()
        };
        let phases = [
            span(Phase::Forward, 100, 200),
            span(Phase::Backward, 200, 300),
        ];
        let segments = segments(&recording, &phases);
        let layers = sums(&recording, &segments, 1e-9);
        let found: Vec<(&str, f64, f64)> = layers
            .iter()
            .map(|layer| {
                (
                    layer.name.as_str(),
                    layer.forward.round(),
                    layer.backward.round(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [("a", 30.0, 50.0), ("b", 50.0, 30.0), ("scale", 20.0, 20.0)]
        );
    }

    #[test]
    fn passes_without_marks_belong_to_no_module() {
        let phases = [span(Phase::Forward, 0, 10)];
        assert!(segments(&Recording::default(), &phases).is_empty());
    }
}
