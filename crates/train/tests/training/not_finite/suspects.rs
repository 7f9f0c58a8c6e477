//! What is suspected where no sample is found.

use burn::module::Param;
use everburn_train::{DivergenceSign, OptimizerKind};

use super::*;
use crate::harness::config::optimizer;

#[test]
fn an_evaluation_that_is_not_finite_on_finite_inputs_suspects_the_model() {
    let data = data(samples(60), samples(12));
    let evaluated = |forward: fn(&Linear, Tensor<2>) -> Tensor<2>, weight: f32| {
        let errors = on_ranks(1, &config(), None, |trainer| {
            let linear = LinearConfig::new(3, 2).init(&Device::flex());
            let weight = Param::from_tensor(Tensor::full([3, 2], weight, &Device::flex()));
            let model: Classifier<Linear, 2> =
                Classifier::new(Linear { weight, ..linear }, forward);
            trainer.evaluate(&model, &data).unwrap_err()
        });
        errors[0].to_string()
    };
    let of_weights = evaluated(Linear::forward, f32::NAN);
    let text =
        "the test loss is NaN: parameters of the model are NaN or infinite: take weights of before";
    assert!(of_weights.starts_with(text), "{of_weights}");
    let of_model = evaluated(|model, inputs| model.forward(inputs) / 0.0, 1.0);
    let text = "the inputs of that batch are finite, so the model or the loss makes it";
    assert!(of_model.contains(text), "{of_model}");
}

#[test]
fn of_a_validation_loss_the_data_are_suspected_first() {
    let error = |what| TrainError::LossNotFinite {
        what,
        loss: f64::INFINITY,
        step: Some(9),
        epoch: Some(1),
        inputs_are_finite: false,
        sign: None,
    };
    let validation = error("validation loss").to_string();
    let expected = "the training loss was finite, so look for a NaN or an infinite number in the validation data first";
    assert!(validation.contains(expected), "{validation}");
    let training = error("training loss").to_string();
    let expected = "the training has diverged, or the data have a NaN";
    assert!(training.contains(expected), "{training}");
}

#[test]
fn of_a_validation_loss_after_a_training_loss_that_has_risen_the_learning_rate_is_suspected_first()
{
    let config = TrainingConfig {
        optimizer: optimizer(OptimizerKind::Sgd, 1e6),
        epochs: 1,
        ..config()
    };
    // Finite, and too large for what was learned.
    let validation = vec![([1e38, -1e38, 1e38], 0); 12];
    let data = data(samples(60), validation);
    for ranks in [1, 2] {
        for error in errors(ranks, &config, &data) {
            let TrainError::LossNotFinite {
                what: "validation loss",
                inputs_are_finite: true,
                sign: Some(DivergenceSign::Loss { first, newest }),
                ..
            } = error
            else {
                panic!("{error}");
            };
            assert!(newest > 10.0 * first, "{error}");
            let text = "the training has diverged (the training loss has risen from ";
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

#[test]
fn of_parameters_that_are_not_finite_the_learning_rate_is_suspected_before_unknown_data() {
    let error = TrainError::LossNotFinite {
        what: "validation loss",
        loss: f64::NAN,
        step: Some(9),
        epoch: Some(1),
        inputs_are_finite: false,
        sign: Some(DivergenceSign::Parameters),
    };
    let text = "the training has diverged (parameters of the model are NaN or infinite): try a lower \
                `training.optimizer.learning_rate`; if that changes nothing, look for a NaN or an infinite number in the \
                validation data";
    assert!(error.to_string().ends_with(text), "{error}");
}

/// Scores that are infinite soon where the steps are large.
fn exponential(model: &Linear, inputs: Tensor<2>) -> Tensor<2> {
    model.forward(inputs).exp()
}

#[test]
fn a_training_that_diverges_on_finite_inputs_says_so() {
    let config = TrainingConfig {
        optimizer: optimizer(OptimizerKind::Sgd, 1e6),
        epochs: 20,
        ..config()
    };
    for ranks in [1, 2] {
        let data = data(samples(60), samples(12));
        let errors = on_ranks(ranks, &config, None, |trainer| {
            let linear = LinearConfig::new(3, 2).init(&Device::flex());
            let model = Classifier::new(linear, exponential);
            trainer.fit(model, &data).map(drop).unwrap_err()
        });
        for error in errors {
            let TrainError::LossNotFinite {
                inputs_are_finite,
                step: Some(step),
                ..
            } = error
            else {
                panic!("{error}");
            };
            assert!(inputs_are_finite && step > 1, "{error}");
            let text = "the inputs of that batch are finite, so the training has diverged";
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
