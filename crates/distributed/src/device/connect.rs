//! How the ranks that hold the same model are connected for their gradients.

use std::fmt;
use std::sync::{Arc, Mutex};

use burn::prelude::*;
use everburn_collectives::group::{CollectiveError, ProcessGroup};
use everburn_collectives::store::{SharedStore, StoreError};
use everburn_collectives::sync::lock;
use everburn_nccl::{FailureMonitor, Library, NcclConfig, NcclError, NcclGroup};

use super::choice::{Abilities, Choice, GradientBackend};
use super::collective::BurnExchange;
use super::exchange::{DeviceExchange, DeviceMemory};
use super::nccl::{NcclExchange, Waits, told};
use crate::error::DdpError;

/// Counts the NCCL groups of a job, so that no two of them meet at the same keys.
const GENERATIONS: &str = "everburn/nccl/generations";

/// Connects the ranks that hold the same model, again after each change of the process group.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// # use std::sync::Arc;
/// # use everburn_collectives::group::ProcessGroup;
/// use everburn::distributed::{Choice, ConnectExchange, DdpError, DeviceExchange};
///
/// /// Gradients go by the group itself, whatever the devices are.
/// #[derive(Debug)]
/// struct ByGroup;
/// impl ConnectExchange for ByGroup {
///     fn connect(&self, _: &ProcessGroup) -> Result<Option<Arc<dyn DeviceExchange>>, DdpError> { Ok(None) }
///     fn choice(&self) -> Option<Choice> { None }
/// }
/// ```
pub trait ConnectExchange: Send + Sync + fmt::Debug {
    /// The way for gradients between the ranks of `group`, all of which call it; `None` if they are to go
    /// by the group itself.
    ///
    /// # Errors
    /// [`DdpError::Backend`] if what was asked for cannot be; [`DdpError::Collective`] if the ranks cannot
    /// be connected.
    fn connect(&self, group: &ProcessGroup) -> Result<Option<Arc<dyn DeviceExchange>>, DdpError>;

    /// What was chosen last, for logs and reports; `None` where all ranks are on CPUs.
    fn choice(&self) -> Option<Choice>;
}

/// Where ranks find NCCL: the library, or a stand-in.
type JoinNccl = dyn Fn(NcclConfig, Option<Arc<dyn FailureMonitor>>) -> Result<NcclGroup, NcclError>
    + Send
    + Sync;

/// Chooses with the other ranks how gradients travel, and connects them.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use std::sync::Arc;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::collectives::store::HashStore;
/// use everburn::distributed::{Abilities, ConnectExchange, Connector, GradientBackend};
///
/// let connector = Connector::new(
///     GradientBackend::Auto,
///     Abilities::default(),
///     Arc::new(HashStore::new()),
/// );
/// let group = ProcessGroup::alone(GroupOptions::default());
/// assert!(connector.connect(&group)?.is_none());
/// assert_eq!(connector.choice(), None);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
pub struct Connector {
    wanted: GradientBackend,
    abilities: Abilities,
    store: SharedStore,
    nccl: Option<Nccl>,
    /// Those of all ranks, where they are threads of one process.
    devices: Vec<Device>,
    choice: Mutex<Option<Choice>>,
}

/// What a rank brings to an NCCL group.
struct Nccl {
    join: Box<JoinNccl>,
    device: usize,
    memory: Arc<dyn DeviceMemory>,
    waits: Waits,
}

impl Connector {
    /// For a rank with these abilities, whose job meets at `store`.
    #[must_use]
    pub fn new(wanted: GradientBackend, abilities: Abilities, store: SharedStore) -> Self {
        Self {
            wanted,
            abilities,
            store,
            nccl: None,
            devices: Vec::new(),
            choice: Mutex::new(None),
        }
    }

    /// With NCCL's library, for the GPU `device`, on which tensors are in `memory`.
    #[must_use]
    pub fn with_nccl(
        self,
        library: &Arc<Library>,
        device: usize,
        memory: Arc<dyn DeviceMemory>,
        waits: Waits,
    ) -> Self {
        let (library, store) = (library.clone(), self.store.clone());
        let join = move |config: NcclConfig, monitor: Option<Arc<dyn FailureMonitor>>| {
            NcclGroup::connect(&library, store.clone(), config, monitor)
        };
        self.with_groups(join, device, memory, waits)
    }

    /// As [`Connector::with_nccl`], with another way to groups: that of a stand-in, say.
    #[must_use]
    pub fn with_groups(
        mut self,
        join: impl Fn(NcclConfig, Option<Arc<dyn FailureMonitor>>) -> Result<NcclGroup, NcclError>
        + Send
        + Sync
        + 'static,
        device: usize,
        memory: Arc<dyn DeviceMemory>,
        waits: Waits,
    ) -> Self {
        self.nccl = Some(Nccl {
            join: Box::new(join),
            device,
            memory,
            waits,
        });
        self
    }

    /// With the devices of all ranks, which are threads of this process: Burn's own collective is then
    /// possible.
    #[must_use]
    pub fn with_devices(mut self, devices: Vec<Device>) -> Self {
        self.devices = devices;
        self
    }

    /// A number that no NCCL group of the job has had, the same on all ranks of `group`.
    fn generation(&self, group: &ProcessGroup) -> Result<u64, DdpError> {
        let own = match group.rank() {
            0 => self.store.add(GENERATIONS, 1).map_err(store_failed)?,
            _ => 0,
        };
        let told = group.broadcast(vec![own], 0).wait()?;
        Ok(told[0].unsigned_abs())
    }

    fn join(&self, group: &ProcessGroup) -> Result<NcclExchange, DdpError> {
        let Some(nccl) = &self.nccl else {
            return Err(DdpError::Backend {
                wanted: self.wanted.to_string(),
                reason: "this rank was not given NCCL".to_string(),
            });
        };
        let job_ranks = group.job_ranks().to_vec();
        let config = NcclConfig {
            // Groups that share out the ranks of a job are told apart by their first rank.
            name: format!("gradients.{}", job_ranks.first().copied().unwrap_or(0)),
            generation: self.generation(group)?,
            rank: group.rank(),
            job_ranks,
            device: nccl.device,
            timeout: group.timeout(),
            ..NcclConfig::world(group.rank(), group.world_size(), nccl.device)
        };
        let monitor: Arc<dyn FailureMonitor> = Arc::new(group.clone());
        let joined = (nccl.join)(config, Some(monitor)).map_err(|error| told(&error))?;
        Ok(NcclExchange::new(joined, nccl.memory.clone(), nccl.waits))
    }
}

impl ConnectExchange for Connector {
    fn connect(&self, group: &ProcessGroup) -> Result<Option<Arc<dyn DeviceExchange>>, DdpError> {
        let choice = Choice::agree(group, self.wanted, self.abilities.clone())?;
        let backend = choice.backend;
        let choice = Some(choice).filter(Choice::is_about_gpus);
        if let (0, Some(choice)) = (group.rank(), &choice) {
            tracing::info!("gradients travel by {choice}");
        }
        *lock(&self.choice) = choice;
        Ok(match backend {
            GradientBackend::Nccl => Some(Arc::new(self.join(group)?)),
            GradientBackend::Burn => Some(Arc::new(BurnExchange::new(self.devices.clone())?)),
            GradientBackend::Host | GradientBackend::Auto => None,
        })
    }

    fn choice(&self) -> Option<Choice> {
        lock(&self.choice).clone()
    }
}

fn store_failed(error: StoreError) -> DdpError {
    DdpError::Collective(CollectiveError::Store(error))
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("wanted", &self.wanted)
            .field("abilities", &self.abilities)
            .finish_non_exhaustive()
    }
}
