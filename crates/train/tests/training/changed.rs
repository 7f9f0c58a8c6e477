//! Configurations that differ in a setting.

use everburn_train::TrainingConfig;

/// `config` with a change.
pub fn changed(
    mut config: TrainingConfig,
    change: impl FnOnce(&mut TrainingConfig),
) -> TrainingConfig {
    change(&mut config);
    config
}
