//! Parameters that are still to be drawn.

use burn::module::{Module, ModuleVisitor};

/// Draws all initial weights of `model` now.
///
/// Burn draws a parameter when it is first read, and a copy of a parameter that is still to be drawn draws its own: who copies a
/// model, or draws other random numbers before it is read, calls this first. ([`Module::materialize`] does not draw: it merges
/// adapters into weights.)
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::nn::LinearConfig;
/// use everburn::train::draw_parameters;
///
/// let model = LinearConfig::new(8, 4).init(&Device::flex());
/// draw_parameters(&model);
/// let weights = |model: &everburn::nn::Linear| model.weight.val().into_data();
/// assert_eq!(weights(&model), weights(&model.clone()));
/// ```
pub fn draw_parameters(model: &impl Module) {
    struct Draw;

    impl ModuleVisitor for Draw {
        everburn_nn::walking! { visit each self, param => drop(param.val()) }
    }

    model.visit(&mut Draw);
}

#[cfg(test)]
mod tests {
    use burn::prelude::*;
    use everburn_nn::conv::Conv2dConfig;

    use super::*;

    #[test]
    fn copies_of_a_drawn_model_have_its_weights_and_others_draw_their_own() {
        let device = Device::flex();
        let init = || Conv2dConfig::new([2, 3], [3, 3]).init(&device);
        let bits = |model: &everburn_nn::conv::Conv2d| model.weight.val().into_data();
        let undrawn = init();
        assert_ne!(
            bits(&undrawn.clone()),
            bits(&undrawn),
            "Burn draws at once: this is not needed"
        );
        let drawn = init();
        draw_parameters(&drawn);
        assert_eq!(bits(&drawn.clone()), bits(&drawn));
    }
}
