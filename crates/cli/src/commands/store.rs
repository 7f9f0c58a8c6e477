//! `everburn store`: a store by itself.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use everburn_collectives::store::{StoreAccess, StoreOptions, TcpStoreServer};
use everburn_launch::{signals_to_hear, variables};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{ToolError, failed};

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
    /// The address to listen on; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Require no secret: anyone who can reach the address (on 127.0.0.1 every user of this machine) can read and
    /// change every key. PyTorch's clients need this
    #[arg(long)]
    open: bool,
}

impl StoreArguments {
    fn access(&self) -> Result<StoreAccess, ToolError> {
        if self.open {
            return Ok(StoreAccess::Open);
        }
        let token = std::env::var(variables::JOB_TOKEN).unwrap_or_default();
        if token.is_empty() {
            return Err(ToolError::Usage(format!(
                "who may use the store? Set {} to the secret of the job, the same for every rank, \
                 or give --open for a store that everybody who can reach {} may read and change, \
                 as PyTorch's clients need it",
                variables::JOB_TOKEN,
                self.listen
            )));
        }
        let token = token.parse();
        Ok(StoreAccess::Token(token.map_err(|error| {
            ToolError::Usage(format!("{}: {error}", variables::JOB_TOKEN))
        })?))
    }
}

/// Serves until it is told to end.
pub(crate) fn serve(arguments: &StoreArguments) -> Result<ExitCode, ToolError> {
    let options = StoreOptions::new(arguments.access()?);
    // Before anyone knows that there is a server to be ended.
    let listened = signals_to_hear(&[SIGINT, SIGTERM, SIGHUP]);
    let mut signals = Signals::new(listened).map_err(failed)?;
    let server = TcpStoreServer::bind(arguments.listen, options).map_err(failed)?;
    say!("{}", server.local_addr());
    signals.forever().next();
    Ok(ExitCode::SUCCESS)
}
