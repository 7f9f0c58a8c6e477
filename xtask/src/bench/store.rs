//! `bench store`: our store's server and client beside PyTorch's.
//!
//! Two servers and two clients are processes of their own that run all the time; the clients are given
//! orders in turn, so that nothing else runs while one measures, and a slow minute falls on all.

mod options;
mod rows;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use everburn_record::proc::CpuTime;
use serde_json::{Value, json};

use self::options::StoreBenchOptions;
use self::rows::{Crowd, Measured};
use super::machine::Machine;
use super::process::{Children, Failure, forget_ranks};
use super::pytorch::Pytorch;
use super::team::Team;
use super::{temporary_folder, write_file};
use crate::binary;
use crate::cargo::root;

const OPERATIONS: [&str; 3] = ["get", "add", "set"];

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Runs the benchmark with the arguments after its name.
pub(super) fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let options = StoreBenchOptions::parse_or_exit(arguments);
    options.check()?;
    let machine = Machine::look();
    let children = Children::listen()?;
    let folder = temporary_folder()?;
    let pytorch = match options.against {
        None => None,
        Some(_) => match Pytorch::find(&children, folder.path())? {
            Ok(pytorch) => Some(pytorch),
            Err(reason) => {
                eprintln!("{reason}");
                None
            }
        },
    };
    let program = binary::measure().map_err(|error| Failure::new(error.to_string()))?;
    let Some(program) = program else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    children.check_interrupted()?;
    let mut bench = StoreBench {
        options: &options,
        children: &children,
        folder: folder.path(),
        servers: Vec::new(),
        clients: Vec::new(),
    };
    let measure = |part: &[&str]| {
        let mut command = Command::new(&program);
        command.args(part);
        command
    };
    // From before they start until they have ended: only then do their processor times count as ours.
    let before = CpuTime::now();
    let listen = ["--listen", "127.0.0.1:0"];
    // As PyTorch's, whose client calls both; what a token costs it costs once a connection.
    let serve = [&["store", "--until-input-ends", "--open"][..], &listen].concat();
    bench.start_server(Server::Ours, measure(&serve))?;
    bench.start_client(Client::Rust, measure(&["store-client"]))?;
    if let Some(pytorch) = &pytorch {
        bench.start_server(Server::Pytorch, script(pytorch, "serve"))?;
        bench.start_client(Client::Python, script(pytorch, "client"))?;
    }
    let measured = bench.measure()?;
    bench.finish()?;
    let meanwhile = before.zip(CpuTime::now());
    let others = meanwhile.and_then(|(before, after)| before.others_share(after));

    let peer = pytorch.as_ref().map(Pytorch::name);
    println!("{}", machine.describe(others));
    println!(
        "method:  medians of {} rounds of {} calls each, one after the other by one client; ratios round by \
         round\n         \"its own\": each store with its own client; else both servers with the same \
         client\n         peer: {}\n",
        options.rounds,
        options.calls,
        peer.as_deref().unwrap_or("none")
    );
    println!("{}\n\n{}", measured.table(), measured.crowds());
    if let Some(file) = &options.json {
        let rows = measured.to_json(&machine.to_json(others), peer.as_deref(), options.calls);
        write_file(file, &format!("{rows:#}\n"))?;
    }
    let ours = measured
        .crowds
        .iter()
        .filter(|crowd| crowd.server == Server::Ours);
    let failed: usize = ours.map(|crowd| crowd.failed).sum();
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn script(pytorch: &Pytorch, part: &str) -> Command {
    let mut command = Command::new(pytorch.python());
    command
        .arg(root().join("xtask/peers/pytorch_store.py"))
        .arg(part)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The processes of a run.
struct StoreBench<'a> {
    options: &'a StoreBenchOptions,
    children: &'a Children,
    folder: &'a Path,
    // Dropped in this order.
    clients: Vec<(Client, Team<'a>)>,
    servers: Vec<(Server, Team<'a>, String)>,
}

impl StoreBench<'_> {
    fn start_server(&mut self, server: Server, mut command: Command) -> Result<(), Failure> {
        forget_ranks(&mut command);
        let mut team = Team::start(self.children, server.name(), vec![command], self.folder)?;
        let said = team.answers(self.options.patience())?.swap_remove(0);
        let (Some(host), Some(port)) = (said["host"].as_str(), said["port"].as_u64()) else {
            return Err(Failure::new(format!(
                "{} is nowhere: {said}",
                server.name()
            )));
        };
        self.servers.push((server, team, format!("{host}:{port}")));
        Ok(())
    }

    fn start_client(&mut self, client: Client, mut command: Command) -> Result<(), Failure> {
        forget_ranks(&mut command);
        let name = format!("{}'s client", client.name());
        let team = Team::start(self.children, name, vec![command], self.folder)?;
        self.clients.push((client, team));
        Ok(())
    }

    fn measure(&mut self) -> Result<Measured, Failure> {
        let (options, patience) = (self.options, self.options.patience());
        let mut measured = Measured::default();
        // The first round warms up what is measured and is not counted.
        for round in 0..=options.rounds {
            // Who comes first has the caches of whoever came before.
            self.servers.reverse();
            for operation in OPERATIONS {
                for (client, team) in &mut self.clients {
                    for (server, _, address) in &self.servers {
                        let order = json!({
                            "order": "calls",
                            "address": address,
                            "operation": operation,
                            "calls": options.calls_of(operation),
                        });
                        let answer = team.ask(&order, patience)?.swap_remove(0);
                        let rate = options.calls_of(operation) as f64 / seconds_of(&answer)?;
                        if round > 0 {
                            measured.add(*client, operation, *server, rate);
                        }
                    }
                }
            }
            let (_, team) = &mut self.clients[0];
            let order = json!({ "order": "echo", "calls": options.calls });
            let answer = team.ask(&order, patience)?.swap_remove(0);
            if round > 0 {
                measured
                    .echoes
                    .push(options.calls as f64 / seconds_of(&answer)?);
                eprintln!("[round {round}/{}]", options.rounds);
            }
        }
        self.meet_crowds(&mut measured)?;
        Ok(measured)
    }

    /// Ours alone connect a thousand times: PyTorch's client asks for the name of each address that
    /// it meets, so its time is that of the resolver.
    fn meet_crowds(&mut self, measured: &mut Measured) -> Result<(), Failure> {
        let (options, patience) = (self.options, self.options.patience());
        let (client, team) = &mut self.clients[0];
        for (server, _, address) in &self.servers {
            let order = json!({
                "order": "connect",
                "address": address,
                "clients": options.clients,
                "patience_s": options.connect_timeout,
            });
            let answer = team.ask(&order, patience)?.swap_remove(0);
            let failed = answer["failed"].as_u64().unwrap_or(options.clients as u64);
            measured.crowds.push(Crowd {
                client: *client,
                server: *server,
                clients: options.clients,
                failed: failed as usize,
                seconds: seconds_of(&answer)?,
                why: answer["why"].as_str().map(str::to_owned),
            });
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Failure> {
        let patience = self.options.patience();
        for (_, team) in self.clients {
            team.finish(patience)?;
        }
        for (_, team, _) in self.servers {
            team.finish(patience)?;
        }
        Ok(())
    }
}

fn seconds_of(answer: &Value) -> Result<f64, Failure> {
    let seconds = answer["seconds"].as_f64();
    seconds
        .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
        .ok_or_else(|| Failure::new(format!("a client has told no time: {answer}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_positive_number() {
        assert_eq!(seconds_of(&json!({ "seconds": 0.5 })), Ok(0.5));
        assert!(seconds_of(&json!({ "seconds": 0 })).is_err());
        assert!(seconds_of(&json!({})).is_err());
    }

    #[test]
    fn the_script_is_there_and_reads_what_it_is_sent() {
        let text = std::fs::read_to_string(root().join("xtask/peers/pytorch_store.py")).unwrap();
        for word in ["\"address\"", "\"operation\"", "\"calls\""] {
            assert!(text.contains(word), "{word}");
        }
    }
}
