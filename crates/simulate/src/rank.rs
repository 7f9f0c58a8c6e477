//! A simulated rank: the life of `ElasticGroup` and its training loop, with the real membership, heartbeats and failures.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use everburn_collectives::elastic::{ElasticError, ElasticOptions, Membership, Round};
use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
use everburn_collectives::heartbeat::HeartbeatMonitor;
use everburn_collectives::rendezvous::Rendezvous;
use everburn_collectives::store::SharedStore;
use everburn_collectives::transport::Inbox;
use everburn_collectives::{runtime, simulation};

use crate::mesh::{Mesh, MeshTransport};
use crate::store::SimulatedStore;
use crate::world::World;

/// How often rank 0 asks whether somebody waits, as in `ElasticGroup`.
const LOOK: Duration = Duration::from_millis(200);

/// How often rank 0 writes `live.json`.
const LIVE: Duration = Duration::from_secs(1);

/// How long the members of a round may take to connect, and how often in a row in vain, as in `ElasticGroup`.
const CONNECT: Duration = Duration::from_secs(10);
const FUTILE: usize = 20;

/// How long members of a broken group are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The timeout of the group's operations.
const TIMEOUT: Duration = Duration::from_secs(300);

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// How a rank's process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exit {
    Finished,
    Failed(String),
    Killed,
}

/// A rank of a job that is not elastic: joins, connects, and tells how long that took.
pub(crate) fn meet(world: &Arc<World>, rank: usize, process: usize) -> Result<(), String> {
    let store: SharedStore = Arc::new(SimulatedStore::connect(&world.server, process, false));
    let size = world.settings.ranks;
    simulation::join(&*store, rank, size, TIMEOUT).map_err(|error| error.to_string())?;
    let rendezvous = Rendezvous {
        store,
        rank,
        world_size: size,
        local_rank: rank % world.settings.ranks_per_machine,
        ranks_per_machine: Some(world.settings.ranks_per_machine),
        local_address: ADDRESS,
        timeout: TIMEOUT,
        key: None,
    };
    let members = (0..size).map(|slot| (slot, 1)).collect();
    let mesh = world.mesh(0, members, 0);
    connect(world, &rendezvous, &mesh, process)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn connect(
    world: &Arc<World>,
    rendezvous: &Rendezvous,
    mesh: &Arc<Mesh>,
    process: usize,
) -> Result<ProcessGroup, CollectiveError> {
    let rank = rendezvous.rank;
    let inbox = Inbox::new();
    let made = std::cell::Cell::new(false);
    let port = 20_000 + u16::try_from(process % 40_000).unwrap_or(0);
    let connected = |limit| {
        if !made.replace(true) {
            world.kernel.sleep(mesh.handshakes());
            mesh.connect(rank, process, &inbox);
        }
        mesh.wait_connected(limit)
    };
    let address = SocketAddr::new(rendezvous.local_address, port);
    simulation::exchange_addresses(rendezvous, address, &connected)?;
    let transport = MeshTransport {
        mesh: mesh.clone(),
        rank,
        process,
        inbox,
    };
    let options = GroupOptions {
        timeout: Some(TIMEOUT),
        ..GroupOptions::default()
    };
    Ok(ProcessGroup::over(
        Arc::new(transport),
        rendezvous.local_rank,
        options,
    ))
}

/// Why a rank leaves its group.
enum Leave {
    /// The group has failed.
    Failed(CollectiveError),
    /// Others wait to join.
    SomebodyWaits,
    /// The job is done.
    Finished,
}

pub(crate) struct RankProcess {
    pub(crate) world: Arc<World>,
    pub(crate) slot: usize,
    pub(crate) incarnation: u64,
    pub(crate) process: usize,
}

impl RankProcess {
    /// Trains until the end of the job, or of this process.
    pub(crate) fn run(&self) -> Exit {
        self.train().map_or_else(Exit::Failed, |()| Exit::Finished)
    }

    fn train(&self) -> Result<(), String> {
        let world = &self.world;
        let settings = &world.settings;
        let store = SimulatedStore::connect(&world.server, self.process, false);
        let store: SharedStore = Arc::new(store);
        // It continues with half of the ranks.
        let bounds = (settings.ranks.div_ceil(2), settings.ranks);
        let options = ElasticOptions {
            patience: PATIENCE,
            node: self.slot / settings.ranks_per_machine,
            ..ElasticOptions::new(bounds, self.slot, self.incarnation)
        };
        let membership = Membership::over(store.clone(), ADDRESS, TIMEOUT, options);
        let mut membership = membership.map_err(|error| error.to_string())?;
        let mut monitor: Option<HeartbeatMonitor> = None;
        let (mut committed, mut futile) = (0, 0);
        loop {
            let round = match membership.join(committed) {
                Ok(round) => round,
                Err(ElasticError::Finished) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            let mut rendezvous = round.rendezvous();
            rendezvous.timeout = CONNECT;
            let mesh = self.mesh_of(&round);
            let group = match connect(world, &rendezvous, &mesh, self.process) {
                Ok(group) => group,
                Err(error) if futile == FUTILE => return Err(error.to_string()),
                Err(_) => {
                    futile += 1;
                    continue;
                }
            };
            futile = 0;
            if monitor.is_none() {
                let (slot, ranks) = (self.slot, settings.ranks);
                let started = HeartbeatMonitor::start(store.clone(), slot, ranks, settings.beats);
                monitor = Some(started.map_err(|error| error.to_string())?);
            }
            let slots: Vec<usize> = round.members.iter().map(|member| member.slot).collect();
            if let Some(monitor) = &monitor {
                match settings.planted {
                    Some(Planted::BeatsAreNotFollowed) => {}
                    _ => monitor.follow_generation(&group, round.generation, &slots),
                }
            }
            committed = mesh.first_step;
            match self.steps(&membership, monitor.as_ref(), &group, &mesh, &mut committed) {
                Leave::Finished => return Ok(()),
                Leave::SomebodyWaits => group.abort("somebody waits to join"),
                Leave::Failed(error) => {
                    group.abort_because(&error, error.to_string());
                    if let Some(monitor) = &monitor {
                        // It is printed in reality.
                        monitor.report_in_background(&error, |_| None, |_| ());
                    }
                }
            }
            if settings.planted == Some(Planted::OneNeverJoinsAgain) && self.slot == 1 {
                world.kernel.sleep(Duration::from_secs(1_000_000));
            }
        }
    }

    fn mesh_of(&self, round: &Round) -> Arc<Mesh> {
        let members = round.members.iter();
        let first_step = members.clone().map(|it| it.committed_step).max();
        let members = members.map(|it| (it.slot, it.incarnation)).collect();
        let first_step = first_step.unwrap_or_default();
        self.world.mesh(round.generation, members, first_step)
    }

    /// Makes steps until this rank leaves the group.
    fn steps(
        &self,
        membership: &Membership,
        monitor: Option<&HeartbeatMonitor>,
        group: &ProcessGroup,
        mesh: &Arc<Mesh>,
        committed: &mut u64,
    ) -> Leave {
        let world = &self.world;
        let (mut looked, mut lived) = (runtime::now(), runtime::now());
        let due = |since: &mut Instant, pause| {
            let due = runtime::elapsed(*since) >= pause;
            if due {
                *since = runtime::now();
            }
            due
        };
        loop {
            world.kernel.sleep(world.compute_time(self.slot));
            let step = *committed;
            group.set_step(step);
            if group.rank() == 0 {
                // A store that is out of reach is found out by others.
                if due(&mut looked, LOOK) && membership.has_pending_members().unwrap_or(false) {
                    mesh.leave_after(step);
                }
                if world.is_ending() {
                    mesh.end_after(step);
                }
                if let Some(monitor) = monitor.filter(|_| due(&mut lived, LIVE)) {
                    drop(monitor.statuses());
                }
            }
            mesh.arrive();
            let is_done = || mesh.first_step + mesh.steps.load(Ordering::Acquire) > step;
            if let Err(error) = simulation::wait(group, &is_done, runtime::now() + TIMEOUT) {
                return Leave::Failed(error);
            }
            *committed += 1;
            if mesh.ends_after(step) {
                return Leave::Finished;
            }
            if mesh.leaves_after(step) {
                return Leave::SomebodyWaits;
            }
        }
    }
}

/// An error on purpose, which the simulation must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Ranks publish beats, and none looks at those of its group.
    BeatsAreNotFollowed,
    /// One rank never joins the round after a failure, and lives.
    OneNeverJoinsAgain,
}
