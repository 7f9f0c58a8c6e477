//! What makes a decoder one.

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::Int;
use everburn_models::gpt::{Gpt, GptConfig, Positions};
use everburn_nn::{InBlocks, parameter_paths};

const VOCABULARY: usize = 11;

fn config(positions: Positions) -> GptConfig {
    GptConfig::new(VOCABULARY)
        .with_context(8)
        .with_width(12)
        .with_layers(2)
        .with_heads(3)
        .with_positions(positions)
}

fn gpt(positions: Positions) -> Gpt {
    config(positions).init(&Device::flex())
}

fn tokens<const T: usize>(tokens: [i64; T]) -> Tensor<2, Int> {
    Tensor::<1, Int>::from_data(tokens, &Device::flex()).unsqueeze()
}

#[test]
#[should_panic(expected = "a text of 9 tokens is longer than the model's context of 8")]
fn a_text_longer_than_the_context_is_refused() {
    gpt(Positions::Learned).forward(tokens([0; 9]));
}

#[test]
fn earlier_tokens_influence_later_scores() {
    for positions in [Positions::Learned, Positions::Rotary] {
        let gpt = gpt(positions);
        let scores = |text| gpt.forward(tokens(text)).into_data();
        let rows = |text, range: std::ops::Range<usize>| {
            let all = scores(text).iter::<f32>().collect::<Vec<_>>();
            all[range.start * VOCABULARY..range.end * VOCABULARY].to_vec()
        };
        let (one, other) = ([3, 1, 4, 1, 5, 9], [3, 2, 4, 1, 5, 9]);
        for row in 2..6 {
            let (one, other) = (rows(one, row..row + 1), rows(other, row..row + 1));
            assert_ne!(one, other, "{positions:?}, token {row}");
        }
    }
}

#[test]
fn the_order_of_what_came_before_matters() {
    for positions in [Positions::Learned, Positions::Rotary] {
        let gpt = gpt(positions);
        let last = |text| gpt.forward(tokens(text)).slice([0..1, 3..4]).into_data();
        let (one, other) = (last([1, 2, 3, 4]), last([3, 2, 1, 4]));
        let differ = one.iter::<f32>().zip(other.iter::<f32>());
        assert!(differ.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) > 1e-6);
    }
}

#[test]
fn with_rotary_positions_a_token_does_not_know_where_it_stands() {
    // A text of one token over and over: the shares of attention change with the distance, but what
    // is looked up is everywhere the same, so that only learned positions could tell the rows apart.
    let gpt = gpt(Positions::Rotary);
    let scores = gpt.forward(tokens([7, 7, 7, 7])).into_data();
    let scores = scores.iter::<f32>().collect::<Vec<_>>();
    let (rows, _) = scores.as_chunks::<VOCABULARY>();
    assert_eq!(rows.len(), 4);
    for row in rows {
        for (a, b) in row.iter().zip(&rows[0]) {
            assert!((a - b).abs() < 1e-5, "all tokens see the same: {a} {b}");
        }
    }
}

#[test]
fn embedding_and_head_are_one_parameter() {
    let gpt = config(Positions::Learned).init(&Device::flex().autodiff());
    let paths = parameter_paths(&gpt);
    let of_tokens = |shape: &[usize]| shape == [VOCABULARY, 12] || shape == [12, VOCABULARY];
    let tied = paths.iter().filter(|parameter| of_tokens(&parameter.shape));
    let tied = tied.map(|parameter| parameter.path.as_str());
    assert_eq!(tied.collect::<Vec<_>>(), ["wte.weight"]);
    assert_eq!(gpt.blocks().users_of("wte.weight"), [0, 3]);

    // Its gradient has a part from the head, of every token, and one from the embedding, of those
    // that are in the text.
    let gradients = gpt.forward(tokens([1, 2])).powi_scalar(2).sum().backward();
    let gradient = gpt.token_embedding().grad(&gradients).unwrap();
    for (token, row) in gradient.iter_dim(0).enumerate() {
        assert!(row.abs().max().into_scalar::<f32>() > 0.0, "token {token}");
    }
}

#[test]
fn paths_are_those_that_checkpoints_and_shards_go_by() {
    let paths = parameter_paths(&gpt(Positions::Learned));
    let paths = paths.iter().map(|parameter| parameter.path.as_str());
    let paths = paths.collect::<Vec<_>>();
    let of_layer = [
        "norm1.gamma",
        "norm1.beta",
        "attention.q.weight",
        "attention.q.bias",
        "attention.k.weight",
        "attention.k.bias",
        "attention.v.weight",
        "attention.v.bias",
        "attention.out.weight",
        "attention.out.bias",
        "norm2.gamma",
        "norm2.beta",
        "feed_forward.up.weight",
        "feed_forward.up.bias",
        "feed_forward.down.weight",
        "feed_forward.down.bias",
    ];
    let mut expected = vec!["wte.weight".to_string(), "wpe.weight".to_string()];
    for layer in 0..2 {
        expected.extend(of_layer.map(|path| format!("layers.{layer}.{path}")));
    }
    expected.extend(["norm.gamma".to_string(), "norm.beta".to_string()]);
    assert_eq!(paths, expected);
}

/// Each parameter's path and values.
fn values(gpt: &Gpt) -> Vec<(String, Vec<f32>)> {
    struct Collect(Vec<Vec<f32>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data().iter::<f32>().collect());
        }
    }
    let mut collect = Collect(Vec::new());
    gpt.visit(&mut collect);
    let paths = parameter_paths(gpt)
        .into_iter()
        .map(|parameter| parameter.path);
    paths.zip(collect.0).collect()
}

#[test]
fn weights_start_as_those_of_gpt_2() {
    let gpt = GptConfig::new(500).with_width(64).init(&Device::flex());
    for (path, values) in values(&gpt) {
        let square = values.iter().map(|x| f64::from(x * x)).sum::<f64>();
        let deviation = (square / values.len() as f64).sqrt();
        let expected = match path.as_str() {
            path if path.ends_with("gamma") => 1.0,
            path if path.ends_with("beta") || path.ends_with("bias") => 0.0,
            path if path.contains("out") || path.contains("down") => 0.02 / 8.0_f64.sqrt(),
            _ => 0.02,
        };
        // 4,096 numbers at least: five deviations of their deviation are 6 %.
        assert!(
            (deviation - expected).abs() <= 0.06 * expected,
            "{path}: {deviation}"
        );
    }
}

#[test]
fn dropout_works_while_training_only() {
    let config = config(Positions::Learned).with_dropout(0.5);
    let training = config.init(&Device::flex().autodiff());
    let scores = |gpt: &Gpt| {
        let device = gpt.token_embedding().val().device();
        let text = Tensor::<2, Int>::from_data([[1, 2, 3]], &device);
        gpt.forward(text).into_data()
    };
    assert_ne!(scores(&training), scores(&training));
    let valid = training.valid();
    assert_eq!(scores(&valid), scores(&valid));
}
