//! Tests of `generation`.

use super::*;

#[test]
fn tokens_are_drawn_as_often_as_they_are_likely_and_the_seed_repeats_them() {
    let shares = [0.1_f64, 0.6, 0.3];
    let scores = shares.map(f64::ln);
    let whole = GenerationConfig {
        temperature: 1.0,
        ..GenerationConfig::default()
    };
    let [sharp, two, most] = [
        GenerationConfig {
            temperature: 0.5,
            ..whole
        },
        GenerationConfig {
            top_k: Some(2),
            ..whole
        },
        GenerationConfig {
            top_p: Some(0.6),
            ..whole
        },
    ];
    for (generation, expected) in [
        (whole, shares),
        (sharp, [1.0 / 46.0, 36.0 / 46.0, 9.0 / 46.0]),
        (two, [0.0, 2.0 / 3.0, 1.0 / 3.0]),
        (most, [0.0, 1.0, 0.0]),
    ] {
        let draw = |seed| {
            let generation = GenerationConfig { seed, ..generation };
            let draws = (0..20_000).map(|index| generation.choose(&scores, index));
            draws.collect::<Vec<_>>()
        };
        let drawn = draw(1);
        for (token, share) in expected.into_iter().enumerate() {
            let count = drawn.iter().filter(|&&other| other == token).count();
            // Five standard deviations of 20,000 draws are below 0.02.
            let difference = (count as f64 / 20_000.0 - share).abs();
            assert!(difference < 0.02, "{token} of {generation:?}");
            assert!(share > 0.0 || count == 0, "{token} of {generation:?}");
        }
        assert_eq!(drawn, draw(1));
        assert!(expected.contains(&1.0) || drawn != draw(2));
    }
}

#[test]
fn a_model_is_shown_each_token_once_until_the_context_is_full() {
    let shown = std::cell::RefCell::new(Vec::new());
    let score = |tokens: Tensor<2, Int>, start: usize| {
        shown.borrow_mut().push((start, tokens.dims()[1]));
        (tokens + 1).one_hot::<3>(20).float()
    };
    let greedy = GenerationConfig {
        tokens: 4,
        temperature: 0.0,
        ..GenerationConfig::default()
    };
    let drawn = greedy.draw(&[3, 4], 4, score, &Device::flex()).unwrap();
    assert_eq!(drawn, [5, 6, 7, 8]);
    assert_eq!(*shown.borrow(), [(0, 2), (2, 1), (3, 1), (0, 4)]);
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let draw = |prompt: &[u32], generation: GenerationConfig| {
        let score = whole_text(|tokens: Tensor<2, Int>| tokens.one_hot::<3>(4).float());
        let drawn = generation.draw(prompt, 8, score, &Device::flex());
        drawn.map_err(|error| error.to_string())
    };
    let one = GenerationConfig {
        tokens: 1,
        temperature: 0.0,
        ..GenerationConfig::default()
    };
    let refused = |generation| draw(&[0], generation).unwrap_err();
    assert!(draw(&[], one).unwrap_err().contains("at least one token"));
    for temperature in [-1.0, f64::NAN] {
        let wrong = GenerationConfig { temperature, ..one };
        assert!(refused(wrong).contains("temperature"));
    }
    for top_p in [0.0, 1.5, f64::NAN] {
        let top_p = Some(top_p);
        assert!(refused(GenerationConfig { top_p, ..one }).contains("top-p"));
    }
    let top_k = Some(0);
    assert!(refused(GenerationConfig { top_k, ..one }).contains("top-k"));
    assert_eq!(draw(&[2], one), Ok(vec![2]));
}
