//! Configurations of trainings.

use everburn_train::{OptimizerConfig, OptimizerKind, TrainingConfig};

/// The configuration with a change.
pub fn changed(
    mut config: TrainingConfig,
    change: impl FnOnce(&mut TrainingConfig),
) -> TrainingConfig {
    change(&mut config);
    config
}

/// An optimizer with defaults but for its learning rate.
pub fn optimizer(kind: OptimizerKind, learning_rate: f64) -> OptimizerConfig {
    OptimizerConfig {
        kind,
        learning_rate,
        ..OptimizerConfig::default()
    }
}
