//! The command line of `bench ddp`.

use clap::Parser;

use crate::bench::at_least_1;
use crate::network::LinkOptions;

/// Measures how much of the gradients' exchange a training step hides behind its backward pass.
///
/// Four kinds of steps of the same model run in turn: compute alone, exchange alone, one after the
/// other, and overlapped. The batch is chosen so that compute takes about as long as the exchange,
/// where overlap has most to win and is hardest to reach.
#[derive(Debug, Parser)]
pub(crate) struct DdpBench {
    /// How many ranks train together [default: 2; over links one a core, 4 at most]. With more ranks
    /// than cores the exchange's own processor time is added to compute and cannot be hidden.
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..))]
    ranks: Option<u16>,

    #[command(flatten)]
    pub(super) link: LinkOptions,

    /// auto, shm or tcp [default: auto; over links tcp].
    #[arg(long, value_parser = ["auto", "shm", "tcp"])]
    transport: Option<String>,

    /// Features of each of the model's linear layers.
    #[arg(long, default_value_t = 720, value_parser = at_least_1)]
    pub(super) width: usize,

    /// Linear layers of the model.
    #[arg(long, default_value_t = 12, value_parser = at_least_1)]
    pub(super) layers: usize,

    /// Samples of each rank per step [default: as many as make compute as long as the exchange].
    #[arg(long, value_parser = at_least_1)]
    pub(super) batch: Option<usize>,

    /// Steps of each run.
    #[arg(long, default_value_t = 20, value_parser = at_least_1)]
    pub(super) steps: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 3, value_parser = at_least_1)]
    pub(super) rounds: usize,
}

impl DdpBench {
    pub(super) fn ranks(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from);
        let usual = || match self.link.link {
            Some(_) => cores().clamp(2, 4),
            None => 2,
        };
        self.ranks.map_or_else(usual, usize::from)
    }

    pub(super) fn transport(&self) -> &str {
        let usual = if self.link.link.is_some() {
            "tcp"
        } else {
            "auto"
        };
        self.transport.as_deref().unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> DdpBench {
        let words = std::iter::once("bench ddp").chain(line.split_whitespace());
        DdpBench::try_parse_from(words).unwrap()
    }

    #[test]
    fn links_join_a_rank_a_core_by_tcp() {
        let usual = options("");
        assert_eq!((usual.ranks(), usual.transport()), (2, "auto"));
        let links = options("--link 1gbit --delay 0.5ms");
        assert!((2..=4).contains(&links.ranks()));
        assert_eq!(links.transport(), "tcp");
        assert_eq!(options("--link 1gbit --ranks 3").ranks(), 3);
        let refused = |line: &str| {
            let options = options(line);
            options.link.check([options.transport()]).is_err()
        };
        assert!(refused("--link 1gbit --transport auto"));
        assert!(!refused("--link 1gbit --delay 0.5ms"));
    }
}
