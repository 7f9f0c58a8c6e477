//! `bench store`: our store's server and client beside PyTorch's.
//!
//! Two servers and two clients are processes of their own that run all the time; the clients are given
//! orders in turn, so that nothing else runs while one measures, and a slow minute falls on all.

pub(crate) mod client;
mod options;
mod rows;
pub(crate) mod server;

use std::process::Command;

use everburn::launch::WorkerPool;
use serde_json::{Value, json};

use self::client::{Answer, Operation, Order};
pub(crate) use self::options::StoreBench;
use self::options::{CLIENTS, CONNECT_SECONDS};
use self::rows::{Crowd, StoreResults};
use crate::bench::{Bench, Setup};
use crate::cells;
use crate::failure::Failure;
use crate::peers::{FoundPeer, Peer};
use crate::rounds::each_once;

/// PyTorch's server and client.
const SCRIPT: &str = "pytorch_store.py";

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    /// `TcpStore` of `crates/collectives`.
    Rust,
    /// `torch.distributed.TCPStore`.
    Python,
}

impl Client {
    fn name(self) -> &'static str {
        match self {
            Self::Rust => "everburn",
            Self::Python => "pytorch",
        }
    }
}

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Server {
    Ours,
    Pytorch,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "everburn's server",
            Self::Pytorch => "pytorch's server",
        }
    }
}

impl Bench for StoreBench {
    const NAME: &'static str = "store";
    const ABOUT: &'static str =
        "gets, adds and sets per second, and 1,000 clients at once; --against pytorch";
    const RUN_TIMEOUT: &'static str = "180";

    type Results = StoreResults;

    fn peers(&self) -> &[Peer] {
        self.against.as_slice()
    }

    fn measure(&self, setup: &Setup) -> Result<StoreResults, Failure> {
        let mut processes = Processes {
            options: self,
            setup,
            servers: Vec::new(),
            clients: Vec::new(),
        };
        // As PyTorch's, whose client calls both; what a token costs it costs once a connection.
        processes.start_server(Server::Ours, setup.side(&["store", "--open"]))?;
        processes.start_client(Client::Rust, setup.side(&["store-client"]))?;
        if let Some(pytorch) = setup.peers.first() {
            processes.start_server(Server::Pytorch, peer(pytorch, "serve"))?;
            processes.start_client(Client::Python, peer(pytorch, "client"))?;
        }
        let measured = processes.measure()?;
        processes.finish()?;
        Ok(measured)
    }

    fn notes(&self, _: &StoreResults, setup: &Setup) -> String {
        format!(
            "method:  {} of {} calls each, one after the other by one client; ratios round by \
             round\n         \"its own\": each store with its own client; else both servers with the same \
             client\n         peer: {}",
            cells::rounds(self.rounds),
            self.calls,
            peers_name(setup).as_deref().unwrap_or("none")
        )
    }

    fn table(&self, results: &StoreResults, _: &Setup) -> String {
        format!("{}\n\n{}", results.table(), results.crowds())
    }

    fn to_json(&self, results: &StoreResults, setup: &Setup, machine: &Value) -> Value {
        results.to_json(machine, peers_name(setup).as_deref(), self.calls)
    }

    fn works(results: &StoreResults) -> bool {
        let failed = |crowd: &Crowd| crowd.server == Server::Ours && crowd.failed > 0;
        !results.crowds.iter().any(failed)
    }
}

fn peer(pytorch: &FoundPeer, part: &str) -> Command {
    let mut command = pytorch.call(SCRIPT);
    command.arg(part);
    command
}

/// The peer's name, where it is measured.
fn peers_name(setup: &Setup) -> Option<String> {
    setup.peers.first().map(FoundPeer::full_name)
}

/// The processes of a run.
struct Processes<'a> {
    options: &'a StoreBench,
    setup: &'a Setup,
    // Dropped in this order.
    clients: Vec<(Client, WorkerPool<'a>)>,
    servers: Vec<(Server, WorkerPool<'a>, String)>,
}

impl Processes<'_> {
    fn start_server(&mut self, server: Server, command: Command) -> Result<(), Failure> {
        let mut pool = self.setup.worker(server.name(), command)?;
        let said = pool.answers(self.setup.patience)?.swap_remove(0);
        let (Some(host), Some(port)) = (said["host"].as_str(), said["port"].as_u64()) else {
            return Err(Failure::new(format!(
                "{} is nowhere: {said}",
                server.name()
            )));
        };
        self.servers.push((server, pool, format!("{host}:{port}")));
        Ok(())
    }

    fn start_client(&mut self, client: Client, command: Command) -> Result<(), Failure> {
        let name = format!("{}'s client", client.name());
        let pool = self.setup.worker(&name, command)?;
        self.clients.push((client, pool));
        Ok(())
    }

    fn measure(&mut self) -> Result<StoreResults, Failure> {
        let (options, patience) = (self.options, self.setup.patience);
        let mut measured = StoreResults::default();
        // The first round warms up what is measured and is not counted.
        for round in 0..=options.rounds {
            for operation in Operation::ALL {
                let (calls, servers) = (options.calls_of(operation), self.servers.len());
                let rates = each_once(round, self.clients.len() * servers, |side| {
                    let (client, pool) = &mut self.clients[side / servers];
                    let (server, _, address) = &self.servers[side % servers];
                    let order = Order::Calls {
                        address: address.clone(),
                        operation,
                        calls,
                    };
                    let answer = read(&pool.ask(&json!(order), patience)?)?;
                    Ok((*client, *server, calls as f64 / answer.seconds))
                })?;
                for (client, server, rate) in rates.into_iter().filter(|_| round > 0) {
                    measured.add(client, operation, server, rate);
                }
            }
            let (_, pool) = &mut self.clients[0];
            let calls = options.calls;
            let answer = read(&pool.ask(&json!(Order::Echo { calls }), patience)?)?;
            if round > 0 {
                measured.echoes.push(calls as f64 / answer.seconds);
                eprintln!("[round {round}/{}]", options.rounds);
            }
        }
        self.meet_crowds(&mut measured)?;
        Ok(measured)
    }

    /// Ours alone connect a thousand times: PyTorch's client asks for the name of each address that
    /// it meets, so its time is that of the resolver.
    fn meet_crowds(&mut self, measured: &mut StoreResults) -> Result<(), Failure> {
        let (client, pool) = &mut self.clients[0];
        for (server, _, address) in &self.servers {
            let order = Order::Connect {
                address: address.clone(),
                clients: CLIENTS,
                patience_s: CONNECT_SECONDS,
            };
            let answer = read(&pool.ask(&json!(order), self.setup.patience)?)?;
            measured.crowds.push(Crowd {
                client: *client,
                server: *server,
                failed: answer.failed,
                seconds: answer.seconds,
                why: answer.why,
            });
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Failure> {
        let patience = self.setup.patience;
        for (_, pool) in self.clients {
            pool.finish(patience)?;
        }
        for (_, pool, _) in self.servers {
            pool.finish(patience)?;
        }
        Ok(())
    }
}

/// The answer of the only member of a pool.
fn read(answers: &[Value]) -> Result<Answer, Failure> {
    let answer = answers.first().cloned().unwrap_or_default();
    match serde_json::from_value(answer.clone()) {
        Ok(Answer { seconds, .. }) if !(seconds.is_finite() && seconds > 0.0) => Err(Failure::new(
            format!("a client has reported no time: {answer}"),
        )),
        read => Ok(read?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::script;

    #[test]
    fn a_time_is_a_positive_number() {
        let seconds = |answer: Value| read(&[answer]).map(|answer| answer.seconds);
        assert_eq!(seconds(json!({ "seconds": 0.5 })), Ok(0.5));
        assert!(seconds(json!({ "seconds": 0 })).is_err());
        assert!(seconds(json!({})).is_err());
    }

    #[test]
    fn the_script_is_there_and_reads_what_it_is_sent() {
        let text = std::fs::read_to_string(script(SCRIPT)).unwrap();
        for word in ["\"address\"", "\"operation\"", "\"calls\""] {
            assert!(text.contains(word), "{word}");
        }
    }
}
