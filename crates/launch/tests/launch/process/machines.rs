//! A rank that meets the others and has nothing else to do.

use std::error::Error;
use std::time::Duration;

use everburn_collectives::group::GroupOptions;
use everburn_collectives::store::{Store, StoreAccess, StoreOptions, TcpStore};
use everburn_launch::{Rank, run};

use super::{DEADLINE, end_with};

/// A rank by `run`; rank 3 never joins.
pub fn be_rank() -> ! {
    end_with(run(1, meet))
}

fn meet(rank: &Rank) -> Result<(), Box<dyn Error>> {
    let timeout = match rank.rank() {
        0 => {
            wait_for_ranks_1_and_2(rank)?;
            Duration::from_secs(3)
        }
        3 => loop {
            std::thread::park();
        },
        _ => DEADLINE,
    };
    rank.group_with(GroupOptions {
        timeout: Some(timeout),
        ..GroupOptions::default()
    })?;
    Ok(())
}

fn wait_for_ranks_1_and_2(rank: &Rank) -> Result<(), Box<dyn Error>> {
    let environment = rank.environment().ok_or("no launcher")?;
    let token = environment.job_token.clone().ok_or("no token")?;
    let options = StoreOptions::new(StoreAccess::Token(token));
    let address = format!("{}:{}", environment.master_addr, environment.master_port);
    let store = TcpStore::connect(&address, options)?;
    Ok(store.wait_within(&["everburn/join/0/1", "everburn/join/0/2"], DEADLINE)?)
}
