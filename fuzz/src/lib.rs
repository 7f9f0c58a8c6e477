//! What all fuzz programs need before their first input.

use std::sync::Arc;

/// Makes writing to a closed connection an error, as it is in every program whose `main` is Rust's;
/// under libFuzzer's it would be the end of the process.
///
/// # Panics
/// Where the system knows no such signal.
pub fn survive_closed_connections() {
    signal_hook::flag::register(signal_hook::consts::SIGPIPE, Arc::default())
        .expect("a signal that can be handled");
}
