//! A store by itself: that of `cargo xtask store`, and the one that the ranks of a benchmark meet at,
//! which is a process of its own because it has to listen in the network namespace of the ranks.

use std::io;
use std::net::SocketAddr;

use clap::Args;
use everburn_collectives::store::{StoreAccess, StoreOptions, TcpStoreServer};
use everburn_launch::variables;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failure;

/// Serve a store to the ranks of a job, or to PyTorch's `TCPStore` clients too, until Ctrl-C or SIGTERM
///
/// The first line on standard output is the address. It is the store that rank 0 or a launcher serves
/// otherwise: give the ranks its host and port in MASTER_ADDR and MASTER_PORT, and
/// TORCHELASTIC_USE_AGENT_STORE=True so that rank 0 serves none.
#[derive(Debug, Args)]
#[command(after_help = "Environment:\n  \
    EVERBURN_JOB_TOKEN    the secret of the job, which every client has to know (16 bytes or\n                        \
    more, as from `openssl rand -hex 32`); needed without --open")]
pub(crate) struct StoreArguments {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Ask for no secret: everybody who can reach the address, on 127.0.0.1 every user of this
    /// machine, can read and change every key. PyTorch's clients need this
    #[arg(long)]
    open: bool,

    /// Serve until standard input ends, and say the address in JSON: for `bench`
    #[arg(long, hide = true)]
    until_input_ends: bool,
}

impl StoreArguments {
    fn access(&self) -> Result<StoreAccess, Failure> {
        if self.open {
            return Ok(StoreAccess::Open);
        }
        let token = std::env::var(variables::JOB_TOKEN).unwrap_or_default();
        if token.is_empty() {
            return Err(format!(
                "who may use the store? Set {} to the secret of the job, the same for every rank, \
                 or give --open for a store that everybody who can reach {} may read and change, \
                 as PyTorch's clients need it",
                variables::JOB_TOKEN,
                self.listen
            )
            .into());
        }
        let token = token.parse();
        Ok(StoreAccess::Token(token.map_err(|error| {
            format!("{}: {error}", variables::JOB_TOKEN)
        })?))
    }
}

/// Serves until it is told to end.
pub(crate) fn serve(arguments: &StoreArguments) -> Result<(), Failure> {
    let options = StoreOptions::new(arguments.access()?);
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
