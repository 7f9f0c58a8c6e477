//! One side of `cargo xtask bench kernels`: how long single layers take as models have them.
//!
//! Each line of the input is an [`Order`]; it is answered by a line of JSON. `crates/bench/peers/pytorch_layers.py`
//! does the same with PyTorch.

mod call;
mod given_gradient;
mod layers;
mod modules;
mod noise;

use std::io::BufRead;

use everburn::train::compute_on_this_thread;

use super::layer::{Answer, Order};
use crate::failure::Failure;

pub(crate) fn run(threads: usize) -> Result<(), Failure> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|error| Failure::usage(format!("{threads} threads: {error}")))?;
    // As a rank does.
    compute_on_this_thread(threads)?;
    for line in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let (microseconds, check) = layers::measure(&order)?;
        let answer = Answer {
            microseconds,
            threads: rayon::current_num_threads(),
            check,
        };
        say!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}
