//! Ranks whose gradients travel in each way.

use std::sync::Arc;

use burn::module::Param;
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{
    Ddp, DdpConfig, DdpError, DeviceCommunicator, HostCommunicator, NcclCommunicator, NcclWait,
};
use everburn_distributed_fake::FakeMemory;
use everburn_nccl_fake::{FakeCluster, Fault};
use everburn_tests::in_parallel;

use crate::models::Branchy;

/// How gradients travel that stay on their devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By NCCL; the device waits.
    Nccl,
    /// By NCCL; the host waits.
    NcclAndHostWaits,
    /// By NCCL, on a driver that cannot order streams.
    NcclOnOldDriver,
    /// Through host memory.
    Staged,
}

pub const WAYS: [Way; 4] = [
    Way::Nccl,
    Way::NcclAndHostWaits,
    Way::NcclOnOldDriver,
    Way::Staged,
];

/// One rank: its process group, and its GPU.
#[derive(Clone)]
pub struct Rank {
    pub group: ProcessGroup,
    pub cluster: Arc<FakeCluster>,
}

impl Rank {
    pub fn number(&self) -> usize {
        self.group.rank()
    }

    /// The communicator of all ranks.
    pub fn communicator(&self, way: Way) -> Arc<dyn DeviceCommunicator> {
        if way == Way::Staged {
            let own = self.group.duplicate("gradients").unwrap();
            return Arc::new(HostCommunicator::start(own).unwrap());
        }
        let rank = self.number();
        if way == Way::NcclOnOldDriver {
            self.cluster.inject(rank, Fault::OldDriver);
        }
        let nccl = self.cluster.connect(rank, &self.group).unwrap();
        let waits = match way {
            Way::NcclAndHostWaits => NcclWait::Host,
            _ => NcclWait::Device,
        };
        let memory = Arc::new(FakeMemory::new(self.cluster.clone(), rank));
        Arc::new(NcclCommunicator::new(nccl, memory, waits))
    }

    /// Replicas of [`model`] whose gradients travel so.
    pub fn ddp(&self, way: Way, config: DdpConfig) -> Result<(Ddp, Branchy), DdpError> {
        let model = model(&Device::flex().autodiff());
        Ddp::with_communicator(model, self.group.clone(), config, self.communicator(way))
    }
}

/// Runs `work` on each rank of a world; what each yields, in rank order.
pub fn on_ranks<T: Send>(world_size: usize, work: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    on_ranks_with(world_size, GroupOptions::default(), work)
}

/// The same, with other options of the process group.
pub fn on_ranks_with<T: Send>(
    world_size: usize,
    options: GroupOptions,
    work: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    let cluster = Arc::new(FakeCluster::new(world_size));
    in_parallel(ProcessGroup::over_threads(world_size, options), |group| {
        let cluster = cluster.clone();
        work(Rank { group, cluster })
    })
}

/// A model of the same weights each time; tests beside this one draw from the same generator, so they are
/// not drawn.
pub fn model(device: &Device) -> Branchy {
    let mut model = Branchy::new(device);
    let numbers = |count: usize, from: usize| -> Vec<f32> {
        let number = |index: usize| ((index * 29 % 23) as f32 - 11.0) / 13.0;
        (from..from + count).map(number).collect()
    };
    let weight = |rows: usize, from: usize| {
        Param::from_data(TensorData::new(numbers(3 * rows, from), [rows, 3]), device)
    };
    let bias = |from: usize| Param::from_data(TensorData::new(numbers(3, from), [3]), device);
    (model.always.weight, model.always.bias) = (weight(4, 0), Some(bias(7)));
    (model.sometimes.weight, model.sometimes.bias) = (weight(3, 5), Some(bias(3)));
    model
}
