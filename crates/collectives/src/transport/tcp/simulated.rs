//! What a mesh's ranks do at the store, without the connections between them: for simulations.

use std::net::SocketAddr;
use std::time::Duration;

use super::addresses::Addresses;
use super::mesh_number::{last_mesh, mark_last};
use crate::group::CollectiveError;
use crate::rendezvous::Rendezvous;
use crate::store::{Deadline, random_u64};

/// The pause before a rank looks for bad news, which doubles up to the longest.
const NEWS: Duration = Duration::from_millis(100);
const LONGEST_NEWS: Duration = Duration::from_secs(1);

/// Publishes `address`, waits for those of all ranks, then for `connected`, and publishes that the mesh is made.
pub(crate) fn exchange_addresses(
    rendezvous: &Rendezvous,
    address: SocketAddr,
    connected: &dyn Fn(Duration) -> bool,
) -> Result<(), CollectiveError> {
    let deadline = Deadline::within(rendezvous.timeout);
    let store = &*rendezvous.store;
    let number = last_mesh(store)?.saturating_add(1);
    let mut addresses = Addresses::new(rendezvous, format!("everburn/mesh/{number}"));
    if rendezvous.rank == 0 {
        let drawn = format!("{:032x}", random_u64());
        store.compare_set(&addresses.key("session"), b"", drawn.as_bytes())?;
    }
    addresses.publish(address)?;
    let others: Vec<usize> = (0..rendezvous.world_size).collect();
    let mut pause = NEWS;
    loop {
        let left = deadline.left();
        if left.is_zero() {
            return Err(CollectiveError::Incomplete {
                rank: rendezvous.rank,
                world_size: rendezvous.world_size,
                missing: addresses.unpublished(&others),
                ranks_per_machine: rendezvous.ranks_per_machine,
                local_address: rendezvous.local_address.to_string().into(),
                waited: deadline.elapsed(),
                reason: "they have not published an address in the store".into(),
            });
        }
        let limit = pause.min(left);
        if !addresses.complete {
            addresses.wait_for_all(limit)?;
        }
        if addresses.complete && connected(limit) {
            break;
        }
        // Fails when the round is broken.
        match addresses.is_survey_due() {
            true => addresses.survey(&others).map(drop)?,
            false => store.check(&[&addresses.key("failed")]).map(drop)?,
        }
        pause = (2 * pause).min(LONGEST_NEWS);
    }
    let made = addresses.key(&format!("made/{}", rendezvous.rank));
    let published = store
        .set(&made, b"1")
        .and_then(|()| mark_last(store, number));
    if let Err(error) = published {
        tracing::debug!(%error, "the result of the mesh setup was not published");
    }
    Ok(())
}
