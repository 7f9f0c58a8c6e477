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
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Layer, RankProfile};
///
/// /// The module that takes most of the passes.
/// fn longest(rank: &RankProfile) -> Option<&Layer> {
///     let layers = rank.layers.iter();
///     layers.max_by(|one, other| one.seconds().total_cmp(&other.seconds()))
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Layer {
    /// Its path in the model.
    pub name: String,
    /// How long a step's forward passes were in it, in seconds.
    pub forward: f64,
    /// How long a step's backward passes were in it, in seconds.
    pub backward: f64,
    /// How many floating point operations of a step's forward passes were counted in it.
    pub forward_operations: f64,
    /// How many floating point operations of a step's backward passes were counted in it.
    pub backward_operations: f64,
    /// How many of them it computed a second, in both passes; `None` where none are counted, or where a device computes
    /// them at another time.
    pub operations_a_second: Option<f64>,
    /// Which part that is of the most that its rank could compute, where this is known.
    pub share_of_peak: Option<f64>,
}

/// How much more than the measured peak a layer reaches that is named for it.
const NOTED: f64 = 1.01;

impl Layer {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            forward: 0.0,
            backward: 0.0,
            forward_operations: 0.0,
            backward_operations: 0.0,
            operations_a_second: None,
            share_of_peak: None,
        }
    }

    /// Both passes together, in seconds.
    pub fn seconds(&self) -> f64 {
        self.forward + self.backward
    }

    /// How many operations per second it computed in `pass`; `None` as for [`operations_a_second`](Self::operations_a_second).
    pub(crate) fn operations_a_second_of(&self, pass: Pass) -> Option<f64> {
        self.operations_a_second?;
        match pass {
            Pass::Forward => rate(self.forward_operations, self.forward),
            Pass::Backward => rate(self.backward_operations, self.backward),
        }
    }
}

/// Operations a second, where there are any.
pub(super) fn rate(operations: f64, seconds: f64) -> Option<f64> {
    (operations > 0.0 && seconds > 0.0).then(|| operations / seconds)
}

/// A part of a pass that belongs to one module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Segment<'a> {
    pub(crate) module: &'a str,
    pub(crate) pass: Pass,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// How many floating point operations were counted in it.
    pub(crate) operations: u64,
}

/// A moment, and what had been counted by then.
type Moment = (u64, u64);

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
        let of = |mark: &Mark| -> Moment { (mark.at, mark.operations) };
        let (begin, end) = (
            (span.begin, span.operations[0]),
            (span.end, span.operations[1]),
        );
        let edges: Vec<(u32, Moment, Moment)> = match pass {
            Pass::Forward => {
                let ends = marks.iter().skip(1).map(of).chain([end]);
                let parts = marks.iter().zip(ends);
                let parts = parts.map(|(mark, end)| (mark.parameter, of(mark), end));
                // What comes before the first parameter prepares the first module's input.
                [(first.parameter, begin, of(first))]
                    .into_iter()
                    .chain(parts)
                    .collect()
            }
            Pass::Backward => {
                let begins = [begin].into_iter().chain(marks.iter().map(of));
                let parts = begins.zip(&marks);
                let parts = parts.map(|(begin, mark)| (mark.parameter, begin, of(mark)));
                parts.chain([(last.parameter, of(last), end)]).collect()
            }
        };
        for (parameter, (begin, counted), (end, by_end)) in edges {
            let Some(path) = recording.parameters.get(parameter as usize) else {
                continue;
            };
            let module = module_of(path);
            let operations = by_end.saturating_sub(counted);
            match segments.last_mut() {
                Some(before)
                    if before.module == module && before.end == begin && before.pass == pass =>
                {
                    before.end = end;
                    before.operations += operations;
                }
                _ => segments.push(Segment {
                    module,
                    pass,
                    begin,
                    end,
                    operations,
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
            layers.push(Layer::new(module));
            layers.len() - 1
        });
    }
    for segment in segments {
        let layer = &mut layers[places[segment.module]];
        let seconds = (segment.end - segment.begin) as f64 / 1e9 / steps;
        let operations = segment.operations as f64 / steps;
        match segment.pass {
            Pass::Forward => {
                layer.forward += seconds;
                layer.forward_operations += operations;
            }
            Pass::Backward => {
                layer.backward += seconds;
                layer.backward_operations += operations;
            }
        }
    }
    layers.retain(|layer| layer.seconds() > 0.0);
    let facts = &recording.facts;
    // Where a device computes behind the host's back, the times are those at which it was asked to.
    for layer in layers.iter_mut().filter(|_| !facts.is_asynchronous) {
        let operations = layer.forward_operations + layer.backward_operations;
        layer.operations_a_second = rate(operations, layer.seconds());
    }
    layers
}

/// Gives each layer its share of a rank's peak, and returns that: what was measured before the training, or what a layer
/// reached in a pass, where that is more. Then also which one it was. Other programs and a lower clock in the eighth of a
/// second that is measured lower the one and not the other.
pub(crate) fn share_out(
    layers: &mut [Layer],
    measured: Option<f64>,
) -> (Option<f64>, Option<String>) {
    let Some(measured) = measured.filter(|peak| *peak > 0.0) else {
        return (None, None);
    };
    let passes = layers.iter().flat_map(|layer| {
        [Pass::Forward, Pass::Backward]
            .map(|pass| (layer, pass, layer.operations_a_second_of(pass)))
    });
    let passes = passes.filter_map(|(layer, pass, reached)| Some((layer, pass, reached?)));
    // Of passes as fast as each other, the first is named.
    let fastest = passes.reduce(|most, other| if other.2 > most.2 { other } else { most });
    let (mut peak, mut raised_by) = (measured, None);
    if let Some((layer, pass, reached)) = fastest {
        peak = peak.max(reached);
        raised_by = (reached > NOTED * measured).then(|| format!("{} {}", layer.name, pass.name()));
    }
    for layer in layers {
        let reached = layer.operations_a_second;
        layer.share_of_peak = reached.map(|reached| reached / peak);
    }
    (Some(peak), raised_by)
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
            ..PhaseSpan::default()
        }
    }

    fn mark(parameter: u32, pass: Pass, at: u64) -> Mark {
        Mark {
            parameter,
            pass,
            at,
            operations: 0,
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

    #[test]
    fn operations_are_shared_out_as_the_time_is() {
        use Pass::{Backward, Forward};
        let counted = |mark: Mark, operations| Mark { operations, ..mark };
        let mut recording = Recording {
            parameters: ["a.weight", "b.weight"].map(String::from).to_vec(),
            marks: vec![
                counted(mark(0, Forward, 110), 1000),
                counted(mark(1, Forward, 150), 1400),
                counted(mark(1, Backward, 250), 1900),
                counted(mark(0, Backward, 290), 2300),
            ],
            ..Recording::default()
        };
        let counted = |span: PhaseSpan, operations| PhaseSpan { operations, ..span };
        let phases = [
            counted(span(Phase::Forward, 100, 200), [1000, 1500]),
            counted(span(Phase::Backward, 200, 300), [1500, 2300]),
        ];
        let parts = segments(&recording, &phases);
        assert_eq!(
            parts.iter().map(|part| part.operations).sum::<u64>(),
            1300,
            "nothing is lost"
        );
        let mut layers = sums(&recording, &parts, 1.0);
        let found: Vec<(f64, f64)> = layers
            .iter()
            .map(|layer| (layer.forward_operations, layer.backward_operations))
            .collect();
        assert_eq!(found, [(400.0, 400.0), (100.0, 400.0)]);
        // 400 in 50 ns forward and 400 in 50 ns backward.
        let close = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() / expected - 1.0).abs() < 1e-9, "{found:?}");
        };
        close(layers[0].operations_a_second, 8e9);
        assert_eq!(share_out(&mut layers, Some(40e9)), (Some(40e9), None));
        close(layers[0].share_of_peak, 0.2);
        // More than was measured is the peak then.
        let (peak, raised_by) = share_out(&mut layers, Some(4e9));
        close(peak, 8e9);
        assert_eq!(raised_by.as_deref(), Some("a forward"));
        assert!(layers.iter().all(|layer| layer.share_of_peak <= Some(1.0)));
        assert_eq!(share_out(&mut layers, None), (None, None));
        close(layers[1].operations_a_second_of(Forward), 2e9);
        close(layers[1].operations_a_second_of(Backward), 8e9);
        // What a device computes behind the host's back is counted, and is no rate.
        recording.facts.is_asynchronous = true;
        let layers = sums(&recording, &segments(&recording, &phases), 1.0);
        assert_eq!(layers[0].forward_operations, 400.0);
        assert_eq!(
            (
                layers[0].operations_a_second,
                layers[0].operations_a_second_of(Forward)
            ),
            (None, None)
        );
    }
}
