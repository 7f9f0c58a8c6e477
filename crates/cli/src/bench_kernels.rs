//! One side of `cargo xtask bench kernels`: how long single layers take as models have them.
//!
//! Each line of the input is an [`Order`]; it is answered by a line of JSON. `xtask/peers/pytorch_layers.py`
//! does the same with PyTorch.

mod call;
mod given_gradient;
mod layers;
mod modules;
mod noise;
mod order;

use std::io::{BufRead, Read};
use std::process::ExitCode;

use clap::Args;
use everburn::train::compute_on_this_thread;
use serde_json::json;

use self::order::Order;
use crate::error::CliError;

/// Longer than any order, so that what is no order ends soon.
const LONGEST_LINE: u64 = 1 << 14;

#[derive(Debug, Clone, Args)]
pub(crate) struct BenchKernelsArguments {
    #[arg(long)]
    threads: usize,
}

pub(crate) fn run(arguments: &BenchKernelsArguments) -> Result<ExitCode, CliError> {
    let threads = arguments.threads;
    if threads == 0 {
        return Err(CliError::usage("--threads must be at least 1"));
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|error| CliError::usage(format!("{threads} threads: {error}")))?;
    // As a rank does.
    compute_on_this_thread(threads)?;
    let mut input = std::io::stdin().lock();
    while let Some(line) = next_line(&mut input)? {
        let order = Order::parse(&line)?;
        let measured = layers::measure(&order)?;
        say!(
            "{}",
            json!({
                "microseconds": measured.microseconds,
                "threads": rayon::current_num_threads(),
                "check": measured.check,
            })
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// `None` at the end of the input.
fn next_line(input: &mut impl BufRead) -> Result<Option<String>, CliError> {
    let mut line = String::new();
    let read = input.take(LONGEST_LINE).read_line(&mut line);
    match read {
        Ok(0) => Ok(None),
        Ok(_) if line.ends_with('\n') => Ok(Some(line)),
        Ok(_) => Err(CliError::usage("an order without an end came in")),
        Err(error) => Err(CliError::usage(format!(
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
