//! The front door: `cargo xtask <command>`. It is light, so that it answers at once; what needs
//! Burn is in the `everburn` binary, which [`binary`] builds and then becomes.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command talks to its user"
)]

mod binary;
mod cargo;
mod check;
mod doctor;
mod fuzz;
mod gpu;
mod gpu_check;
mod release;
mod tidy;
mod torch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Train, test and check Everburn",
    version
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model, as in `train mnist --ranks 2` (`train --help` for all flags)
    Train(PassthroughArguments),
    /// Evaluate a run's model on the test set, as in `eval runs/a`
    Eval(PassthroughArguments),
    /// Write what a run's model predicts, as in `predict runs/a --output predictions.jsonl`
    Predict(PassthroughArguments),
    /// Generate text with a run's model, as in `generate runs/a --prompt "To be"`
    Generate(PassthroughArguments),
    /// Write a run's model for PyTorch, as in `export runs/a --to pytorch`
    Export(PassthroughArguments),
    /// Make a run of PyTorch's weights, as in `import weights.pt mnist --run-dir runs/a`
    Import(PassthroughArguments),
    /// Draw a pipeline's schedule, as in `simulate --schedule 1f1b --pipeline 4 --micro-batches 8`
    Simulate(PassthroughArguments),
    /// Train the same on several numbers of ranks and compare, as in `verify mnist-bn --ranks 1,2,4`
    Verify(PassthroughArguments),
    /// Check the record of a run and replay steps of it, as in `audit runs/a --from 100 --to 200 --ranks 2`
    Audit(PassthroughArguments),
    /// Train again and again while ranks are killed, stopped and cut off, as in `soak --runs 50`; or simulate that
    /// with many ranks in one process, without a model, as in `soak --simulate 1024 --faults 50 --seed 7`
    Soak(PassthroughArguments),
    /// Measure, as in `bench train --against pytorch` (`bench --list` shows the benchmarks)
    Bench(PassthroughArguments),
    /// Train for some steps and say where their time goes, as in `bottleneck mnist --ranks 2 --steps 50`
    Bottleneck(PassthroughArguments),
    /// Monitor a run, as in `monitor runs/a` or `monitor gpu-1:7000`
    Monitor(PassthroughArguments),
    /// Make a run's report, as in `report runs/a`: one HTML file with curves, ranks, events and results
    Report(PassthroughArguments),
    /// Lay runs side by side, as in `compare runs/a runs/b --html both.html`
    Compare(PassthroughArguments),
    /// Serve a store by itself, as in `store --listen 127.0.0.1:0 --open`, until Ctrl-C or SIGTERM
    Store(PassthroughArguments),
    /// Tokenize text of any size for `train`, as in `tokenize corpus/ --tokenizer tokenizer.json --output tokens`
    Tokenize(PassthroughArguments),
    /// List the devices that ranks can use
    Devices(PassthroughArguments),
    /// Run all tests; arguments are handed to `cargo test`
    Test {
        /// Run the tests that need PyTorch, and only these: with the Python that EVERBURN_PYTHON names,
        /// else in a virtual environment that is made once, outside the repository
        #[arg(long)]
        with_torch: bool,
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        args: Vec<OsString>,
    },
    /// Run everything that CI runs: format, repository's rules, lints, documents, tests
    Check {
        /// Continue after a step that fails, and say at the end which did
        #[arg(long)]
        keep_going: bool,
        /// Also run what takes an hour or more: all conversions, `verify`, a soak of 100 runs
        #[arg(long)]
        long: bool,
    },
    /// Look for races in what ranks share in memory, by loom and ThreadSanitizer (part of `check`)
    Races,
    /// Throw arbitrary bytes at what comes from the network, as in `fuzz store_requests --seconds 60`
    Fuzz(fuzz::Options),
    /// Check a GPU: results against the processor, ranks, throughput against PyTorch; or build what does so elsewhere
    GpuCheck(gpu_check::Options),
    /// Check this machine for training: CPU, memory, GPUs, NCCL. With `--ranks N`, also test the connections between
    /// ranks
    Doctor(PassthroughArguments),
    /// Check the repository's own rules (part of `check`)
    Tidy,
    /// Pack the binary for machines without Rust: an archive and a Python wheel
    Release(release::Options),
}

/// Arguments passed through to another program, which has help of its own.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct PassthroughArguments {
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("error: {error}");
        for cause in error.chain().skip(1) {
            eprintln!("  because: {cause}");
        }
        if let Some(help) = error.help() {
            eprintln!("help: {help}");
        }
        ExitCode::FAILURE
    })
}

fn run() -> miette::Result<ExitCode> {
    match Cli::parse().command {
        Command::Train(args) => binary::become_everburn("train", &args.arguments),
        Command::Eval(args) => binary::become_everburn("eval", &args.arguments),
        Command::Predict(args) => binary::become_everburn("predict", &args.arguments),
        Command::Generate(args) => binary::become_everburn("generate", &args.arguments),
        Command::Export(args) => binary::become_everburn("export", &args.arguments),
        Command::Import(args) => binary::become_everburn("import", &args.arguments),
        Command::Simulate(args) => binary::become_everburn("simulate", &args.arguments),
        Command::Verify(args) => binary::become_built("verify", &args.arguments),
        Command::Audit(args) => binary::become_built("audit", &args.arguments),
        Command::Soak(args) if binary::asks_for_simulation(&args.arguments) => {
            binary::become_simulation(&args.arguments)
        }
        Command::Soak(args) => binary::become_built("soak", &args.arguments),
        Command::Bench(args) => binary::become_bench(&args.arguments),
        Command::Bottleneck(args) => binary::become_everburn("bottleneck", &args.arguments),
        Command::Monitor(args) => binary::become_everburn("monitor", &args.arguments),
        Command::Report(args) => binary::become_report("report", &args.arguments),
        Command::Compare(args) => binary::become_report("compare", &args.arguments),
        Command::Store(args) => binary::become_everburn("store", &args.arguments),
        Command::Tokenize(args) => binary::become_everburn("tokenize", &args.arguments),
        Command::Devices(args) => binary::become_everburn("devices", &args.arguments),
        Command::Test {
            with_torch: false,
            args,
        } => check::test(&args),
        Command::Test {
            with_torch: true,
            args,
        } => check::test_with_torch(&args),
        Command::Check { keep_going, long } => check::check(keep_going, long),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::GpuCheck(options) => gpu_check::run(&options),
        Command::Races => Ok(check::races()),
        Command::Doctor(args) => doctor::run(&args.arguments),
        Command::Tidy => tidy::run(),
        Command::Release(options) => release::run(&options),
    }
}

fn command_names() -> Vec<String> {
    use clap::CommandFactory;
    Cli::command()
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        assert!(command_names().contains(&"train".to_owned()));
    }

    #[test]
    fn arguments_are_handed_on_as_they_stand() {
        let line = [
            "xtask", "train", "mnist", "--ranks", "2", "--help", "--", "-x",
        ];
        let Command::Train(args) = Cli::parse_from(line).command else {
            panic!("not train")
        };
        assert_eq!(
            args.arguments,
            ["mnist", "--ranks", "2", "--help", "--", "-x"]
        );
        let Command::Train(args) = Cli::parse_from(["xtask", "train", "--list"]).command else {
            panic!("not train")
        };
        assert_eq!(args.arguments, ["--list"]);
        for (line, wanted, handed_on) in [
            ("xtask test sampler --nocapture", false, 2),
            ("xtask test --with-torch", true, 0),
            ("xtask test --with-torch -- tcp", true, 1),
        ] {
            let Command::Test { with_torch, args } = Cli::parse_from(line.split(' ')).command
            else {
                panic!("not test")
            };
            assert_eq!((with_torch, args.len()), (wanted, handed_on), "{line}");
        }
    }
}
