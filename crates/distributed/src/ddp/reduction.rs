//! Where the gradients of a new [`Ddp`](super::Ddp) are held, and how they are reduced over the ranks.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use burn::prelude::*;
use burn::tensor::DType;
use everburn_collectives::group::{ProcessGroup, ReduceOp};

use crate::bucket::BucketEntry;
use crate::communication_hook::{CommunicationHook, CommunicationHookConfig};
use crate::config::DdpConfig;
use crate::device::{DeviceCommunicator, HostCommunicator, is_gpu};
use crate::error::DdpError;
use crate::host::HostBuffer;
use crate::reducer::{Reducer, WORKERS};
use crate::replicas::{TensorDescription, TensorKind};
use crate::shared::Medium;

/// How gradients are reduced over the ranks. As text, what all ranks must have in common.
pub(crate) enum Reduction {
    /// In host memory or through it, by the configuration's hook.
    Automatic,
    /// In host memory, by the caller's own hook.
    Hook(Box<dyn CommunicationHook>),
    Communicator(Arc<dyn DeviceCommunicator>),
    /// Not at all: each rank keeps its own.
    Nothing,
    /// On its device, with nobody.
    #[cfg(test)]
    Alone,
}

impl fmt::Debug for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Automatic => f.write_str("host"),
            Self::Hook(hook) => f.write_str(&hook.name()),
            Self::Communicator(communicator) => f.write_str(communicator.name()),
            Self::Nothing => f.write_str("nothing"),
            #[cfg(test)]
            Self::Alone => f.write_str("alone"),
        }
    }
}

impl Reduction {
    /// Where the gradients are held of parameters that are on `device` (`None`: on several), and the hook that they go
    /// through. Every rank calls it.
    ///
    /// # Errors
    /// [`DdpError::Backend`] if the communicator that was handed in cannot have them; [`DdpError::Collective`] if the ranks
    /// cannot agree.
    pub(super) fn medium(
        self,
        device: Option<Device>,
        group: &ProcessGroup,
        config: &DdpConfig,
    ) -> Result<(Medium, Option<Box<dyn CommunicationHook>>), DdpError> {
        let on_device = |device, communicator| {
            Ok((
                Medium::Device {
                    device,
                    communicator,
                },
                None,
            ))
        };
        match self {
            Self::Hook(hook) => Ok((Medium::Host, Some(hook))),
            Self::Nothing => Ok((Medium::Host, None)),
            // Each rank keeps its shards in host memory until its optimizer takes them.
            Self::Automatic if config.shards_gradients() => Ok((Medium::Host, None)),
            Self::Communicator(own) if config.shards_parameters() => Err(DdpError::Backend {
                wanted: own.name().to_string(),
                reason: "with sharded parameters (`training.ddp.shard = parameters`) they are added up in host memory; \
                         use `ranks.backend = host`"
                    .to_string(),
            }),
            Self::Communicator(own) if config.shards_gradients() && !own.has_collectives() => {
                Err(DdpError::Backend {
                    wanted: own.name().to_string(),
                    reason: "it cannot give each rank its shards (`training.ddp.shard = gradients`); use \
                             `ranks.backend = auto`"
                        .to_string(),
                })
            }
            Self::Communicator(communicator) => {
                let is_plain = config.communication == CommunicationHookConfig::None;
                let device = device.filter(|_| is_plain);
                let device = device.ok_or_else(|| elsewhere(communicator.name(), config))?;
                on_device(device, Some(communicator))
            }
            #[cfg(test)]
            Self::Alone => on_device(device.expect("one device"), None),
            Self::Automatic => {
                let hook = config.communication;
                let in_host_memory = || Ok((Medium::Host, hook.in_host_memory()));
                if !hook.takes_buckets_of_devices() {
                    return in_host_memory();
                }
                // Gradients elsewhere are in host memory.
                let device = device.filter(is_gpu);
                // Ranks on the processor and on GPUs can train together: through host memory.
                let stay = group.all_reduce(vec![u8::from(device.is_some())], ReduceOp::Min);
                let all_stay = stay.wait()? == [1];
                let Some(device) = device.filter(|_| all_stay) else {
                    return in_host_memory();
                };
                let own = (group.world_size() > 1).then(|| group.duplicate(GROUPS[0]));
                let own = own.transpose()?;
                let communicator = own.map(|own| HostCommunicator::with_hook(own, hook));
                let communicator = communicator.transpose()?;
                let communicator =
                    communicator.map(|own| Arc::new(own) as Arc<dyn DeviceCommunicator>);
                on_device(device, communicator)
            }
        }
    }

    /// Whether gradients go through a communication hook.
    pub(super) fn is_hooked(&self, config: &DdpConfig) -> bool {
        matches!(self, Self::Hook(_)) || config.communication != CommunicationHookConfig::None
    }
}

/// What reports on stalls call the groups of the threads that take turns with the buckets.
const GROUPS: [&str; WORKERS] = ["gradients-0", "gradients-1"];

/// Starts the threads that reduce gradients; `None` on one rank. Every rank calls it.
pub(super) fn start_reducer(
    group: &ProcessGroup,
    hook: Option<Box<dyn CommunicationHook>>,
    medium: &Medium,
) -> Result<Option<Reducer>, DdpError> {
    if group.world_size() == 1 {
        return Ok(None);
    }
    let workers = match (&hook, medium) {
        (None, Medium::Host) => WORKERS,
        _ => 1,
    };
    let groups = GROUPS.iter().take(workers);
    let groups = groups.map(|name| group.duplicate(name));
    let groups = groups.collect::<Result<Vec<_>, _>>()?;
    Ok(Some(Reducer::start(groups, hook)?))
}

/// The parameters that have gradients, each once, and whether the model holds one of them twice (tied weights).
pub(super) fn trained(tensors: Vec<TensorDescription>) -> (Vec<BucketEntry>, bool) {
    let (mut known, mut tied) = (HashSet::new(), false);
    let trainable = tensors
        .into_iter()
        .filter(|tensor| tensor.kind == TensorKind::Trainable)
        .filter(|tensor| {
            let new = known.insert(tensor.id);
            tied |= !new;
            new
        });
    let parameters = trainable
        .map(|tensor| BucketEntry {
            path: tensor.path,
            id: tensor.id,
            shape: tensor.shape,
            dtype: tensor.dtype,
        })
        .collect();
    (parameters, tied)
}

/// Gradients cannot stay on one device.
fn elsewhere(wanted: &str, config: &DdpConfig) -> DdpError {
    let reason = match config.communication == CommunicationHookConfig::None {
        false => format!(
            "`training.ddp.communication = {}` changes what travels through host memory; use `ranks.backend = host` with it",
            config.communication
        ),
        true => {
            "the parameters of the model are on several devices, and a rank has one of them; use \
                 `ranks.backend = host`"
                .to_string()
        }
    };
    DdpError::Backend {
        wanted: wanted.to_string(),
        reason,
    }
}

/// Refuses what cannot be averaged.
pub(super) fn check_types(parameters: &[BucketEntry], hooked: bool) -> Result<(), DdpError> {
    if parameters.is_empty() {
        return Err(DdpError::NothingToTrain);
    }
    for entry in parameters {
        if HostBuffer::zeroed(entry.dtype, 0).is_none() {
            return Err(DdpError::UnsupportedType {
                parameter: entry.path.clone(),
                dtype: format!("{:?}", entry.dtype),
            });
        }
    }
    let plain = parameters.iter().find(|entry| entry.dtype != DType::F32);
    if let (true, Some(entry)) = (hooked, plain) {
        tracing::warn!(
            parameter = entry.path,
            dtype = ?entry.dtype,
            "communication hooks take f32 gradients; this one and its like go as they are"
        );
    }
    Ok(())
}
