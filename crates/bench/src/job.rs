//! A job of a benchmark: a store, and ranks that meet at it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use everburn::launch::{Children, WorkerPool, forget_ranks, keep_freed_memory};
use everburn_auth::JobToken;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::Failure;
use crate::network::Network;

/// How long a store may take to listen.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// How the ranks of a job are started.
#[derive(Clone, Copy)]
pub(super) struct JobContext<'a> {
    pub(super) children: &'a Children,
    /// What the ranks run, unless it is the store.
    pub(super) program: &'a Path,
    /// For files of the run.
    pub(super) folder: &'a Path,
    /// Namespaces; without them the ranks are processes of this machine.
    pub(super) network: Option<&'a Network>,
    pub(super) ranks: usize,
}

impl<'a> JobContext<'a> {
    /// A command of `program` for `rank`, with its environment variables.
    pub(crate) fn command(&self, rank: usize, program: &Path) -> Command {
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

/// Our ranks, and the store that they have met at.
pub(super) struct Job<'a> {
    // Dropped in this order.
    pub(super) ranks: WorkerPool<'a>,
    store: WorkerPool<'a>,
}

impl<'a> Job<'a> {
    /// Starts one process of the program per rank, with the launcher's environment and what `add` adds, and a store for
    /// them.
    pub(super) fn start(
        context: JobContext<'a>,
        name: &str,
        add: impl Fn(&mut Command),
    ) -> Result<Self, Failure> {
        let token = JobToken::random()?;
        let mut serve = context.command(0, &std::env::current_exe()?);
        let listen = match context.network {
            Some(_) => format!("{}:0", Network::address(0)),
            None => "127.0.0.1:0".to_owned(),
        };
        serve
            .args(["side", "store", "--listen", &listen])
            .env("EVERBURN_JOB_TOKEN", token.reveal());
        let store_name = format!("the store of {name}");
        let mut store =
            WorkerPool::start(context.children, store_name, vec![serve], context.folder)?;
        let address = store.answers(STORE_PATIENCE)?.swap_remove(0);
        let (host, port) = (&address["host"], &address["port"]);
        let (Some(host), Some(port)) = (host.as_str(), port.as_u64()) else {
            return Err(Failure::new(format!("the store is nowhere: {address}")));
        };
        let commands = (0..context.ranks).map(|rank| {
            let mut command = context.command(rank, context.program);
            command
                .env("MASTER_ADDR", host)
                .env("MASTER_PORT", port.to_string())
                .env("TORCHELASTIC_USE_AGENT_STORE", "True")
                .env("EVERBURN_LAUNCHER_PID", std::process::id().to_string())
                .env("EVERBURN_JOB_TOKEN", token.reveal());
            add(&mut command);
            command
        });
        let ranks = WorkerPool::start(context.children, name, commands.collect(), context.folder)?;
        Ok(Self { ranks, store })
    }

    /// Lets the ranks end; what rank 0 has found.
    pub(crate) fn result<T: DeserializeOwned>(self, patience: Duration) -> Result<T, Failure> {
        let said = self.finish(patience)?;
        let mut said = said.into_iter().rev();
        let found = said.find_map(|line| serde_json::from_value(line).ok());
        found.ok_or_else(|| Failure::new("rank 0 has reported no result"))
    }

    /// Lets the ranks end, then the store; returns what rank 0 has still said.
    pub(super) fn finish(self, patience: Duration) -> Result<Vec<Value>, Failure> {
        let Self { ranks, store } = self;
        let said = ranks.finish(patience)?;
        store.finish(patience)?;
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_told_its_place() {
        let children = Children::listen().unwrap();
        let context = JobContext {
            children: &children,
            program: Path::new("p"),
            folder: Path::new("/"),
            network: None,
            ranks: 3,
        };
        let command = context.command(2, Path::new("p"));
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
}
