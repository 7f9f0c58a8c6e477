//! How the ranks that hold the same model are connected for their gradients.

use std::fmt;
use std::sync::{Arc, Mutex};

use everburn_collectives::group::ProcessGroup;
use everburn_collectives::sync::lock;
use everburn_nccl::api::NcclApi;
use everburn_nccl::{LibraryError, NcclBackend};

use super::choice::{Abilities, Choice, GradientBackend};
use super::communicator::{DeviceCommunicator, DeviceMemory};
use super::nccl::{NcclCommunicator, NcclWait};
use crate::error::DdpError;

/// Connects the ranks of a group by NCCL.
type ConnectNccl = dyn Fn(&ProcessGroup) -> Result<NcclCommunicator, DdpError> + Send + Sync;

/// Chooses with the ranks that hold the same model how gradients travel, and connects them; again after each change of
/// the process group.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Abilities, Connector, GradientBackend};
///
/// let connector = Connector::new(GradientBackend::Auto, Abilities::default());
/// let group = ProcessGroup::alone(GroupOptions::default());
/// assert!(connector.connect(&group)?.is_none());
/// assert_eq!(connector.choice(), None);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
pub struct Connector {
    wanted: GradientBackend,
    abilities: Abilities,
    nccl: Option<Box<ConnectNccl>>,
    choice: Mutex<Option<Choice>>,
}

impl Connector {
    /// For a rank with these abilities.
    #[must_use]
    pub fn new(wanted: GradientBackend, abilities: Abilities) -> Self {
        Self {
            wanted,
            abilities,
            nccl: None,
            choice: Mutex::new(None),
        }
    }

    /// With NCCL on this rank's GPU, which `open` yields at each connection, and on which tensors are in `memory`.
    #[must_use]
    pub fn with_nccl(
        mut self,
        open: impl Fn() -> Result<Arc<dyn NcclApi>, LibraryError> + Send + Sync + 'static,
        memory: Arc<dyn DeviceMemory>,
        waits: NcclWait,
    ) -> Self {
        let connect = move |group: &ProcessGroup| -> Result<NcclCommunicator, DdpError> {
            let backend = NcclBackend::connect(open(), group)?;
            Ok(NcclCommunicator::new(backend, memory.clone(), waits))
        };
        self.nccl = Some(Box::new(connect));
        self
    }

    /// The way for gradients between the ranks of `group`, all of which call it; `None` if they are to go
    /// by the group itself.
    ///
    /// # Errors
    /// [`DdpError::Backend`] if what was asked for cannot be; [`DdpError::Object`] if a rank of another build asks
    /// for what this one cannot read; [`DdpError::Collective`] if the ranks cannot be connected.
    pub fn connect(
        &self,
        group: &ProcessGroup,
    ) -> Result<Option<Arc<dyn DeviceCommunicator>>, DdpError> {
        let choice = Choice::agree(group, self.wanted, self.abilities.clone())?;
        self.connect_by(choice, group)
    }

    /// The backend that this rank wants, if tensors go through host memory where all ranks have the same: it is on a CPU, or
    /// host memory was asked for.
    pub fn host_only(&self) -> Option<GradientBackend> {
        let is_host_only = match self.wanted {
            GradientBackend::Host => true,
            GradientBackend::Auto => self.abilities.device == "flex",
            GradientBackend::Nccl => false,
        };
        is_host_only.then_some(self.wanted)
    }

    /// As [`connect`](Self::connect), for ranks that have all found the same [`host_only`](Self::host_only) backend: they
    /// exchange nothing.
    ///
    /// # Errors
    /// [`DdpError::Backend`] if this rank has none.
    pub fn connect_by_host(
        &self,
        group: &ProcessGroup,
    ) -> Result<Option<Arc<dyn DeviceCommunicator>>, DdpError> {
        if self.host_only().is_none() {
            return Err(DdpError::Backend {
                wanted: self.wanted.to_string(),
                reason: "it depends on the devices of all ranks".to_string(),
            });
        }
        let choice = Choice::among_equals(self.wanted, self.abilities.clone())?;
        self.connect_by(choice, group)
    }

    fn connect_by(
        &self,
        choice: Choice,
        group: &ProcessGroup,
    ) -> Result<Option<Arc<dyn DeviceCommunicator>>, DdpError> {
        let backend = choice.backend;
        let choice = Some(choice).filter(Choice::is_about_gpus);
        let connects = group.world_size() > 1 || backend == GradientBackend::Nccl;
        if let (0, true, Some(choice)) = (group.rank(), connects, &choice) {
            tracing::info!("ranks exchange tensors by {choice}");
        }
        *lock(&self.choice) = choice;
        Ok(match backend {
            GradientBackend::Nccl => {
                let connect = self.nccl.as_ref().ok_or_else(|| DdpError::Backend {
                    wanted: self.wanted.to_string(),
                    reason: "this rank was not given NCCL".to_string(),
                })?;
                Some(Arc::new(connect(group)?))
            }
            GradientBackend::Host | GradientBackend::Auto => None,
        })
    }

    /// What was chosen last, for logs and reports; `None` where all ranks are on CPUs.
    pub fn choice(&self) -> Option<Choice> {
        lock(&self.choice).clone()
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("wanted", &self.wanted)
            .field("abilities", &self.abilities)
            .finish_non_exhaustive()
    }
}
