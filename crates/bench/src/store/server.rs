//! The store that ranks of a benchmark meet at. A process of its own, because it has to listen in the network namespace
//! of the ranks; it ends with the input.

use std::io;
use std::net::SocketAddr;

use clap::Args;
use everburn::collectives::store::{StoreAccess, StoreOptions, TcpStoreServer};
use everburn::launch::variables;
use serde_json::json;

use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct ServerArguments {
    /// The address to listen on; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Ask for no secret, as PyTorch's clients need it
    #[arg(long)]
    open: bool,
}

/// Says the address, a line of JSON, and serves until the input ends.
pub(crate) fn serve(arguments: &ServerArguments) -> Result<(), Failure> {
    let access = match arguments.open {
        true => StoreAccess::Open,
        false => StoreAccess::Token(std::env::var(variables::JOB_TOKEN)?.parse()?),
    };
    let server = TcpStoreServer::bind(arguments.listen, StoreOptions::new(access))?;
    let address = server.local_addr();
    println!(
        "{}",
        json!({ "host": address.ip().to_string(), "port": address.port() })
    );
    // Nothing is expected but the end.
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(())
}
