//! What is found of layers.

use super::*;

#[test]
fn layers_of_burns_own_on_the_cpu_are_told_with_the_import_that_replaces_them() {
    let functions = [
        "model::Net::forward",
        "<burn_flex::Flex as burn_backend::ModuleOps<burn_flex::Flex>>::conv2d",
        "<burn_flex::Flex as burn_backend::ModuleOps<burn_flex::Flex>>::max_pool2d",
        "<burn_flex::Flex as everburn_nn::layers::operations::LayerOps>::convolve",
    ];
    let stacks: [&[u32]; 4] = [&[0, 1], &[0, 2], &[0, 3], &[0]];
    // A forward pass of 30 ms after one of data: 20 of convolution, 5 of pooling, 3 of our layers.
    let times = [(0, 20), (1, 5), (2, 3), (3, 2)];
    let found = findings(&[sampled(functions, &stacks, &times)]);
    assert_eq!(found[0].kind, FindingKind::BurnLayers);
    assert_eq!(
        found[0].to_string(),
        "25 % of rank 0's step goes into Burn's own layers on the CPU (convolution 20 %, pooling 5 %): write `use \
         everburn::nn` for `use burn::nn` in the model, and `use everburn::tensor` for `use burn::tensor`: the same \
         layers and checkpoints with faster kernels (saves up to 25 % of a step)"
    );
}

/// The same as `recording`, of which a step computes this many millions of operations: conv1 and fc1 forward, then fc1
/// and conv1 backward; by a rank that could compute `peak` thousand millions a second.
fn computing(mut recording: Recording, operations: [u64; 4], peak: f64) -> Recording {
    recording.facts.peak_operations = Some(peak * 1e9);
    let mut counted = 0;
    let mut marks = recording.marks.chunks_mut(4);
    for passes in recording
        .phases
        .chunks_mut(SOUND.len())
        .map(|step| &mut step[1..3])
    {
        let [first, second, third, fourth] = operations.map(|millions| millions * 1_000_000);
        let middle = counted + first + second;
        let end = middle + third + fourth;
        passes[0].operations = [counted, middle];
        passes[1].operations = [middle, end];
        let by_then = [counted, counted + first, middle + third, end];
        for (mark, by_then) in marks.next().unwrap().iter_mut().zip(by_then) {
            mark.operations = by_then;
        }
        counted = end;
    }
    recording
}

#[test]
fn a_layer_far_below_the_peak_is_told_behind_all_faults() {
    // conv1: 60 in 15 ms forward, 120 in 30 ms backward: 4 thousand millions a second, of 40. fc1 is as fast as can be.
    let slow = |number, step: &Step| computing(rank(number, step), [60, 600, 1200, 120], 40.0);
    let with_batch = |batch_size, step: &Step| {
        let mut ranks = [slow(0, step), slow(1, step)];
        for rank in &mut ranks {
            rank.facts.batch_size = batch_size;
        }
        ranks
    };
    let found = findings(&with_batch(32, SOUND));
    let of_layers = [FindingKind::BelowPeak, FindingKind::LargestLayer];
    assert_eq!([found[0].kind, found[1].kind], of_layers);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        found[0].to_string(),
        "layer conv1 computes backward at 10 % of rank 0's peak (4.0 of 40.0 GFLOP/s, at 16 samples a pass): a \
         larger `training.batch_size` may give more samples per second; its time holds what \
         follows it without parameters, of which no operations are counted"
    );
    assert_eq!(
        (found[0].layer.as_deref(), found[0].share),
        (Some("conv1"), 0.0)
    );
    // A batch that is large already is not told to grow.
    let found = findings(&with_batch(1024, SOUND));
    assert_eq!(found[0].kind, FindingKind::BelowPeak);
    let text = found[0].to_string();
    assert!(
        text.contains("bound by memory") && text.contains("512 samples"),
        "{text}"
    );
    // A fault comes first, however small it is beside what the layer loses.
    let late = with(&[(Phase::Data, 6)]);
    let found = kinds(&with_batch(32, &late));
    assert_eq!(found[..2], [FindingKind::Data, FindingKind::BelowPeak]);
}

#[test]
fn a_layer_is_not_below_a_peak_that_nobody_knows_or_that_it_reaches() {
    let of = |recording: Recording| {
        let found = findings(&[recording]);
        let below = found
            .iter()
            .find(|finding| finding.kind == FindingKind::BelowPeak);
        below.map(ToString::to_string)
    };
    assert_eq!(of(rank(0, SOUND)), None, "nobody counts");
    let slow = || computing(rank(0, SOUND), [60, 600, 1200, 120], 40.0);
    assert!(of(slow()).is_some());
    let mut unmeasured = slow();
    unmeasured.facts.peak_operations = None;
    assert_eq!(of(unmeasured), None);
    let mut behind = slow();
    behind.facts.is_asynchronous = true;
    assert_eq!(of(behind), None, "when a device computes is not known");
    // Half of what it could; and no more than is expected, in the half that is slow.
    assert_eq!(
        of(computing(rank(0, SOUND), [300, 300, 600, 600], 40.0)),
        None
    );
    assert_eq!(
        of(computing(rank(0, SOUND), [50, 300, 600, 700], 40.0)),
        None
    );
    // A layer that computes nothing is bound by something else for certain, and is not measured by a peak.
    assert_eq!(of(computing(rank(0, SOUND), [0, 600, 1200, 0], 40.0)), None);
}

#[test]
fn the_numbers_of_a_layer_are_printed() {
    let slow = computing(rank(0, SOUND), [60, 600, 1200, 120], 40.0);
    let mut unmeasured = slow.clone();
    (unmeasured.facts.rank, unmeasured.facts.peak_operations) = (1, None);
    let analysis = Analysis::of(&[slow, unmeasured]).unwrap();
    let text = everburn_profile::Summary(&analysis).to_string();
    let lines = |name: &str| -> Vec<Vec<&str>> {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines
            .map(|line| line.split_whitespace().collect())
            .collect()
    };
    assert_eq!(
        lines("conv1"),
        [
            ["conv1", "15.00", "30.00", "45", "%", "4.0", "10", "%"].to_vec(),
            ["conv1", "15.00", "30.00", "45", "%", "4.0", "-"].to_vec()
        ],
        "{text}"
    );
    // 1980 millions in 90 ms.
    assert_eq!(
        lines("GFLOP/s of passes"),
        [["GFLOP/s", "of", "passes", "22.0", "55", "%", "22.0"]],
        "{text}"
    );
    assert!(!text.contains("the peak of rank"), "{text}");
    let json = serde_json::to_value(&analysis).unwrap();
    let layer = &json["ranks"][0]["layers"][0];
    for (name, expected) in [("forward_operations", 60e6), ("share_of_peak", 0.1)] {
        let found = layer[name].as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 1e-6, "{layer}");
    }
}

#[test]
fn no_layer_is_printed_above_the_peak() {
    // fc1 reaches 40 thousand millions a second, and 25 were measured.
    let fast = computing(rank(0, SOUND), [60, 600, 1200, 120], 25.0);
    let analysis = Analysis::of(&[fast]).unwrap();
    let found = analysis.ranks[0].peak_operations.unwrap();
    assert!((found / 40e9 - 1.0).abs() < 1e-6, "{found}");
    assert_eq!(analysis.ranks[0].facts.peak_operations, Some(25e9));
    let text = everburn_profile::Summary(&analysis).to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    let words = words.join(" ");
    for part in [
        "fc1 15.00 30.00 45 % 40.0 100 %",
        "at its peak 40.0 100 %",
        "of passes 22.0 55 %",
    ] {
        assert!(words.contains(part), "{part}: {text}");
    }
    let noted = "the peak of rank 0 is what fc1 ";
    let told = " reached: before the training 25.0 GFLOP/s were measured, beside other programs or at a lower clock\n";
    assert!(text.contains(noted) && text.contains(told), "{text}");
}
