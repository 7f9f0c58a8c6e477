//! Attention against its definition, and its gradients against difference quotients.

use super::*;
use crate::sample::{assert_close, assert_same_on_threads, doubles, quotients, values};

/// Two texts of three heads that lie side by side, as an attention has them.
struct Case {
    batch: usize,
    heads: usize,
    tokens: usize,
    width: usize,
}

impl Case {
    fn length(&self) -> usize {
        self.batch * self.heads * self.tokens * self.width
    }

    fn matrices<'a>(&self, values: &'a [f32]) -> Matrices<'a> {
        let row = self.heads * self.width;
        let batch_strides = [self.tokens * row, self.width];
        let extent = [self.tokens, self.width];
        Matrices::new(
            values,
            [self.batch, self.heads],
            batch_strides,
            extent,
            [row, 1],
        )
        .unwrap()
    }

    /// By definition, in f64; all are `[B, T, heads * width]`.
    fn expected(&self, [q, k, v]: [&[f64]; 3], scale: f64) -> Vec<f64> {
        let row = self.heads * self.width;
        let mut output = vec![0.0; q.len()];
        for matrix in 0..self.batch * self.heads {
            let start = matrix / self.heads * self.tokens * row + matrix % self.heads * self.width;
            let of =
                |values: &[f64], token: usize, number: usize| values[start + token * row + number];
            for token in 0..self.tokens {
                let scores = (0..=token).map(|other| {
                    let terms = (0..self.width).map(|i| of(q, token, i) * of(k, other, i));
                    (scale * terms.sum::<f64>()).exp()
                });
                let scores = scores.collect::<Vec<_>>();
                let total = scores.iter().sum::<f64>();
                for number in 0..self.width {
                    let seen = scores.iter().enumerate();
                    let sum = seen
                        .map(|(other, score)| score * of(v, other, number))
                        .sum::<f64>();
                    output[start + token * row + number] = sum / total;
                }
            }
        }
        output
    }

    fn forward(&self, all: &[Vec<f32>; 3], scale: f32) -> [Vec<f32>; 2] {
        let mut output = vec![f32::NAN; self.length()];
        let mut logarithms = vec![f32::NAN; self.batch * self.heads * self.tokens];
        let given = all.each_ref().map(|values| self.matrices(values));
        causal_attention(given, scale, &mut output, &mut logarithms).unwrap();
        [output, logarithms]
    }

    fn backward(&self, all: &[Vec<f32>; 3], scale: f32) -> [Vec<f32>; 3] {
        let [output, logarithms] = self.forward(all, scale);
        let gradient = values(self.length(), 4);
        let given = all.each_ref().map(|values| self.matrices(values));
        let mut grads = [(); 3].map(|()| vec![f32::NAN; self.length()]);
        let [a, b, c] = &mut grads;
        let output = [&output[..], &logarithms];
        causal_attention_backward(given, scale, output, &gradient, [a, b, c]).unwrap();
        grads
    }
}

fn case(tokens: usize, width: usize) -> (Case, [Vec<f32>; 3]) {
    let case = Case {
        batch: 2,
        heads: 3,
        tokens,
        width,
    };
    let all = [1, 2, 3].map(|seed| values(case.length(), seed));
    (case, all)
}

#[test]
fn attention_is_its_definition() {
    for (tokens, width) in [(1, 4), (2, 3), (7, 1), (64, 32), (131, 20)] {
        let (case, all) = case(tokens, width);
        let exact = all.each_ref().map(|values| doubles(values));
        let expected = case.expected(exact.each_ref().map(|values| &values[..]), 0.7);
        for set in InstructionSet::available() {
            set.choose();
            let [output, _] = case.forward(&all, 0.7);
            assert_close(&output, &expected);
        }
    }
}

#[test]
fn gradients_are_difference_quotients() {
    for (tokens, width) in [(1, 2), (5, 3), (53, 2)] {
        let (case, all) = case(tokens, width);
        let weights = doubles(&values(case.length(), 4));
        let exact = all.each_ref().map(|values| doubles(values));
        let expected = [0, 1, 2].map(|of: usize| {
            // The first text alone: the other's gradients are found alike.
            let count = if tokens > 10 { 40 } else { exact[of].len() };
            quotients(&exact[of][..count], |changed| {
                let mut given = exact.clone();
                given[of][..count].copy_from_slice(changed);
                let output = case.expected(given.each_ref().map(|values| &values[..]), 0.7);
                output.iter().zip(&weights).map(|(o, w)| o * w).sum()
            })
        });
        for set in InstructionSet::available() {
            set.choose();
            let grads = case.backward(&all, 0.7);
            for (grad, expected) in grads.iter().zip(&expected) {
                assert_close(&grad[..expected.len()], expected);
            }
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let (case, mut all) = case(20, 8);
    for value in &mut all[0] {
        *value *= 1e4;
    }
    assert!(case.forward(&all, 1.0)[0].iter().all(|x| x.is_finite()));
    let grads = case.backward(&all, 1.0);
    assert!(grads.iter().flatten().all(|x| x.is_finite()));
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let (case, all) = case(200, 32);
    assert_same_on_threads(|| case.forward(&all, 0.3));
    assert_same_on_threads(|| case.backward(&all, 0.3));
}

#[test]
fn what_does_not_fit_is_refused() {
    let (case, all) = case(4, 2);
    let other = Case { tokens: 3, ..case };
    let given = all.each_ref().map(|values| case.matrices(values));
    let (mut output, mut logarithms) = (vec![0.0; case.length()], vec![0.0; 24]);
    let mut attempt = |given, less: usize, fewer: usize| {
        let (output, logarithms) = (&mut output[less..], &mut logarithms[fewer..]);
        causal_attention(given, 1.0, output, logarithms).is_ok()
    };
    assert!(attempt(given, 0, 0));
    assert!(!attempt(given, 1, 0));
    assert!(!attempt(given, 0, 1));
    let short = other.matrices(&all[1]);
    assert!(!attempt([given[0], short, given[2]], 0, 0));
}
