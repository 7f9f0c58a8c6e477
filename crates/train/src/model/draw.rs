//! Parameters that are still to be drawn.

use burn::module::{Module, ModuleVisitor};

/// Draws all initial weights of `model` now.
///
/// Burn draws a parameter when it is first read: its numbers depend on those that were drawn since the device was seeded, and the
/// model may have been moved to another device meanwhile. Who needs the numbers of the seed calls this first.
/// ([`Module::materialize`] does not draw: it merges adapters into weights.)
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::nn::LinearConfig;
/// use everburn::train::draw_parameters;
///
/// let device = Device::flex();
/// device.seed(7);
/// let model = LinearConfig::new(8, 4).init(&device);
/// draw_parameters(&model);
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use burn::module::{Param, ParamId};
    use burn::prelude::*;

    use super::*;

    #[test]
    fn a_parameter_is_drawn_before_it_is_read() {
        let drawn = Arc::new(AtomicBool::new(false));
        let seen = drawn.clone();
        let draw = move |device: &Device, _: bool| {
            seen.store(true, Ordering::SeqCst);
            Tensor::<1>::zeros([1], device)
        };
        let id = ParamId::new();
        let param = Param::uninitialized(id, draw, Device::flex(), false, [1].into());
        assert!(!drawn.load(Ordering::SeqCst));
        draw_parameters(&param);
        assert!(drawn.load(Ordering::SeqCst));
    }
}
