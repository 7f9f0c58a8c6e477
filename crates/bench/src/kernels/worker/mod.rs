//! One side of `cargo xtask bench kernels`: how long single layers take as models have them.
//!
//! Each line of the input is an [`Order`]; it is answered by a line of JSON. `crates/bench/peers/pytorch_layers.py`
//! does the same with PyTorch.

mod call;
mod given_gradient;
mod layers;
mod modules;
mod noise;

use std::io::{BufRead, Read};

use clap::Args;
use everburn::train::compute_on_this_thread;

use super::layer::{Answer, Order};
use crate::failure::Failure;

/// Longer than any order, so that what is no order ends soon.
const LONGEST_LINE: u64 = 1 << 14;

#[derive(Debug, Clone, Args)]
pub(crate) struct BenchKernelsArguments {
    #[arg(long)]
    threads: usize,
}

pub(crate) fn run(arguments: &BenchKernelsArguments) -> Result<(), Failure> {
    let threads = arguments.threads;
    if threads == 0 {
        return Err(Failure::usage("--threads must be at least 1"));
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|error| Failure::usage(format!("{threads} threads: {error}")))?;
    // As a rank does.
    compute_on_this_thread(threads)?;
    let mut input = std::io::stdin().lock();
    while let Some(line) = next_line(&mut input)? {
        let order: Order = serde_json::from_str(&line)?;
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

/// `None` at the end of the input.
fn next_line(input: &mut impl BufRead) -> Result<Option<String>, Failure> {
    let mut line = String::new();
    let read = input.take(LONGEST_LINE).read_line(&mut line);
    match read {
        Ok(0) => Ok(None),
        Ok(_) if line.ends_with('\n') => Ok(Some(line)),
        Ok(_) => Err(Failure::usage("an order without an end came in")),
        Err(error) => Err(Failure::usage(format!(
            "the orders cannot be read: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_up_to_the_end_of_the_input_and_no_further_than_is_sensible() {
        let mut input = "one\ntwo\n".as_bytes();
        assert_eq!(next_line(&mut input).unwrap().as_deref(), Some("one\n"));
        assert_eq!(next_line(&mut input).unwrap().as_deref(), Some("two\n"));
        assert!(next_line(&mut input).unwrap().is_none());
        let long = "x".repeat(2 * LONGEST_LINE as usize);
        assert!(next_line(&mut long.as_bytes()).is_err());
        assert!(next_line(&mut "cut".as_bytes()).is_err());
    }
}
