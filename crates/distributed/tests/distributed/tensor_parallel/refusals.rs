//! What cannot be cut is refused, by all ranks.

use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{DdpError, tensor_parallel};
use everburn_models::gpt::{Gpt, Positions};
use everburn_nn::{TensorParallel, TensorParallelError, TensorRule};

use super::model::{drawn, gpt};
use crate::ranks::{on_ranks, separate};

fn refused(world_size: usize, rules: impl Fn(&Gpt) -> Vec<TensorRule> + Sync) -> String {
    let whole = gpt(Positions::Learned);
    let errors = on_ranks(world_size, |group| {
        let model = separate(&whole);
        let rules = rules(&model);
        let error = tensor_parallel(model, &rules, &group).unwrap_err();
        assert!(matches!(error, DdpError::TensorParallel(_)), "{error}");
        // The group is as good as before.
        group.barrier().wait().unwrap();
        error.to_string()
    });
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    errors[0].clone()
}

#[test]
fn heads_that_do_not_go_round_are_refused_with_their_number() {
    let error = refused(5, TensorParallel::tensor_rules);
    let expected = "the 48 output features of `layers.0.attention.q`, in units of 4, cannot be cut into \
                    5 equal parts: use a number of ranks that divides 12";
    assert_eq!(error, expected);
}

#[test]
fn a_rule_that_fits_no_layer_is_refused_by_name() {
    // A path of Burn's own module, or of a parameter, is none of a layer that can be cut.
    for pattern in [
        "layers.*.attention.query",
        "wte",
        "layers.0.attention.q.weight",
    ] {
        let error = refused(2, |_| vec![TensorRule::column(pattern)]);
        assert!(error.contains(&format!("matches `{pattern}`")), "{error}");
    }
}

#[test]
fn a_layer_with_two_rules_is_refused_by_name() {
    let two = |_: &Gpt| {
        let first = TensorRule::column("layers.1.feed_forward.up");
        vec![first, TensorRule::row("layers.*.feed_forward.up")]
    };
    let error = refused(2, two);
    assert!(
        error.starts_with("`layers.1.feed_forward.up` matches both"),
        "{error}"
    );
}

#[test]
fn a_model_that_is_cut_already_is_refused() {
    let whole = gpt(Positions::Learned);
    on_ranks(2, |group| {
        let rules = whole.tensor_rules();
        let model = tensor_parallel(separate(&whole), &rules, &group).unwrap();
        let error = tensor_parallel(model, &rules, &group).unwrap_err();
        assert!(
            error.to_string().contains("cut a whole model, once"),
            "{error}"
        );
    });
}

#[test]
fn ranks_with_different_values_or_rules_are_told_which() {
    let [one, other] = [1, 2].map(|seed| drawn(gpt(Positions::Learned), seed));
    on_ranks(3, |group| {
        let model = separate(if group.rank() == 2 { &other } else { &one });
        let rules = model.tensor_rules();
        let error = tensor_parallel(model, &rules, &group).unwrap_err();
        let expected = TensorParallelError::DifferentModels { rank: 2 };
        assert!(
            matches!(&error, DdpError::TensorParallel(error) if *error == expected),
            "{error}"
        );

        let mut rules = one.tensor_rules();
        if group.rank() == 1 {
            rules.pop();
        }
        let error = tensor_parallel(separate(&one), &rules, &group).unwrap_err();
        assert!(
            error.to_string().starts_with("rank 1 of the tensor group"),
            "{error}"
        );
    });
}

#[test]
fn a_group_of_one_changes_nothing_but_checks_the_rules() {
    let group = ProcessGroup::alone(GroupOptions::default());
    let rules = gpt(Positions::Learned).tensor_rules();
    let model = tensor_parallel(gpt(Positions::Learned), &rules, &group).unwrap();
    assert!(everburn_nn::parameter_shards(&model).is_empty());
    let unknown = [TensorRule::row("nothing")];
    assert!(tensor_parallel(model, &unknown, &group).is_err());
}
