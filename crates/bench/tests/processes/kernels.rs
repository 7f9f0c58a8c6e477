//! The process of `bench kernels` that times layers: orders on standard input, and an answer for each.

use everburn_tests::{Ended, Everburn};
use serde_json::{Value, json};

/// Of each layer: how many inputs and how many parameters it has, and what it is.
const LAYERS: &str = r#"
1 2 {"kind": "conv2d", "channels": [2, 3], "kernel": 3, "stride": 2, "padding": 1, "side": 5, "bias": true}
1 0 {"kind": "max-pool2d", "channels": 2, "kernel": 2, "stride": 2, "padding": 0, "side": 4}
1 0 {"kind": "mean-over-pixels", "channels": 2, "side": 4}
1 2 {"kind": "batch-norm", "channels": 2, "side": 4, "epsilon": 1e-5, "scales": true}
1 1 {"kind": "batch-norm", "channels": 2, "side": 4, "epsilon": 1e-3, "scales": false}
1 0 {"kind": "relu", "shape": [2, 3]}
2 0 {"kind": "add", "shape": [2, 3]}
1 0 {"kind": "gelu", "shape": [7]}
1 0 {"kind": "dropout", "shape": [7], "share": 0.5}
1 2 {"kind": "linear", "features": [3, 2], "tokens": null}
1 2 {"kind": "linear", "features": [3, 2], "tokens": 4}
1 1 {"kind": "tied-scores", "tokens": 4, "width": 3, "vocabulary": 5}
1 2 {"kind": "layer-norm", "tokens": 4, "width": 6}
0 1 {"kind": "embedding", "tokens": 4, "width": 3, "vocabulary": 5}
1 0 {"kind": "softmax", "heads": 2, "tokens": 4}
2 0 {"kind": "matmul", "heads": null, "rows": 2, "inner": 3, "columns": 4}
2 0 {"kind": "matmul", "heads": 2, "rows": 2, "inner": 3, "columns": 4}
1 0 {"kind": "rotary", "heads": 2, "tokens": 4, "width": 6}
3 0 {"kind": "attention", "heads": 2, "tokens": 4, "width": 6}
1 0 {"kind": "cross-entropy", "classes": 5, "tokens": 1}
"#;

fn order(layer: &str, pass: &str) -> Value {
    let layer: Value = serde_json::from_str(layer).unwrap();
    json!({ "layer": layer, "batch": 3, "pass": pass, "milliseconds": 1, "check": true })
}

fn carry_out(orders: &[Value]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<_> = orders.iter().map(|order| format!("{order}\n")).collect();
    let side = ["side", "kernels", "--threads", "1"];
    let side = Everburn::bench(folder.path(), side).input(&lines.concat());
    side.run()
}

#[test]
fn every_layer_yields_its_output_and_as_many_gradients_as_are_asked_for() {
    let (mut orders, mut expected) = (Vec::new(), Vec::new());
    for line in LAYERS.trim().lines() {
        let mut words = line.splitn(3, ' ');
        let mut number = || words.next().unwrap().parse::<usize>().unwrap();
        let (inputs, parameters) = (number(), number());
        let layer = words.next().unwrap();
        // Nothing is differentiated where neither inputs nor parameters are.
        let weights = (parameters > 0).then_some(("weight-gradient", 1 + parameters));
        let passes = [("forward", 1), ("backward", 1 + inputs + parameters)];
        for (pass, sizes) in passes.into_iter().chain(weights) {
            orders.push(order(layer, pass));
            expected.push(sizes);
        }
    }
    let ended = carry_out(&orders).succeeded();
    let answers = ended.stdout.lines().map(serde_json::from_str::<Value>);
    let answers: Vec<_> = answers.collect::<Result<_, _>>().unwrap();
    assert_eq!(answers.len(), orders.len(), "{ended}");
    for ((order, sizes), answer) in orders.iter().zip(expected).zip(&answers) {
        let check = answer["check"].as_array().unwrap();
        assert_eq!(check.len(), sizes, "{order}: {answer}");
        let mut numbers = check.iter().chain([&answer["microseconds"]]);
        // JSON has no numbers that are not finite.
        let all_positive = numbers.all(|number| number.as_f64() > Some(0.0));
        assert!(all_positive, "{order}: {answer}");
    }
}

/// The mean sizes of the output and of each gradient, computed by hand from the noise of `pytorch_layers.py`.
#[test]
fn numbers_are_those_of_the_script_and_the_backward_pass_starts_from_the_given_gradient() {
    let expected: [(&str, &[f64]); 3] = [
        (
            r#"{"kind": "add", "shape": [2, 3]}"#,
            &[0.215_038_77, 0.221_142_68, 0.221_142_68],
        ),
        (
            r#"{"kind": "relu", "shape": [2, 3]}"#,
            &[0.163_672_63, 0.137_116_61],
        ),
        (
            r#"{"kind": "linear", "features": [3, 2], "tokens": null}"#,
            &[0.447_667_27, 0.049_506_80, 0.068_158_39, 0.325_120_06],
        ),
    ];
    let orders = expected.map(|(layer, _)| order(layer, "backward"));
    let ended = carry_out(&orders).succeeded();
    for ((_, expected), line) in expected.iter().zip(ended.stdout.lines()) {
        let answer: Value = serde_json::from_str(line).unwrap();
        let found = answer["check"].as_array().unwrap();
        assert_eq!(found.len(), expected.len(), "{answer}");
        for (found, expected) in found.iter().zip(*expected) {
            let apart = (found.as_f64().unwrap() - expected).abs();
            assert!(apart < 1e-6, "{expected}: {answer}");
        }
    }
}

#[test]
fn sizes_that_no_layer_has_are_refused() {
    let layer = r#"{"kind": "relu", "shape": [4294967296, 4294967296]}"#;
    let ended = carry_out(&[order(layer, "forward")]);
    ended.failed_with(
        2,
        &["no tensor of shape [4294967296, 4294967296] is measured"],
    );
}
