//! Tests of which parameters are in which group.

use burn::module::{Module, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::prelude::*;
use everburn_tests::AssertContains;

use super::*;

#[derive(Module, Debug)]
struct Net {
    body: Linear,
    norm: BatchNorm,
    head: Linear,
}

fn net() -> Net {
    let device = Device::flex().autodiff();
    Net {
        body: LinearConfig::new(3, 4).init(&device),
        norm: BatchNormConfig::new(4).init(&device),
        head: LinearConfig::new(4, 2).init(&device),
    }
}

fn groups(text: &str) -> Vec<ParameterGroup> {
    #[derive(Deserialize)]
    struct Groups {
        groups: Vec<ParameterGroup>,
    }
    toml::from_str::<Groups>(text).unwrap().groups
}

fn refused(text: &str) -> String {
    let groups = groups(text);
    let checked = groups.iter().try_for_each(ParameterGroup::check);
    let found = checked.and_then(|()| Parameters::of(&net(), &groups).map(drop));
    found.unwrap_err().to_string()
}

#[test]
fn stars_stand_for_any_letters() {
    for (pattern, path, fit) in [
        ("head.*", "head.weight", true),
        ("head.*", "ahead.weight", false),
        ("*.bias", "head.bias", true),
        ("*.bias", "bias", false),
        ("*norm*", "layers.0.norm.gamma", true),
        ("a*b*c", "abc", true),
        ("a*b*c", "abcb", false),
        ("a*ba", "aba", true),
        ("a*ba", "ba", false),
        ("head.weight", "head.weight", true),
        ("head.weight", "head.weights", false),
        ("*", "anything.at.all", true),
    ] {
        assert_eq!(Patterns::from(pattern).fit(path), fit, "{pattern} {path}");
    }
}

#[test]
fn of_several_groups_the_last_that_says_something_counts() {
    let groups = groups(
        "[[groups]]\nmatch = '*'\nweight_decay = 0.1\n[[groups]]\nmatch = ['*.bias', 'norm.*']\nweight_decay = 0.0\n\
         learning_rate_factor = 2.0\n[[groups]]\nmatch = 'head.*'\nlearning_rate_factor = 10.0\n",
    );
    let parameters = Parameters::of(&net(), &groups).unwrap();
    let in_group =
        |group: &burn::module::ParamGroup, path| group.matches(&ParamId::new(), Some(path));
    let decays = parameters.by_weight_decay(0.5, |_| true);
    let decay_of = |path| {
        decays
            .iter()
            .find(|(_, group)| in_group(group, path))
            .map(|it| it.0)
    };
    assert_eq!(decay_of("body.weight"), Some(0.1));
    assert_eq!(decay_of("head.bias"), Some(0.0));
    let rates = parameters.by_learning_rate();
    let rate_of = |path| {
        rates
            .iter()
            .find(|(_, group)| in_group(group, path))
            .map(|it| it.0)
    };
    assert_eq!(rate_of("body.weight"), None);
    assert_eq!(rate_of("norm.gamma"), Some(2.0));
    assert_eq!(rate_of("head.bias"), Some(10.0));
    assert!(parameters.frozen().is_none());
}

#[test]
fn what_is_frozen_needs_no_gradient_and_a_norm_of_it_takes_its_running_statistics() {
    let groups = groups("[[groups]]\nmatch = ['body.*', 'norm.*']\nfrozen = true\n");
    let frozen = Parameters::of(&net(), &groups).unwrap().frozen().unwrap();
    let model = net().freeze_group(frozen);
    assert!(!model.body.weight.is_require_grad() && !model.norm.gamma.is_require_grad());
    assert!(!model.norm.training.is_enabled());
    assert!(model.head.weight.is_require_grad());
}

#[test]
fn groups_that_match_or_say_nothing_are_refused_by_name() {
    let error = refused("[[groups]]\nmatch = 'heat.*'\nfrozen = true\n");
    error.assert_contains(["`match = \"heat.*\"`", "the nearest is `head."]);
    let error = refused("[[groups]]\nmatch = ['head.*', 'tail']\nfrozen = true\n");
    assert!(error.contains("\"tail\""), "{error}");
    let error = refused("[[groups]]\nmatch = 'head.*'\n");
    error.assert_contains(["no setting", "`head.*`"]);
    let error = refused("[[groups]]\nmatch = 'head.*'\nlearning_rate_factor = 0.0\n");
    error.assert_contains(["`learning_rate_factor` must be a positive"]);
    let error = refused("[[groups]]\nmatch = 'head.*'\nweight_decay = -1.0\n");
    error.assert_contains(["`weight_decay` must not be negative"]);
    let error = refused("[[groups]]\nmatch = '*'\nfrozen = true\n");
    assert!(error.contains("nothing is left to learn"), "{error}");
    let error = refused("[[groups]]\nmatch = []\nfrozen = true\n");
    assert!(error.contains("names no parameters"), "{error}");
}
