//! A store by itself: that of `cargo xtask store`, and the one that the ranks of a benchmark meet at,
//! which is a process of its own because it has to listen in the network namespace of the ranks.

use std::io;
use std::net::SocketAddr;

use clap::Args;
use everburn_collectives::store::{StoreOptions, TcpStoreServer};
use everburn_launch::variables;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failure;

/// Serve a store to ranks of ours and to PyTorch's `TCPStore` clients, until Ctrl-C or SIGTERM
///
/// The first line on standard output is the address. It is the store that rank 0 or a launcher serves
/// otherwise: give the ranks its host and port in MASTER_ADDR and MASTER_PORT, and
/// TORCHELASTIC_USE_AGENT_STORE=True so that rank 0 serves none.
#[derive(Debug, Args)]
#[command(after_help = "Environment:\n  \
    EVERBURN_JOB_TOKEN    a secret that every client has to know; needed where other machines\n                        \
    can connect. PyTorch's clients know none: listen on 127.0.0.1 for them")]
pub(crate) struct StoreArguments {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Serve until standard input ends, and say the address in JSON: for `bench`
    #[arg(long, hide = true)]
    until_input_ends: bool,
}

/// Serves until it is told to end.
pub(crate) fn serve(arguments: &StoreArguments) -> Result<(), Failure> {
    let job_token = std::env::var(variables::JOB_TOKEN).ok();
    let options = StoreOptions {
        job_token: job_token.filter(|token| !token.is_empty()),
        ..StoreOptions::default()
    };
    if arguments.until_input_ends {
        let server = TcpStoreServer::bind(arguments.listen, options)?;
        let address = server.local_addr();
        println!(
            "{}",
            json!({ "host": address.ip().to_string(), "port": address.port() })
        );
        // Nothing is expected but the end.
        io::copy(&mut io::stdin().lock(), &mut io::sink())?;
        return Ok(());
    }
    // Before anyone knows that there is a server to be ended.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let server = TcpStoreServer::bind(arguments.listen, options)?;
    println!("{}", server.local_addr());
    signals.forever().next();
    Ok(())
}
