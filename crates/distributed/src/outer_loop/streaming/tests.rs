use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;

use super::super::{OuterConfig, OuterOptimizer};
use super::*;
use crate::test_ranks::on_ranks;

/// 1,024 weights and 2 biases, in fragments of 768 and of 258 numbers.
fn outer(group: &ProcessGroup, config: OuterConfig) -> (OuterLoop, Linear) {
    let model = LinearConfig::new(512, 2).init(&Device::flex().autodiff());
    let outer = OuterLoop::new(&model, group.clone(), config).unwrap();
    let numbers = vec![1.0; outer.num_parameters()];
    let model = outer.write(model, &numbers);
    let outer = OuterLoop::new(&model, group.clone(), config).unwrap();
    (outer, model)
}

fn moved(outer: &OuterLoop, model: Linear, by: f32) -> Linear {
    let mut numbers = outer.read(&model).unwrap();
    numbers.iter_mut().for_each(|number| *number += by);
    outer.write(model, &numbers)
}

#[test]
fn a_fragment_moves_by_what_all_have_learnt_and_keeps_what_came_after() {
    let config = OuterConfig {
        optimizer: OuterOptimizer::Average,
        fragments: Some(2),
        ..OuterConfig::default()
    };
    let results = on_ranks(2, |group| {
        let (mut outer, model) = outer(&group, config);
        let stream = OuterStream::start(&group).unwrap();
        // Rank 0 has gone down by 4 with one sample, rank 1 up by 4 with three: together up by 2.
        let (by, samples) = [(-4.0, 1), (4.0, 3)][group.rank()];
        let model = moved(&outer, model, by);
        let fragment = outer.begin(&model, samples, &stream).unwrap();
        let model = moved(&outer, model, 0.5);
        let (model, communication) = outer.collect(model, fragment).unwrap();
        assert_eq!(communication.bytes, 768 * 4);
        let streamed = outer.read(&model).unwrap();
        let common = outer.read(&outer.common(model.clone())).unwrap();
        // An outer step counts, for the second fragment, what was learnt before the first was sent.
        let (model, _) = outer.step(model, 0).unwrap();
        assert_eq!(outer.find_divergence(&model).unwrap(), None);
        (streamed, common, outer.read(&model).unwrap())
    });
    for (rank, (streamed, common, equal)) in results.iter().enumerate() {
        let own = [-4.0, 4.0][rank] + 1.5;
        assert!(streamed[..768].iter().all(|it| *it == 3.5), "{streamed:?}");
        assert!(streamed[768..].iter().all(|it| *it == own), "{streamed:?}");
        assert!(common[..768].iter().all(|it| *it == 3.0), "{common:?}");
        assert!(common[768..].iter().all(|it| *it == 1.0), "{common:?}");
        assert!(equal[768..].iter().all(|it| *it == 3.5), "{equal:?}");
    }
}

#[test]
fn what_comes_after_the_last_fragment_is_not_lost_at_an_outer_step() {
    let config = OuterConfig {
        optimizer: OuterOptimizer::Average,
        fragments: Some(1),
        ..OuterConfig::default()
    };
    let results = on_ranks(2, |group| {
        let (mut outer, model) = outer(&group, config);
        let stream = OuterStream::start(&group).unwrap();
        let model = moved(&outer, model, 2.0);
        let fragment = outer.begin(&model, 1, &stream).unwrap();
        let model = moved(&outer, model, 1.0);
        let (model, _) = outer.collect(model, fragment).unwrap();
        let (model, _) = outer.step(model, 1).unwrap();
        outer.read(&model).unwrap()
    });
    for numbers in results {
        assert!(numbers.iter().all(|it| *it == 4.0), "{numbers:?}");
    }
}

#[test]
fn a_rank_that_is_gone_fails_the_exchange_and_is_named() {
    let config = OuterConfig {
        fragments: Some(2),
        ..OuterConfig::default()
    };
    let results = on_ranks(2, |group| {
        let (mut outer, model) = outer(&group, config);
        let stream = OuterStream::start(&group).unwrap();
        if group.rank() == 1 {
            group.abort("rank 1 has no disk");
            return None;
        }
        let fragment = outer.begin(&model, 1, &stream).unwrap();
        Some(outer.collect(model, fragment).unwrap_err().to_string())
    });
    let error = results[0].as_ref().unwrap();
    assert!(error.contains("rank 1 has no disk"), "{error}");
}
