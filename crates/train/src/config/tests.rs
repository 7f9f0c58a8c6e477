//! Tests of `config`.

use everburn_tests::AssertContains;

use super::*;

#[test]
fn numbers_out_of_range_are_named() {
    let refused = |change: fn(&mut TrainingConfig)| {
        let mut config = TrainingConfig::default();
        change(&mut config);
        config.validate(4).unwrap_err().to_string()
    };
    assert!(refused(|c| c.epochs = 0).contains("`training.epochs`"));
    assert!(refused(|c| c.batch_size = 3).contains("4 ranks"));
    assert!(refused(|c| c.accumulate = 0).contains("`training.accumulate`"));
    assert!(
        refused(|c| c.ddp.max_gradient_norm = Some(0.0))
            .contains("`training.ddp.max_gradient_norm`")
    );
    assert!(refused(|c| c.ddp.bucket_bytes = 0).contains("`training.ddp.bucket_bytes`"));
    assert!(refused(|c| c.optimizer.learning_rate = -1.0).contains("learning rate"));
    assert!(refused(|c| c.optimizer.momentum = Some(0.9)).contains("sgd"));
    assert!(refused(|c| c.early_stopping = Some(EarlyStopping { patience: 0 })).contains("1"));
    let too_high_for_cosine = refused(|c| {
        c.schedule = LrSchedule::Cosine;
        c.optimizer.learning_rate = 2.0;
    });
    too_high_for_cosine.assert_contains(["`training.optimizer.learning_rate`"]);
    assert!(TrainingConfig::default().validate(4).is_ok());
}

#[test]
fn an_unknown_key_is_refused() {
    let error = toml::from_str::<TrainingConfig>("epoch = 3")
        .unwrap_err()
        .to_string();
    assert!(error.contains("epoch"), "{error}");
}
