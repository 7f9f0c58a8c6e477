//! Attention and encoders beside Burn's, with all that they can be asked for.

use burn::module::Module;
use burn::nn as burns;
use burn::prelude::*;
use burn::tensor::Bool;
use everburn_nn as ours;

use super::{bytes, loaded};
use crate::numbers::{all_gradients, assert_close, tensor, values};

/// Texts of 3, 4 and 2 tokens, padded to 4.
fn padding(device: &Device) -> Tensor<2, Bool> {
    let rows = [
        [false, false, false, true],
        [false; 4],
        [false, false, true, true],
    ];
    Tensor::from_data(rows, device)
}

/// Which token does not look at which, by a pattern.
fn hidden(rows: usize, columns: usize, device: &Device) -> Tensor<3, Bool> {
    let scores = tensor::<3>(8, [3, rows, columns], device);
    scores.greater_scalar(0.4)
}

#[test]
fn attention_with_masks_is_burns() {
    let device = Device::flex().autodiff();
    for quiet in [false, true] {
        let burns = burns::attention::MultiHeadAttentionConfig::new(12, 3)
            .with_dropout(0.0)
            .with_quiet_softmax(quiet)
            .with_key_bias(false)
            .init(&device);
        let ours = ours::attention::MultiHeadAttentionConfig::new(12, 3)
            .with_dropout(0.0)
            .with_quiet_softmax(quiet)
            .with_key_bias(false)
            .init(&device);
        let ours = loaded(ours, &bytes(&burns));
        let inputs = [(1, 5), (2, 4), (3, 4)]
            .map(|(seed, length)| tensor::<3>(seed, [3, length, 12], &device).require_grad());
        let [query, key, value] = inputs.clone();
        let theirs = burns.forward(
            burns::attention::MhaInput::new(query, key, value)
                .mask_pad(padding(&device))
                .mask_attn(hidden(5, 4, &device)),
        );
        let [query, key, value] = inputs.clone();
        let of_ours = ours.forward(
            ours::attention::MhaInput::new(query, key, value)
                .mask_pad(padding(&device))
                .mask_attn(hidden(5, 4, &device)),
        );
        assert_close(&values(of_ours.weights), &values(theirs.weights));
        assert_close(
            &values(of_ours.context.clone()),
            &values(theirs.context.clone()),
        );
        let [their_gradients, our_gradients] = [theirs.context, of_ours.context]
            .map(|context| context.powi_scalar(2).sum().backward());
        for input in &inputs {
            let [theirs, ours] = [&their_gradients, &our_gradients]
                .map(|gradients| values(input.grad(gradients).unwrap()));
            assert_close(&ours, &theirs);
        }
        let theirs = all_gradients(&burns, &their_gradients);
        assert_eq!(all_gradients(&ours, &our_gradients).len(), theirs.len());
        for ((path, ours), (_, theirs)) in all_gradients(&ours, &our_gradients).iter().zip(&theirs)
        {
            assert_close(ours.as_ref().expect(path), theirs.as_ref().expect(path));
        }
    }
}

#[test]
fn a_text_that_is_written_token_by_token_is_burns_and_that_of_a_whole() {
    let device = Device::flex();
    for norm_first in [false, true] {
        let burns = burns::transformer::TransformerEncoderConfig::new(12, 20, 3, 2)
            .with_norm_first(norm_first)
            .with_activation(burns::activation::ActivationConfig::Relu)
            .init(&device);
        let ours = ours::transformer::TransformerEncoderConfig::new(12, 20, 3, 2)
            .with_norm_first(norm_first)
            .with_activation(ours::activation::ActivationConfig::Relu)
            .init(&device);
        let ours = loaded(ours, &bytes(&burns));
        let text = tensor::<3>(4, [2, 5, 12], &device);
        let mut cache = ours.new_autoregressive_cache();
        let mut their_cache = burns.new_autoregressive_cache();
        for length in 1..=5 {
            let begin = || text.clone().narrow(1, 0, length);
            let mask = || burns::attention::generate_autoregressive_mask(2, length, &device);
            let whole = ours.forward(
                ours::transformer::TransformerEncoderInput::new(begin()).mask_attn(mask()),
            );
            let written = ours.forward_autoregressive_inference(
                ours::transformer::TransformerEncoderInput::new(begin()).mask_attn(mask()),
                &mut cache,
            );
            let theirs = burns.forward_autoregressive_inference(
                burns::transformer::TransformerEncoderInput::new(begin()).mask_attn(mask()),
                &mut their_cache,
            );
            assert_close(&values(written.clone()), &values(whole));
            assert_close(&values(written), &values(theirs));
        }
    }
}

#[test]
fn a_text_that_looks_at_another_keeps_the_other() {
    let device = Device::flex();
    let burns = burns::attention::MultiHeadAttentionConfig::new(12, 3).init(&device);
    let ours = ours::attention::MultiHeadAttentionConfig::new(12, 3).init(&device);
    let ours = loaded(ours, &bytes(&burns)).valid();
    let (text, other) = (
        tensor::<3>(4, [2, 3, 12], &device),
        tensor::<3>(5, [2, 4, 12], &device),
    );
    let mut cache = ours::attention::MhaCache::autoregressive_cross_attention();
    let mut their_cache = burns::attention::MhaCache::autoregressive_cross_attention();
    for length in 1..=3 {
        let query = || text.clone().narrow(1, 0, length);
        let written = ours.forward_cache(
            ours::attention::MhaInput::new(query(), other.clone(), other.clone()),
            &mut cache,
        );
        let theirs = burns.forward_cache(
            burns::attention::MhaInput::new(query(), other.clone(), other.clone()),
            &mut their_cache,
        );
        assert_close(&values(written.context), &values(theirs.context));
    }
}
