//! The command line of `bench ddp`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::bench::check_place;
use crate::bench::network::LinkOptions;
use crate::bench::process::Failure;

/// Measures how much of the gradients' exchange a training step hides behind its backward pass.
///
/// Four kinds of steps of the same model run in turn: compute alone, exchange alone, one after the
/// other, and overlapped. The batch is chosen so that compute takes about as long as the exchange,
/// where overlap has most to win and is hardest to reach.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench ddp",
    after_help = "Environment:\n  \
        EVERBURN_BIN       a built everburn to measure in place of building one"
)]
pub(in crate::bench) struct DdpOptions {
    /// How many ranks train together [default: 2; over links one a core, 4 at most]. With more ranks
    /// than cores the exchange's own processor time is added to compute and cannot be hidden.
    #[arg(long)]
    ranks: Option<usize>,

    #[command(flatten)]
    pub(super) link: LinkOptions,

    /// auto, shm or tcp [default: auto; over links tcp].
    #[arg(long, value_parser = ["auto", "shm", "tcp"])]
    transport: Option<String>,

    /// Features of each of the model's linear layers.
    #[arg(long, default_value_t = 720)]
    pub(super) width: usize,

    /// Linear layers of the model.
    #[arg(long, default_value_t = 12)]
    pub(super) layers: usize,

    /// Samples of each rank a step [default: as many as make compute as long as the exchange].
    #[arg(long)]
    pub(super) batch: Option<usize>,

    /// Steps of each run.
    #[arg(long, default_value_t = 20)]
    pub(super) steps: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 3)]
    pub(super) rounds: usize,

    /// Write the row to this file too.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Give up when one run takes longer than this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    run_timeout: u64,
}

impl DdpOptions {
    /// Parses the arguments after `ddp`. Prints help and ends the process where that is asked for
    /// or nothing else can be said.
    pub(super) fn parse_or_exit(arguments: &[OsString]) -> Self {
        let name = OsString::from("cargo xtask bench ddp");
        Self::parse_from([name].into_iter().chain(arguments.iter().cloned()))
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.run_timeout)
    }

    pub(super) fn ranks(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from);
        let usual = || match self.link.link {
            Some(_) => cores().clamp(2, 4),
            None => 2,
        };
        self.ranks.unwrap_or_else(usual)
    }

    pub(super) fn transport(&self) -> &str {
        let usual = if self.link.link.is_some() {
            "tcp"
        } else {
            "auto"
        };
        self.transport.as_deref().unwrap_or(usual)
    }

    /// What is wrong with the options, before anything runs.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let wrong = |what: String| Err(Failure::Usage(what));
        if self.ranks() < 2 {
            return wrong("--ranks: an exchange needs 2 ranks or more".into());
        }
        for (flag, number) in [
            ("--width", self.width),
            ("--layers", self.layers),
            ("--batch", self.batch.unwrap_or(1)),
            ("--steps", self.steps),
            ("--rounds", self.rounds),
            ("--run-timeout", usize::from(self.run_timeout > 0)),
        ] {
            if number == 0 {
                return wrong(format!("{flag} 0: it must be at least 1"));
            }
        }
        if self.link.link.is_some() && self.transport() != "tcp" {
            return wrong(format!(
                "--transport {} with --link: the namespaces share this machine's memory, so the \
                 links would not be used; take --transport tcp",
                self.transport()
            ));
        }
        self.json
            .as_deref()
            .map_or(Ok(()), |file| check_place("--json", file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> DdpOptions {
        let words = std::iter::once("bench ddp").chain(line.split_whitespace());
        DdpOptions::try_parse_from(words).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        DdpOptions::command().debug_assert();
    }

    #[test]
    fn links_join_a_rank_a_core_by_tcp() {
        let usual = options("");
        assert_eq!((usual.ranks(), usual.transport()), (2, "auto"));
        let links = options("--link 1gbit --delay 0.5ms");
        assert!((2..=4).contains(&links.ranks()));
        assert_eq!(links.transport(), "tcp");
        assert_eq!(options("--link 1gbit --ranks 3").ranks(), 3);
        assert_eq!(links.link.delay, Some(Duration::from_micros(500)));
        assert!(links.check().is_ok());
    }

    #[test]
    fn what_cannot_work_is_said_first() {
        let wrong = |line| options(line).check().unwrap_err().to_string();
        assert!(wrong("--ranks 1").contains("2 ranks"));
        assert!(wrong("--batch 0").contains("--batch 0"));
        assert!(wrong("--run-timeout 0").contains("--run-timeout"));
        assert!(wrong("--link 1gbit --transport auto").contains("--transport tcp"));
        assert!(wrong("--json /does/not/exist/a.json").contains("a.json"));
    }
}
