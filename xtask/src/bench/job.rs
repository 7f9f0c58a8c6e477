//! A job of a benchmark: a store, and ranks that meet at it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::network::Network;
use super::process::{Children, Failure, forget_ranks};
use super::team::Team;
use crate::binary::keep_freed_memory;

/// How long a store may take to listen.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// Where ranks run, and what with.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) children: &'a Children,
    /// For files of the run.
    pub(super) folder: &'a Path,
    /// Namespaces; without them the ranks are processes of this machine.
    pub(super) network: Option<&'a Network>,
    pub(super) ranks: usize,
}

impl<'a> Place<'a> {
    /// A call of `program` where `rank` runs, that knows its number.
    pub(super) fn command(&self, rank: usize, program: &Path) -> Command {
        let mut command = match self.network {
            Some(network) => network.command(rank, program),
            None => Command::new(program),
        };
        forget_ranks(&mut command);
        keep_freed_memory(&mut command);
        // A namespace stands for a machine.
        let (local_rank, local_ranks, node) = match self.network {
            Some(_) => (0, 1, rank),
            None => (rank, self.ranks, 0),
        };
        for (name, number) in [
            ("RANK", rank),
            ("WORLD_SIZE", self.ranks),
            ("LOCAL_RANK", local_rank),
            ("LOCAL_WORLD_SIZE", local_ranks),
            ("NODE_RANK", node),
            ("RAYON_NUM_THREADS", self.threads()),
        ] {
            command.env(name, number.to_string());
        }
        command
    }

    /// The threads of each rank, as the launcher shares them out.
    pub(super) fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (cores / self.ranks.max(1)).max(1)
    }
}

/// Ranks of ours, and the store that they have met at.
pub(super) struct Job<'a> {
    // Dropped in this order.
    pub(super) ranks: Team<'a>,
    store: Team<'a>,
}

impl<'a> Job<'a> {
    /// Starts `program` once a rank, with the launcher's environment and what `add` adds, and the
    /// store of `measure` for them.
    pub(super) fn start(
        place: Place<'a>,
        measure: &Path,
        program: &Path,
        name: &str,
        add: impl Fn(&mut Command),
    ) -> Result<Self, Failure> {
        let token = random_token()?;
        let mut serve = place.command(0, measure);
        let listen = match place.network {
            Some(_) => format!("{}:0", Network::address(0)),
            None => "127.0.0.1:0".to_owned(),
        };
        serve
            .args(["store", "--until-input-ends", "--listen", &listen])
            .env("EVERBURN_JOB_TOKEN", &token);
        let store_name = format!("the store of {name}");
        let mut store = Team::start(place.children, store_name, vec![serve], place.folder)?;
        let address = store.answers(STORE_PATIENCE)?.swap_remove(0);
        let (host, port) = (&address["host"], &address["port"]);
        let (Some(host), Some(port)) = (host.as_str(), port.as_u64()) else {
            return Err(Failure::new(format!("the store is nowhere: {address}")));
        };
        let commands = (0..place.ranks).map(|rank| {
            let mut command = place.command(rank, program);
            command
                .env("MASTER_ADDR", host)
                .env("MASTER_PORT", port.to_string())
                .env("TORCHELASTIC_USE_AGENT_STORE", "True")
                .env("EVERBURN_LAUNCHER_PID", std::process::id().to_string())
                .env("EVERBURN_JOB_TOKEN", &token);
            add(&mut command);
            command
        });
        let ranks = Team::start(place.children, name, commands.collect(), place.folder)?;
        Ok(Self { ranks, store })
    }

    /// Lets the ranks end, then the store; returns what rank 0 has still said.
    pub(super) fn finish(self, patience: Duration) -> Result<Vec<Value>, Failure> {
        let Self { ranks, store } = self;
        let said = ranks.finish(patience)?;
        store.finish(patience)?;
        Ok(said)
    }
}

/// 128 random bits in hexadecimal.
pub(crate) fn random_token() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    let path = PathBuf::from("/dev/urandom");
    File::open(&path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_told_its_place() {
        let children = Children::unheard();
        let place = Place {
            children: &children,
            folder: Path::new("/"),
            network: None,
            ranks: 3,
        };
        let command = place.command(2, Path::new("p"));
        let value = |name: &str| {
            let found = command.get_envs().find(|(key, _)| *key == name);
            found.and_then(|(_, value)| value?.to_str().map(str::to_owned))
        };
        assert_eq!(value("RANK").as_deref(), Some("2"));
        assert_eq!(value("WORLD_SIZE").as_deref(), Some("3"));
        assert_eq!(value("LOCAL_RANK").as_deref(), Some("2"));
        // Whatever the user's shell says.
        assert_eq!(value("MASTER_ADDR"), None);
    }

    #[test]
    fn no_two_tokens_are_alike() {
        let (one, other) = (random_token().unwrap(), random_token().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
