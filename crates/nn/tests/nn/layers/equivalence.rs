//! Layers of rows and vectors beside Burn's own operations, on shapes drawn at random.

use burn::module::{Module, Param};
use burn::prelude::*;
use burn::tensor::FloatDType;
use everburn_nn::loss::CrossEntropyLoss;
use everburn_nn::{DropoutConfig, Gelu, LayerNormConfig, Relu};
use proptest::prelude::*;

use super::comparison::{assert_close, everything, tensor, training, values};
use crate::alone::alone;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn layer_norms(rows in prop::array::uniform2(1_usize..9), width in 2_usize..70) {
        let device = training();
        let burns = nn::LayerNormConfig::new(width).init(&device);
        let ours = LayerNormConfig::new(width).init(&device);
        let input = tensor([rows[0], rows[1], width], 1, &device);
        let affine = vec![tensor([width], 2, &device), tensor([width], 3, &device)];
        let theirs = everything(vec![input.clone()], affine.clone(), |x, affine| {
            let mut norm = burns.clone();
            norm.gamma = Param::from_tensor(affine[0].clone());
            norm.beta = Some(Param::from_tensor(affine[1].clone()));
            norm.forward(x[0].clone())
        });
        let ours = everything(vec![input], affine, |x, affine| {
            let mut norm = ours.clone();
            norm.gamma = Param::from_tensor(affine[0].clone());
            norm.beta = Some(Param::from_tensor(affine[1].clone()));
            norm.forward(x[0].clone())
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn linear_layers(rows in prop::array::uniform2(1_usize..30), widths in prop::array::uniform2(1_usize..60)) {
        let device = training();
        let input = tensor([rows[0], rows[1], widths[0]], 1, &device);
        let weight = tensor([1, widths[0], widths[1]], 2, &device);
        let bias = vec![tensor([widths[1]], 3, &device)];
        let theirs = everything(vec![input.clone(), weight.clone()], bias.clone(), |x, bias| {
            let weight = x[1].clone().squeeze_dim::<2>(0);
            burn::tensor::module::linear(x[0].clone(), weight, Some(bias[0].clone()))
        });
        let ours = everything(vec![input, weight], bias, |x, bias| {
            let weight = x[1].clone().squeeze_dim::<2>(0);
            everburn_nn::tensor::module::linear(x[0].clone(), weight, Some(bias[0].clone()))
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn products(
        batch in prop::array::uniform2(1_usize..4),
        extent in prop::array::uniform3(1_usize..20),
        transposed in any::<[bool; 2]>(),
    ) {
        let device = training();
        let [rows, inner, columns] = extent;
        let factor = |seed, rows, columns, transposed| match transposed {
            true => tensor([batch[0], batch[1], columns, rows], seed, &device),
            false => tensor([batch[0], batch[1], rows, columns], seed, &device),
        };
        let inputs = vec![
            factor(1, rows, inner, transposed[0]),
            factor(2, inner, columns, transposed[1]),
        ];
        let lie = |x: &Tensor<4>, transposed| match transposed {
            true => x.clone().swap_dims(2, 3),
            false => x.clone(),
        };
        let theirs = everything(inputs.clone(), vec![], |x, _| {
            lie(&x[0], transposed[0]).matmul(lie(&x[1], transposed[1]))
        });
        let ours = everything(inputs, vec![], |x, _| {
            everburn_nn::matmul(lie(&x[0], transposed[0]), lie(&x[1], transposed[1]))
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn rotary_positions(batch in prop::array::uniform2(1_usize..4), tokens in 1_usize..9, half in 1_usize..20) {
        let device = training();
        // As a linear layer yields them: heads side by side.
        let vectors = vec![tensor([batch[0], tokens, batch[1], 2 * half], 1, &device)];
        let table = |seed| tensor([1, 1, tokens, half], seed, &device);
        let (cosines, sines) = (table(2), table(3));
        let theirs = everything(vectors.clone(), vec![], |x, _| {
            let halves = x[0].clone().swap_dims(1, 2).chunk(2, 3);
            let (a, b) = (halves[0].clone(), halves[1].clone());
            let first = a.clone() * cosines.clone() - b.clone() * sines.clone();
            Tensor::cat(vec![first, b * cosines.clone() + a * sines.clone()], 3)
        });
        let ours = everything(vectors, vec![], |x, _| {
            everburn_nn::rope(x[0].clone().swap_dims(1, 2), cosines.clone(), sines.clone())
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn attentions(matrices in prop::array::uniform2(1_usize..5), length in 1_usize..40) {
        let device = training();
        let shape = [matrices[0], matrices[1], length, length];
        let scores = vec![tensor(shape, 1, &device).mul_scalar(5.0)];
        let theirs = everything(scores.clone(), vec![], |x, _| {
            let later = Tensor::<2>::ones([length, length], &x[0].device()).triu(1).bool();
            let scores = x[0].clone().mul_scalar(0.3);
            let masked = scores.mask_fill(later.expand(shape), f32::NEG_INFINITY);
            burn::tensor::activation::softmax(masked, 3)
        });
        let ours = everything(scores, vec![], |x, _| {
            everburn_nn::causal_softmax(x[0].clone(), 0.3)
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn attentions_in_tiles(
        batch in prop::array::uniform2(1_usize..4),
        tokens in 1_usize..120,
        width in 1_usize..40,
    ) {
        let device = training();
        // As a linear layer yields them: heads side by side.
        let shape = [batch[0], tokens, batch[1], width];
        let all = [1, 2, 3].map(|seed| tensor(shape, seed, &device)).to_vec();
        let turned = |x: &[Tensor<4>]| [0, 1, 2].map(|of: usize| x[of].clone().swap_dims(1, 2));
        let theirs = everything(all.clone(), vec![], |x, _| {
            let [q, k, v] = turned(x);
            let later = Tensor::<2>::ones([tokens, tokens], &device).triu(1).bool();
            let scores = q.matmul(k.swap_dims(2, 3)).mul_scalar(0.7);
            let later = later.expand([batch[0], batch[1], tokens, tokens]);
            let masked = scores.mask_fill(later, f32::NEG_INFINITY);
            burn::tensor::activation::softmax(masked, 3).matmul(v).swap_dims(1, 2)
        });
        let ours = everything(all, vec![], |x, _| {
            let [q, k, v] = turned(x);
            everburn_nn::causal_attention(q, k, v, 0.7).reshape(shape)
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn heads_that_are_tied_to_an_embedding(
        rows in 1_usize..60,
        widths in prop::array::uniform2(1_usize..60),
    ) {
        let device = training();
        let input = tensor([1, rows, widths[0]], 1, &device);
        // A row for each token, which are the columns of the product.
        let weight = tensor([1, widths[1], widths[0]], 2, &device);
        let turned = |weight: &Tensor<3>| weight.clone().squeeze_dim::<2>(0).transpose();
        let theirs = everything(vec![input.clone(), weight.clone()], vec![], |x, _| {
            burn::tensor::module::linear(x[0].clone(), turned(&x[1]), None)
        });
        let ours = everything(vec![input, weight], vec![], |x, _| {
            everburn_nn::tensor::module::linear(x[0].clone(), turned(&x[1]), None)
        });
        assert_close(&ours, &theirs);
    }

    #[test]
    fn losses_of_classes(shape in prop::array::uniform2(1_usize..50), double in any::<bool>()) {
        let device = training();
        let targets = (0..shape[0]).map(|row| (row * 7 % shape[1]) as i32).collect::<Vec<_>>();
        let targets = Tensor::<1, Int>::from_data(targets.as_slice(), &device);
        let mut logits = tensor(shape, 1, &device).mul_scalar(5.0);
        if double {
            logits = logits.cast(FloatDType::F64);
        }
        let with = |loss: &dyn Fn(Tensor<2>) -> Tensor<1>| {
            everything(vec![logits.clone()], vec![], |x, _| loss(x[0].clone()).unsqueeze::<2>())
        };
        let burns = nn::loss::CrossEntropyLossConfig::new().init(&device);
        let theirs = with(&|logits| burns.forward(logits, targets.clone()));
        let ours = with(&|logits| everburn_nn::cross_entropy(logits, targets.clone()));
        assert_close(&ours, &theirs);
    }
}

/// What a kernel computes, and what is left to Burn.
#[test]
fn losses_of_classes_with_each_configuration() {
    type Config = nn::loss::CrossEntropyLossConfig;
    let device = training();
    let plain = Config::new;
    let weights = Some(vec![1.0, 0.5, 2.0, 1.5]);
    for config in [
        plain(),
        plain().with_pad_tokens(Some(vec![1, 3])),
        plain().with_weights(weights.clone()),
        plain().with_smoothing(Some(0.1)),
        plain().with_smoothing(Some(0.2)).with_weights(weights),
        plain().with_logits(false),
    ] {
        let targets = Tensor::<1, Int>::from_ints([0, 3, 2, 1, 2], &device);
        // Probabilities, for they are asked for too.
        let logits = tensor([5, 4], 1, &device).abs() + 0.1;
        let with = |loss: &dyn Fn(Tensor<2>) -> Tensor<1>| {
            everything(vec![logits.clone()], vec![], |x, _| {
                loss(x[0].clone()).unsqueeze::<2>()
            })
        };
        let burns = config.init(&device);
        let ours = CrossEntropyLoss::from(burns.clone());
        let theirs = with(&|logits| burns.forward(logits, targets.clone()));
        let of_ours = with(&|logits| ours.forward(logits, targets.clone()));
        assert_close(&of_ours, &theirs);
        assert_eq!(ours.to_string(), burns.to_string());
    }
}

#[test]
fn activations_as_modules() {
    let device = training();
    let input = vec![tensor([7, 30], 1, &device).mul_scalar(4.0)];
    let with = |activation: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        everything(input.clone(), vec![], |x, _| activation(x[0].clone()))
    };
    let (burns, ours) = (nn::Gelu::new(), Gelu::new());
    assert_close(&with(&|x| ours.forward(x)), &with(&|x| burns.forward(x)));
    let (burns, ours) = (nn::Gelu::new_approximate(), Gelu::new_approximate());
    assert_eq!(with(&|x| ours.forward(x)), with(&|x| burns.forward(x)));
    assert_eq!(ours.to_string(), burns.to_string());
    let of_any_kind = nn::activation::Activation::from(ours);
    assert_eq!(
        with(&|x| of_any_kind.forward(x)),
        with(&|x| burns.forward(x))
    );
    let (burns, ours) = (nn::Relu::new(), Relu::new());
    assert_eq!(with(&|x| ours.forward(x)), with(&|x| burns.forward(x)));
    assert_eq!(ours.to_string(), burns.to_string());
    let of_any_kind = nn::activation::Activation::from(ours);
    assert_eq!(
        with(&|x| of_any_kind.forward(x)),
        with(&|x| burns.forward(x))
    );
}

/// What is dropped, and that its gradient is dropped with it.
#[test]
fn dropouts() {
    // What another test seeds between two draws could make them equal.
    alone(|| {
        let device = training();
        let dropout = DropoutConfig::new(0.4).init();
        for input in [
            Tensor::<2>::ones([300, 100], &device),
            Tensor::<2>::ones([300, 100], &device).cast(FloatDType::F64),
        ] {
            let all = everything(vec![input.clone()], vec![], |x, _| {
                dropout.forward(x[0].clone())
            });
            let weights = values(tensor([300, 100], 99, &device));
            let dropped = all[0].iter().filter(|value| **value == 0.0).count();
            assert!((11_000..13_000).contains(&dropped), "{dropped}");
            for ((output, gradient), weight) in all[0].iter().zip(&all[1]).zip(&weights) {
                assert!(
                    *output == 0.0 || (output - 1.0 / 0.6).abs() < 1e-6,
                    "{output}"
                );
                assert!(
                    (gradient - output * weight).abs() < 1e-6,
                    "{gradient} {output}"
                );
            }
            let again = everything(vec![input], vec![], |x, _| dropout.forward(x[0].clone()));
            assert_ne!(all[0], again[0], "another time others are dropped");
        }
        let input = tensor([3, 4], 1, &Device::flex());
        let kept = dropout.valid().forward(input.clone());
        assert_eq!(values(kept), values(input));
    });
}
