//! Outputs and gradients are those of the plain code, to the bit.

use burn::nn as burns;
use burn::prelude::*;
use everburn_nn::{
    BatchNorm, BatchNormConfig, Linear, LinearConfig, checkpoint, recomputing, split_backward,
};

use super::model::{Layer, Net, WIDTH, autodiff, bits, gradients, outcome, plain, rows, tokens};
use crate::numbers::values;

fn each_layer(net: &Net, x: Tensor<2>) -> Tensor<2> {
    let run = |x, layer: &Layer| checkpoint(layer, x, Layer::forward);
    net.layers.iter().fold(x, run)
}

#[test]
fn segments_of_one_layer_and_of_all() {
    let net = Net::new(&autodiff(), 4, 0.0);
    let expected = outcome(&net, plain);
    assert!(expected.input.is_some());
    assert!(expected.parameters.iter().filter(|g| g.is_some()).count() > 20);
    assert_eq!(outcome(&net, each_layer), expected);
    assert_eq!(outcome(&net, |net, x| checkpoint(net, x, plain)), expected);
    let pairs = |net: &Net, x| {
        (0..2).fold(x, |x, pair| {
            checkpoint(net, x, move |net: &Net, x| {
                let layers = &net.layers[2 * pair..2 * pair + 2];
                layers.iter().fold(x, |x, layer| layer.forward(x))
            })
        })
    };
    assert_eq!(outcome(&net, pairs), expected);
}

#[test]
fn segments_inside_segments() {
    let net = Net::new(&autodiff(), 3, 0.0);
    let twice = |net: &Net, x| checkpoint(net, x, each_layer);
    let thrice = |net: &Net, x| checkpoint(net, x, |net: &Net, x| checkpoint(net, x, each_layer));
    let expected = outcome(&net, plain);
    assert_eq!(outcome(&net, twice), expected);
    assert_eq!(outcome(&net, thrice), expected);
}

#[test]
fn with_burns_own_checkpointing_of_cheap_operations() {
    let net = Net::new(&autodiff().gradient_checkpointing(), 3, 0.0);
    assert_eq!(outcome(&net, each_layer), outcome(&net, plain));
}

#[test]
fn several_inputs_and_outputs_of_which_some_are_not_used() {
    let net = Net::new(&autodiff(), 2, 0.0);
    let segment = |net: &Net, (x, (tokens, y)): (Tensor<2>, (_, Tensor<2>))| {
        let embedded = net.embed(tokens).mul(y);
        let both = net.layers[0].forward(x.clone()) + embedded.clone();
        ((both, net.layers[1].forward(x)), embedded)
    };
    let run = |checkpointed: bool| {
        let device = net.devices()[0].clone();
        let (x, y) = (rows(&device).require_grad(), rows(&device).require_grad());
        let input = (x.clone(), (tokens(&device), y.clone()));
        let ((both, _not_used), embedded) = match checkpointed {
            true => checkpoint(&net, input, segment),
            false => segment(&net, input),
        };
        let all = (both * embedded).sum().backward();
        let inputs = [x, y].map(|input| input.grad(&all).map(|g| bits(values(g))));
        (inputs, gradients(&net, &all))
    };
    let (inputs, parameters) = run(true);
    assert!(inputs.iter().all(Option::is_some));
    assert_eq!((inputs, parameters), run(false));
}

#[test]
fn an_input_of_whole_numbers_and_a_parameter_used_inside_and_outside() {
    let net = Net::new(&autodiff(), 1, 0.0);
    let run = |checkpointed: bool| {
        let device = net.devices()[0].clone();
        let embed = |net: &Net, tokens| net.layers[0].forward(net.embed(tokens));
        let x: Tensor<2> = match checkpointed {
            true => checkpoint(&net, tokens(&device), embed),
            false => embed(&net, tokens(&device)),
        };
        // The embedding once more, as the head of a model whose weights are tied.
        let scores = x.matmul(net.embedding.weight.val().transpose());
        let all = scores.tanh().sum().backward();
        gradients(&net, &all)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn frozen_and_unused_parameters_have_no_gradient() {
    let net = Net::new(&autodiff(), 1, 0.0);
    let through = |net: &Net, x| net.frozen.forward(net.layers[0].forward(x));
    let expected = outcome(&net, through);
    let found = outcome(&net, |net, x| checkpoint(net, x, through));
    assert_eq!(found, expected);
    assert_eq!(found.parameters.iter().rev().take(4).flatten().count(), 0);
    // A segment of which nothing but the input has a gradient.
    let frozen_only = |net: &Net, x| net.frozen.forward(x);
    let expected = outcome(&net, frozen_only);
    let found = outcome(&net, |net, x| checkpoint(net, x, frozen_only));
    assert!(found.input.is_some());
    assert_eq!(found, expected);
}

#[test]
fn an_input_without_a_gradient() {
    let net = Net::new(&autodiff(), 2, 0.0);
    let run = |forward: fn(&Net, Tensor<2>) -> Tensor<2>| {
        let input = rows(&net.devices()[0]);
        gradients(&net, &forward(&net, input).sum().backward())
    };
    assert_eq!(run(each_layer), run(plain));
}

#[test]
fn a_parameter_that_is_asked_for_and_makes_no_difference() {
    let net = Net::new(&autodiff(), 1, 0.0);
    let through = |net: &Net, x: Tensor<2>| {
        let _ = net.unused.forward(x.clone());
        net.layers[0].forward(x)
    };
    assert_eq!(
        outcome(&net, |net, x| checkpoint(net, x, through)),
        outcome(&net, through)
    );
}

#[test]
fn a_segment_that_yields_what_it_takes() {
    let net = Net::new(&autodiff(), 1, 0.0);
    let found = outcome(&net, |net, x| checkpoint(net, x, |_: &Net, x: Tensor<2>| x));
    assert_eq!(found, outcome(&net, |_, x| x));
}

#[test]
fn without_a_graph_there_is_none_behind_the_output() {
    let net = Net::new(&autodiff(), 2, 0.5);
    let valid = net.valid();
    let input = rows(&Device::flex());
    let output = each_layer(&valid, input.clone());
    assert!(!output.device().is_autodiff());
    output
        .into_data()
        .assert_eq(&plain(&valid, input).into_data(), true);

    let frozen = Net::new(&autodiff(), 1, 0.0).frozen;
    let output = checkpoint(&frozen, rows(&autodiff()), nn::Linear::forward);
    assert!(!output.is_tracked());
}

#[test]
fn running_statistics_are_updated_once() {
    let device = autodiff();
    let ours: BatchNorm = BatchNormConfig::new(WIDTH).init(&device);
    let run = |norm: &BatchNorm, checkpointed: bool| {
        for scale in [1.0, 3.0] {
            let x = rows(&device).mul_scalar(scale).require_grad();
            let y: Tensor<2> = match checkpointed {
                true => checkpoint(norm, x, BatchNorm::forward),
                false => norm.forward(x),
            };
            let _ = y.powf_scalar(2.0).sum().backward();
        }
        let statistics = [&norm.running_mean, &norm.running_var];
        statistics.map(|statistic| bits(values(statistic.value_sync())))
    };
    let plain: burns::BatchNorm = burns::BatchNormConfig::new(WIDTH).init(&device);
    assert_eq!(run(&ours, true), run(&plain.into(), false));
}

#[test]
fn gradients_that_would_be_put_off_come_with_the_segments_backward_pass() {
    let device = autodiff();
    let layer: Linear = LinearConfig::new(WIDTH, WIDTH).init(&device);
    let plain = gradients(
        &layer,
        &layer.forward(rows(&device)).tanh().sum().backward(),
    );
    let (loss, weight_backward) = split_backward::record(|| {
        let x = rows(&device).require_grad();
        checkpoint(&layer, x, |layer: &Linear, x: Tensor<2>| {
            layer.forward(x).tanh()
        })
        .sum()
    });
    assert_eq!(gradients(&layer, &loss.backward()), plain);
    assert!(weight_backward.is_empty());
}

#[test]
fn a_segment_can_tell_that_it_runs_again() {
    let (seen, runs) = std::sync::mpsc::channel();
    let net = Net::new(&autodiff(), 1, 0.0);
    let output = checkpoint(&net, rows(&autodiff()), move |net: &Net, x| {
        seen.send(recomputing()).unwrap();
        plain(net, x)
    });
    let _ = output.sum().backward();
    assert!(!recomputing());
    assert_eq!(runs.iter().collect::<Vec<_>>(), [false, true]);
}
