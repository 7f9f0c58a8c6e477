//! Tests of optimizers by name.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_tests::AssertContains;

use super::*;

fn layer() -> Linear {
    let device = Device::flex().autodiff();
    let mut layer = LinearConfig::new(2, 2).init(&device);
    layer.weight = Param::from_data(TensorData::from([[1.0f32, -2.0], [0.5, 3.0]]), &device);
    layer.bias = Some(Param::from_data(TensorData::from([0.25f32, -1.0]), &device));
    layer
}

/// The numbers after two steps along a gradient that is 2 x + 1.
fn learnt(config: &OptimizerConfig) -> Vec<f32> {
    let mut model = layer();
    let mut optimizer = config.init(&model).unwrap();
    for _ in 0..2 {
        let (weight, bias) = (model.weight.val(), model.bias.as_ref().unwrap().val());
        let loss = weight.clone().powi_scalar(2).sum() + weight.sum();
        let loss = loss + bias.clone().powi_scalar(2).sum() + bias.sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(config.learning_rate, model, gradients);
    }
    let bias = model.bias.unwrap().val().into_data();
    let weight = model.weight.val().into_data();
    weight.iter::<f32>().chain(bias.iter::<f32>()).collect()
}

fn of(kind: OptimizerKind) -> OptimizerConfig {
    OptimizerConfig {
        kind,
        learning_rate: 0.1,
        ..OptimizerConfig::default()
    }
}

fn parsed(text: &str) -> OptimizerConfig {
    toml::from_str(text).unwrap()
}

#[test]
fn each_optimizer_of_burn_is_known_by_name_and_learns_by_its_own_rule() {
    let begun = learnt(&OptimizerConfig {
        learning_rate: 1e-12,
        ..of(OptimizerKind::Sgd)
    });
    let mut known: Vec<(OptimizerKind, Vec<f32>)> = Vec::new();
    for kind in OptimizerKind::ALL {
        let config = parsed(&format!("kind = '{kind}'\nlearning_rate = 0.1"));
        assert_eq!(config.kind, kind);
        let found = learnt(&config);
        assert!(found.iter().all(|number| number.is_finite()), "{kind}");
        assert_ne!(found, begun, "{kind}");
        for (other, theirs) in &known {
            // Without weight decay these two are the same.
            let alike = [*other, kind] == [OptimizerKind::Adam, OptimizerKind::AdamW];
            assert_eq!(found == *theirs, alike, "{kind} and {other}");
        }
        known.push((kind, found));
    }
    assert_eq!(parsed("kind = 'adamw'").kind, OptimizerKind::AdamW);
}

#[test]
fn each_setting_of_an_optimizer_counts() {
    for (kind, setting) in [
        ("sgd", "momentum = 0.5"),
        ("sgd", "momentum = 0.5\ndampening = 0.5"),
        ("sgd", "momentum = 0.5\nnesterov = true"),
        ("adam", "beta_1 = 0.5"),
        ("adam", "beta_2 = 0.5"),
        ("adam", "epsilon = 0.5"),
        ("adam-w", "cautious_weight_decay = true\nweight_decay = 0.5"),
        ("adam-w", "weight_decay = 0.5"),
        ("adagrad", "learning_rate_decay = 0.5"),
        ("adagrad", "epsilon = 0.5"),
        ("rmsprop", "alpha = 0.5"),
        ("rmsprop", "momentum = 0.5"),
        ("rmsprop", "centered = true"),
        ("rmsprop", "epsilon = 0.5"),
        ("adan", "beta_1 = 0.5"),
        ("adan", "beta_3 = 0.5"),
        ("adan", "no_prox = true\nweight_decay = 0.5"),
        ("lamb", "beta_2 = 0.5"),
        ("lamb", "trust_ratio = false"),
        ("lion", "weight_decay = 0.5"),
        ("adafactor", "decay_rate = -0.5"),
        ("adafactor", "scale_parameter = false"),
        ("adafactor", "clip_threshold = 0.5"),
        ("muon", "momentum = 0.1"),
        ("muon", "newton_schulz_steps = 1"),
        ("muon", "adjust_learning_rate = 'match-rms-adam-w'"),
        ("muon", "nesterov = false"),
    ] {
        let usual = parsed(&format!("kind = '{kind}'\nlearning_rate = 0.1"));
        let other = parsed(&format!("kind = '{kind}'\nlearning_rate = 0.1\n{setting}"));
        assert_ne!(learnt(&usual), learnt(&other), "{kind} {setting}");
    }
    // The relative step is a bound, which small rates do not reach.
    let adafactor = |setting| {
        let config = format!("kind = 'adafactor'\nlearning_rate = 3.0\n{setting}");
        learnt(&parsed(&config))
    };
    assert_ne!(adafactor(""), adafactor("relative_step = false"));
}

#[test]
fn what_an_optimizer_has_not_is_refused_by_name() {
    for (kind, setting, hint) in [
        ("adam", "momentum = 0.9", "sgd, muon and rmsprop"),
        ("sgd", "beta_2 = 0.99", "adam, adam-w"),
        ("lion", "epsilon = 1e-6", "lion has beta_1, beta_2"),
        ("adam-w", "newton_schulz_steps = 3", "it is one of muon"),
        ("lamb", "amsgrad = true", "adam and adam-w"),
    ] {
        let config = parsed(&format!("kind = '{kind}'\n{setting}"));
        let error = config.check().unwrap_err().to_string();
        let name = setting.split(' ').next().unwrap();
        let expected = format!("`{name}` is no setting of {kind}");
        assert!(error.contains(&expected) && error.contains(hint), "{error}");
    }
    let unknown = toml::from_str::<OptimizerConfig>("kind = 'sgd'\nmomentums = 0.9");
    assert!(unknown.unwrap_err().to_string().contains("momentums"));
    let alone = parsed("kind = 'sgd'\nnesterov = true").check().unwrap_err();
    alone
        .to_string()
        .assert_contains(["add `training.optimizer.momentum = 0.9`"]);
}

#[test]
fn what_configurations_once_said_of_every_optimizer_says_nothing() {
    let once = "momentum = 0.0\nbeta_2 = 0.999\nepsilon = 1e-8\nweight_decay = 0.0";
    for kind in ["adam", "adam-w", "sgd"] {
        let config = parsed(&format!("kind = '{kind}'\nlearning_rate = 0.1\n{once}"));
        config.check().unwrap();
        assert_eq!(learnt(&config), learnt(&of(config.kind)), "{kind}");
    }
}

#[test]
fn numbers_out_of_their_range_are_refused() {
    for (text, message) in [
        (
            "learning_rate = 0.0",
            "the learning rate must be a positive number, not 0, in [training.optimizer]",
        ),
        (
            "learning_rate = 1e40",
            "the learning rate is 1e40, which is too large for f32 (at most 3.4e38), in [training.optimizer]",
        ),
        (
            "weight_decay = -1.0",
            "the weight decay must not be negative",
        ),
        ("beta_1 = 1.0", "`beta_1` must be at least 0 and below 1"),
        ("epsilon = 0.0", "`epsilon` must be a positive number"),
        (
            "kind = 'sgd'\nmomentum = 1.5",
            "the momentum must be at least 0",
        ),
        (
            "kind = 'adafactor'\ndecay_rate = 0.5",
            "must be a negative number",
        ),
        (
            "kind = 'muon'\nnewton_schulz_steps = 0",
            "must be a positive",
        ),
    ] {
        let error = parsed(text).check().unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}

#[test]
fn the_state_of_each_optimizer_goes_on_from_its_record() {
    for kind in OptimizerKind::ALL {
        let config = of(kind);
        let model = layer();
        let step = |optimizer: &mut ModuleOptimizer, model: Linear| {
            let loss = model.weight.val().powi_scalar(2).sum();
            let loss = loss + model.bias.as_ref().unwrap().val().sum();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            optimizer.step(0.1, model, gradients)
        };
        let mut first = config.init(&model).unwrap();
        let model = step(&mut first, model);
        let fresh = config.init(&model).unwrap();
        let mut second = fresh.from_bytes(first.into_bytes().unwrap()).unwrap();
        assert_eq!(second.to_record().len(), first.to_record().len(), "{kind}");
        let one = step(&mut first, model.clone()).weight.val().into_data();
        let other = step(&mut second, model.clone()).weight.val().into_data();
        assert_eq!(one, other, "{kind}");
        assert!(model.num_params() == 6);
    }
}

#[test]
fn groups_of_a_model_have_their_own_weight_decay() {
    let mut config = of(OptimizerKind::AdamW);
    config.weight_decay = 0.5;
    let all = learnt(&config);
    config.groups = vec![ParameterGroup {
        matches: "bias".into(),
        weight_decay: Some(0.0),
        ..ParameterGroup::default()
    }];
    let without = learnt(&config);
    config.groups.clear();
    config.weight_decay = 0.0;
    let none = learnt(&config);
    assert_eq!((&without[..4], &without[4..]), (&all[..4], &none[4..]));
}

#[test]
fn an_optimizer_of_the_tasks_own_leaves_all_but_the_rates_unused() {
    let rates = OptimizerConfig {
        learning_rate: 0.1,
        layer_decay: Some(0.9),
        ..OptimizerConfig::default()
    };
    assert_eq!(rates.unused_by_own(), Vec::<String>::new());
    let sgd = OptimizerConfig {
        kind: OptimizerKind::Sgd,
        momentum: Some(0.5),
        ..rates
    };
    let expected = ["`kind = \"sgd\"`", "`momentum = 0.5`"];
    assert_eq!(sgd.unused_by_own(), expected);
}
