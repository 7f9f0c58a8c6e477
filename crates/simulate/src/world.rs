//! All of the simulated job: machines, processes, meshes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everburn_collectives::sync::lock;

use crate::kernel::Kernel;
use crate::launcher::{self, Machine};
use crate::mesh::Mesh;
use crate::network::Network;
use crate::rank::{Exit, RankProcess};
use crate::settings::Settings;
use crate::store::StoreServer;

/// The time of a step's computation, and by how much it differs.
const COMPUTE: Duration = Duration::from_millis(450);
const DIFFERS: Duration = Duration::from_millis(50);

/// How long a process takes from its start to its first request.
const BOOT: Duration = Duration::from_millis(500);

/// How long the kernel takes to report the end of a process.
const REAPED: Duration = Duration::from_millis(2);

/// A rank at one moment.
#[derive(Debug, Clone, Default)]
struct RankState {
    process: Option<usize>,
    incarnation: u64,
    /// It computes slowly until then.
    slow_until: Duration,
}

/// The simulated job.
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) network: Arc<Network>,
    pub(crate) server: Arc<StoreServer>,
    pub(crate) machines: Vec<Machine>,
    ranks: Mutex<Vec<RankState>>,
    /// By generation; 0 is that of the job which is not elastic.
    meshes: Mutex<BTreeMap<u64, Arc<Mesh>>>,
    ending: AtomicBool,
    /// The last failures of ranks.
    failures: Mutex<Vec<String>>,
}

impl World {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        let kernel = Kernel::new(settings.seed);
        let count = settings.ranks.div_ceil(settings.ranks_per_machine);
        let network = Arc::new(Network::new(count));
        let server = StoreServer::new(&kernel, &network);
        let machines = (0..count).map(|_| Machine::default()).collect();
        Arc::new(Self {
            ranks: Mutex::new(vec![RankState::default(); settings.ranks]),
            settings,
            kernel,
            network,
            server,
            machines,
            meshes: Mutex::default(),
            ending: AtomicBool::new(false),
            failures: Mutex::default(),
        })
    }

    pub(crate) fn slots_of(&self, machine: usize) -> std::ops::Range<usize> {
        let each = self.settings.ranks_per_machine;
        let first = machine * each;
        first..(first + each).min(self.settings.ranks)
    }

    pub(crate) fn machine_of(&self, slot: usize) -> usize {
        slot / self.settings.ranks_per_machine
    }

    pub(crate) fn process_of(&self, slot: usize) -> Option<usize> {
        lock(&self.ranks)[slot].process
    }

    pub(crate) fn incarnation_of(&self, slot: usize) -> u64 {
        lock(&self.ranks)[slot].incarnation
    }

    /// The mesh of a generation; the first member to ask makes it.
    pub(crate) fn mesh(
        &self,
        generation: u64,
        members: Vec<(usize, u64)>,
        first_step: u64,
    ) -> Arc<Mesh> {
        let mut meshes = lock(&self.meshes);
        let make = || Mesh::new(&self.kernel, &self.network, generation, members, first_step);
        let mesh = meshes.entry(generation).or_insert_with(|| Arc::new(make()));
        let mesh = mesh.clone();
        // Those of long ago have no living member.
        while meshes.len() > 8 {
            meshes.pop_first();
        }
        mesh
    }

    pub(crate) fn newest(&self) -> Option<Arc<Mesh>> {
        lock(&self.meshes)
            .last_key_value()
            .map(|(_, it)| it.clone())
    }

    pub(crate) fn after(&self, generation: u64) -> Vec<Arc<Mesh>> {
        let meshes = lock(&self.meshes);
        meshes
            .range(generation + 1..)
            .map(|(_, it)| it.clone())
            .collect()
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    pub(crate) fn end_job(&self) {
        self.ending.store(true, Ordering::Release);
    }

    pub(crate) fn slow_down(&self, slot: usize, time: Duration) {
        lock(&self.ranks)[slot].slow_until = self.kernel.now() + time;
    }

    /// How long a rank computes for its next step.
    pub(crate) fn compute_time(&self, slot: usize) -> Duration {
        let more = self.kernel.random_below(DIFFERS.as_nanos() as u64);
        let slow = lock(&self.ranks)[slot].slow_until > self.kernel.now();
        (COMPUTE + Duration::from_nanos(more)) * if slow { 4 } else { 1 }
    }

    /// Starts a process of a rank, as its launcher does.
    pub(crate) fn start_rank(self: &Arc<Self>, slot: usize, incarnation: u64) -> usize {
        let process = self.kernel.add_process(self.machine_of(slot));
        let rank = &mut lock(&self.ranks)[slot];
        (rank.process, rank.incarnation) = (Some(process), incarnation);
        let boots = BOOT + Duration::from_nanos(self.kernel.random_below(BOOT.as_nanos() as u64));
        let world = self.clone();
        let starts = move |kernel: &Arc<Kernel>| {
            let of = RankProcess {
                world: world.clone(),
                slot,
                incarnation,
                process,
            };
            let runs = move || {
                let exit = of.run();
                world.process_ended(slot, process, exit);
            };
            if kernel.is_alive(process)
                && let Err(error) = kernel.spawn(process, &format!("rank-{slot}"), Box::new(runs))
            {
                panic!("the system gives no more stacks: {error}");
            }
        };
        self.kernel.after(boots, Box::new(starts));
        process
    }

    /// Kills the process of a rank.
    pub(crate) fn kill(self: &Arc<Self>, slot: usize) {
        if let Some(process) = self.process_of(slot) {
            self.process_ended(slot, process, Exit::Killed);
        }
    }

    fn process_ended(self: &Arc<Self>, slot: usize, process: usize, exit: Exit) {
        if !self.kernel.is_alive(process) {
            return;
        }
        self.kernel.kill(process);
        if let Exit::Failed(reason) = &exit {
            lock(&self.failures).push(format!("rank {slot}: {reason}"));
        }
        let meshes: Vec<Arc<Mesh>> = lock(&self.meshes).values().cloned().collect();
        for mesh in meshes {
            mesh.process_ended(process);
        }
        let world = self.clone();
        let reaped = move |_: &Arc<Kernel>| {
            let machine = world.machine_of(slot);
            launcher::reaped(&world, machine, slot, process, exit);
        };
        self.kernel.after(REAPED, Box::new(reaped));
    }

    /// The failures of ranks that were not killed, so far.
    pub(crate) fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }
}
