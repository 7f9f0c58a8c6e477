//! The store that the ranks of a benchmark meet at: a process of its own, because it has to listen
//! in the network namespace of the ranks.

use std::io;
use std::net::SocketAddr;

use everburn_collectives::store::{StoreOptions, TcpStoreServer};
use everburn_launch::variables;
use serde_json::json;

use crate::Failure;

/// Serves until standard input ends. The first line of the output names the address.
pub(crate) fn serve(listen: SocketAddr) -> Result<(), Failure> {
    let job_token = std::env::var(variables::JOB_TOKEN).ok();
    let options = StoreOptions {
        job_token: job_token.filter(|token| !token.is_empty()),
        ..StoreOptions::default()
    };
    let server = TcpStoreServer::bind(listen, options)?;
    let address = server.local_addr();
    println!(
        "{}",
        json!({ "host": address.ip().to_string(), "port": address.port() })
    );
    // Nothing is expected but the end.
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(())
}
