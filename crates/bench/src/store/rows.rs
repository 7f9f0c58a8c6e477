//! What was measured, as a table and as JSON.

use std::collections::BTreeMap;

use everburn_record::statistics::{Spread, median_ratio};
use everburn_record::table::aligned;
use serde_json::{Value, json};

use super::client::Operation;
use super::options::CLIENTS;
use super::{Client, Server};
use crate::cells::or_dash;

/// Clients that have connected at once.
#[derive(Debug, Clone)]
pub(super) struct Crowd {
    pub(super) client: Client,
    pub(super) server: Server,
    pub(super) failed: usize,
    pub(super) seconds: f64,
    pub(super) why: Option<String>,
}

/// All that one run has found.
#[derive(Debug, Default)]
pub(crate) struct StoreResults {
    /// Calls a second by one client of one operation at one server, one value a round.
    series: BTreeMap<(Client, Operation, Server), Vec<f64>>,
    pub(super) crowds: Vec<Crowd>,
    /// Bare messages per second, there and back.
    pub(super) echoes: Vec<f64>,
}

/// Our side of a comparison and theirs.
struct Pair {
    clients: &'static str,
    ours: (Client, Server),
    theirs: (Client, Server),
}

/// The same client at both servers, and each store with its own client.
const PAIRS: [Pair; 3] = [
    Pair {
        clients: "its own",
        ours: (Client::Rust, Server::Ours),
        theirs: (Client::Python, Server::Pytorch),
    },
    Pair {
        clients: "PyTorch's",
        ours: (Client::Python, Server::Ours),
        theirs: (Client::Python, Server::Pytorch),
    },
    Pair {
        clients: "ours",
        ours: (Client::Rust, Server::Ours),
        theirs: (Client::Rust, Server::Pytorch),
    },
];

impl StoreResults {
    pub(super) fn add(&mut self, client: Client, operation: Operation, server: Server, rate: f64) {
        let rates = self.series.entry((client, operation, server));
        rates.or_default().push(rate);
    }

    fn rates(&self, (client, server): (Client, Server), operation: Operation) -> &[f64] {
        let found = self.series.get(&(client, operation, server));
        found.map_or(&[], Vec::as_slice)
    }

    /// Who is compared, operation, both sides' rates; theirs are empty where there is no peer.
    fn comparisons(&self) -> impl Iterator<Item = (&'static str, Operation, &[f64], &[f64])> {
        PAIRS.iter().flat_map(move |pair| {
            Operation::ALL.into_iter().filter_map(move |operation| {
                let ours = self.rates(pair.ours, operation);
                let theirs = self.rates(pair.theirs, operation);
                let alone = theirs.is_empty() && pair.clients != PAIRS[0].clients;
                (!ours.is_empty() && !alone).then_some((pair.clients, operation, ours, theirs))
            })
        })
    }

    pub(super) fn table(&self) -> String {
        let rate = |rates: &[f64]| or_dash(Spread::of(rates), |rate| format!("{:.0}", rate.median));
        let mut rows: Vec<Vec<String>> = self
            .comparisons()
            .map(|(clients, operation, ours, theirs)| {
                let ratio = median_ratio(ours, theirs);
                vec![
                    operation.name().to_owned(),
                    clients.to_owned(),
                    rate(ours),
                    rate(theirs),
                    or_dash(ratio, |ratio| format!("{ratio:.2}")),
                ]
            })
            .collect();
        if !self.echoes.is_empty() {
            let bare = rate(&self.echoes);
            rows.push(vec![
                "bare echo".into(),
                "-".into(),
                bare,
                "-".into(),
                "-".into(),
            ]);
        }
        let header = ["calls/s", "client", "everburn", "pytorch", "ratio"];
        aligned(&header, &rows, &[])
    }

    /// A line for each crowd.
    pub(super) fn crowds(&self) -> String {
        let lines = self.crowds.iter().map(|crowd| {
            let failed = match (crowd.failed, &crowd.why) {
                (0, _) => "none failed".to_owned(),
                (failed, why) => format!("{failed} FAILED: {}", why.as_deref().unwrap_or("?")),
            };
            format!(
                "{CLIENTS} clients of {} at once at {}: {failed}, {:.2} s",
                crowd.client.name(),
                crowd.server.name(),
                crowd.seconds
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    pub(super) fn to_json(&self, machine: &Value, peer: Option<&str>, calls: usize) -> Value {
        let rows: Vec<_> = self
            .comparisons()
            .map(|(clients, operation, ours, theirs)| {
                json!({
                    "operation": operation,
                    "client": clients,
                    "everburn_per_second": Spread::of(ours),
                    "pytorch_per_second": Spread::of(theirs),
                    "ratio": median_ratio(ours, theirs),
                })
            })
            .collect();
        let crowds: Vec<_> = self
            .crowds
            .iter()
            .map(|crowd| {
                json!({
                    "client": crowd.client.name(),
                    "server": crowd.server.name(),
                    "clients": CLIENTS,
                    "failed": crowd.failed,
                    "seconds": crowd.seconds,
                })
            })
            .collect();
        json!({
            "machine": machine,
            "peer": peer,
            "calls": calls,
            "rows": rows,
            "bare_echo_per_second": Spread::of(&self.echoes),
            "connect": crowds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(with_peer: bool) -> StoreResults {
        let mut measured = StoreResults::default();
        for round in [1.0, 2.0, 3.0] {
            measured.add(Client::Rust, Operation::Get, Server::Ours, 100.0 * round);
            if with_peer {
                measured.add(Client::Rust, Operation::Get, Server::Pytorch, 80.0 * round);
                measured.add(Client::Python, Operation::Get, Server::Ours, 60.0 * round);
                measured.add(
                    Client::Python,
                    Operation::Get,
                    Server::Pytorch,
                    40.0 * round,
                );
            }
        }
        measured
    }

    #[test]
    fn servers_are_compared_with_the_same_client_and_stores_with_their_own() {
        let table = measured(true).table();
        let lines: Vec<_> = table.lines().map(|line| line.split_whitespace()).collect();
        let lines: Vec<String> = lines
            .into_iter()
            .map(|words| words.collect::<Vec<_>>().join(" "))
            .collect();
        assert!(lines.contains(&"get its own 200 80 2.50".into()), "{table}");
        assert!(
            lines.contains(&"get PyTorch's 120 80 1.50".into()),
            "{table}"
        );
        assert!(lines.contains(&"get ours 200 160 1.25".into()), "{table}");
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        let json = measured(false).to_json(&Value::Null, None, 9);
        assert_eq!(json["rows"].as_array().unwrap().len(), 1);
        assert_eq!(json["rows"][0]["ratio"], Value::Null);
        assert_eq!(json["rows"][0]["everburn_per_second"]["median"], 200.0);
    }

    #[test]
    fn failed_clients_are_shouted() {
        let crowd = Crowd {
            client: Client::Rust,
            server: Server::Ours,
            failed: 2,
            seconds: 1.0,
            why: Some("refused".into()),
        };
        let measured = StoreResults {
            crowds: vec![crowd],
            ..StoreResults::default()
        };
        assert!(measured.crowds().contains("2 FAILED: refused"));
    }
}
