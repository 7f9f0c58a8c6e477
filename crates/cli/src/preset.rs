//! Presets of models.

use toml::Table;

/// What a model wants otherwise than the defaults have it.
pub(crate) fn preset(model: &str) -> Table {
    match model {
        // The Keras original decays its learning rate; half a cosine does it without a number.
        "mnist-bn" => toml::toml! {
            [training]
            schedule = "cosine"
            [training.optimizer]
            learning_rate = 0.003
        },
        // Large steps, which a falling rate ends and a limit on gradients keeps from going astray. More
        // samples a step take longer and hardly teach more.
        "gpt-nano" => toml::toml! {
            [training]
            batch_size = 32
            schedule = "cosine"
            [training.optimizer]
            kind = "adam-w"
            learning_rate = 0.003
            beta_2 = 0.99
            weight_decay = 0.1
            [training.ddp]
            max_gradient_norm = 1.0
        },
        // Radford et al. 2019 do not say; these are the rates of Brown et al. 2020, table 2.1, at a
        // batch that a small machine can hold.
        "gpt2-124m" => toml::toml! {
            [training]
            batch_size = 8
            schedule = "cosine"
            [training.optimizer]
            kind = "adam-w"
            learning_rate = 0.0006
            beta_2 = 0.95
            weight_decay = 0.1
            [training.ddp]
            max_gradient_norm = 1.0
        },
        _ => Table::new(),
    }
}
