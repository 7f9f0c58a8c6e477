//! What all decoders have in common.

use burn::prelude::*;
use burn::tensor::{Int, Tolerance};
use everburn_models::decoder::{Decoder, DecoderConfig, KeyValueCache, RotaryScaling};
use everburn_models::gpt::{GptConfig, Positions};
use everburn_models::llama::LlamaConfig;
use everburn_nn::InBlocks;

fn gpt(positions: Positions) -> GptConfig {
    GptConfig::new(11)
        .with_context(8)
        .with_width(12)
        .with_layers(2)
        .with_heads(3)
        .with_deviation(0.3)
        .with_positions(positions)
}

fn llama() -> LlamaConfig {
    LlamaConfig::new(11)
        .with_context(8)
        .with_width(12)
        .with_layers(2)
        .with_heads(4)
        .with_kv_heads(2)
        .with_head_width(Some(6))
        .with_feed_forward(20)
        .with_biases(true)
        .with_tied(false)
        .with_rotary_scaling(RotaryScaling::Linear { factor: 2.0 })
}

fn tokens(tokens: &[i64]) -> Tensor<2, Int> {
    let data = TensorData::new([tokens, tokens].concat(), [2, tokens.len()]);
    Tensor::from_data(data, &Device::flex())
}

fn is_one_decoder_with_and_without_a_cache(config: &impl DecoderConfig) {
    let model = config.build(&Device::flex());
    let text = [3, 1, 4, 1, 5, 9, 2, 6];
    let whole = model.blocks().forward(&model, tokens(&text));
    assert_eq!(whole.dims(), [2, 8, 11]);
    // One token at a time behind the first ones, and several.
    for pieces in [&[3, 1, 1, 1, 1, 1][..], &[3, 5], &[1, 2, 1, 4], &[8]] {
        let mut cache = KeyValueCache::new();
        let (mut rows, mut at) = (Vec::new(), 0);
        for length in pieces {
            rows.push(model.forward_cached(tokens(&text[at..at + length]), &mut cache));
            at += length;
        }
        assert_eq!(cache.tokens(), 8);
        let scores = Tensor::cat(rows, 1).into_data();
        let tolerance = Tolerance::absolute(1e-5);
        scores.assert_approx_eq::<f32>(&whole.to_data(), tolerance);
    }
    model.blocks().check(&model).unwrap();
}

#[test]
fn a_cache_of_keys_and_values_changes_no_score() {
    is_one_decoder_with_and_without_a_cache(&gpt(Positions::Learned));
    is_one_decoder_with_and_without_a_cache(&gpt(Positions::Rotary));
    is_one_decoder_with_and_without_a_cache(&llama());
    is_one_decoder_with_and_without_a_cache(&llama().with_tied(true).with_kv_heads(4));
}

#[test]
#[should_panic(expected = "a text of 9 tokens is longer than the model's context of 8")]
fn a_cache_is_never_longer_than_the_context() {
    let model = llama().build(&Device::flex());
    let mut cache = KeyValueCache::new();
    model.forward_cached(tokens(&[0; 8]), &mut cache);
    model.forward_cached(tokens(&[0]), &mut cache);
}

#[test]
fn a_llama_that_cannot_be_built_is_refused() {
    let refused = |config: LlamaConfig| config.check().unwrap_err().to_string();
    assert!(refused(llama().with_kv_heads(3)).contains("cannot serve 4 heads"));
    assert!(refused(llama().with_kv_heads(0)).contains("heads of keys"));
    assert!(refused(llama().with_head_width(Some(5))).contains("must be even"));
    assert!(refused(llama().with_head_width(None).with_width(10)).contains("head_width"));
    assert!(refused(llama().with_epsilon(0.0)).contains("epsilon"));
    let none = RotaryScaling::Linear { factor: 0.0 };
    assert!(refused(llama().with_rotary_scaling(none)).contains("Linear"));
    // As published, with the tokens' vectors once.
    assert!(LlamaConfig::llama3_1b().check().is_ok());
}
