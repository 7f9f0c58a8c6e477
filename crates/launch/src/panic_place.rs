//! What the message of a panic leaves out: where in the user's code it began (Burn's own message about shapes names neither the
//! layer nor the model), and that the device has failed.

use std::backtrace::Backtrace;

/// The layer in which this thread is, and the function of the user (or of one of our models) that has called it, from the
/// symbols of the stack: "in `burn_nn::modules::linear::Linear::forward`, called by `images::Net::forward`". `None` without
/// symbols, and where there is neither.
pub(crate) fn place_of_panic() -> Option<String> {
    named(&Backtrace::force_capture().to_string())
}

/// What to look at if `panic` is that of a GPU's runtime whose device has failed: neither wgpu nor CUDA says so in its message.
pub(crate) fn lost_device(panic: &str) -> Option<&'static str> {
    let signs = [
        "Device is lost",
        "device is poisoned",
        "BufferAsyncError",
        "CUDA_ERROR_",
        "hipError",
    ];
    let is_lost = signs.iter().any(|sign| panic.contains(sign));
    is_lost.then_some(
        "the device of this rank has failed: its driver has reset it, or it is gone. Look at the driver's lines in `dmesg`; \
         a new start opens the device again, and an elastic run does so by itself",
    )
}

fn named(stack: &str) -> Option<String> {
    let frames = stack.lines().filter_map(|line| {
        let (number, name) = line.trim_start().split_once(": ")?;
        number.parse::<usize>().ok()?;
        Some(without_hash(name))
    });
    let frames = frames.collect::<Vec<_>>();
    let is_layer = |name: &&&str| {
        let of_layers = ["burn_nn", "everburn_nn"].contains(&root(name));
        of_layers && name.ends_with("::forward")
    };
    let is_users = |name: &&&str| name.contains("::") && is_of_a_model(root(name));
    let users = frames.iter().position(|name| is_users(&name));
    // A layer that calls the user's function, as for a block of layers, is not where it began.
    let inside = &frames[..users.unwrap_or(frames.len())];
    let layer = inside.iter().find(is_layer);
    let users = users.map(|users| &frames[users]);
    match (layer, users) {
        (Some(layer), Some(users)) => Some(format!("in `{layer}`, called by `{users}`")),
        (Some(one), None) | (None, Some(one)) => Some(format!("in `{one}`")),
        (None, None) => None,
    }
}

/// Whether a crate is neither the panic's own, nor Burn's, nor ours, but for our models.
fn is_of_a_model(root: &str) -> bool {
    let libraries = ["std", "core", "alloc", "burn", "rayon", "rayon_core"];
    let families = ["__", "rust_", "burn_", "cubecl", "everburn"];
    let of_family = families.iter().any(|family| root.starts_with(family));
    root == "everburn_models" || !libraries.contains(&root) && !of_family
}

/// The crate of a function, also of `<images::Net as Model>::forward`.
fn root(name: &str) -> &str {
    let name = name.trim_start_matches(['<', '&']);
    name.split_once("::").map_or(name, |(root, _)| root)
}

/// Without the compiler's `::h0123456789abcdef`.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_has_failed_is_called_that() {
        let wgpu = "panicked at cubecl-wgpu/src/compute/timings.rs:510:22:\nFailed to map buffer: BufferAsyncError";
        let cuda =
            "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)";
        assert!([wgpu, cuda].map(lost_device).iter().all(Option::is_some));
        assert_eq!(lost_device("index out of bounds: the len is 3"), None);
    }

    #[test]
    fn the_layer_and_the_users_function_are_named() {
        let stack = "   0: std::backtrace::Backtrace::create\n   1: core::panicking::panic_fmt\n             at /rustc/1.rs:3\n   \
                     2: burn_tensor::tensor::api::check::TensorCheck::failed::h0123456789abcdef\n   \
                     3: burn_nn::modules::linear::Linear<_>::forward\n   4: <images::Net as everburn_train::Supervised>::forward\n   \
                     5: everburn_train::strategy::run\n   6: images::main\n";
        assert_eq!(
            named(stack).as_deref(),
            Some(
                "in `burn_nn::modules::linear::Linear<_>::forward`, called by `<images::Net as everburn_train::Supervised>::forward`"
            )
        );
        let closure = "   0: burn_tensor::x\n   1: images::Net::blocks\n   2: everburn_nn::blocks::Blocks::forward\n";
        assert_eq!(named(closure).as_deref(), Some("in `images::Net::blocks`"));
        let own = "   0: core::panicking::panic\n   1: everburn_models::gpt::Gpt::forward::habcdef0123456789\n   2: main\n";
        assert_eq!(
            named(own).as_deref(),
            Some("in `everburn_models::gpt::Gpt::forward`")
        );
        assert_eq!(named("   0: std::rt::lang_start\n   1: main\n"), None);
        assert_eq!(named("<unknown>"), None);
    }

    #[test]
    fn a_panic_of_this_program_is_in_this_program() {
        let place = place_of_panic();
        // Symbols may have been stripped, but then nothing else is named.
        assert!(place.is_none_or(|place| !place.contains("std::")));
    }
}
