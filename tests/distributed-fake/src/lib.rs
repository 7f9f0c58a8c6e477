//! A stand-in for the memory of GPUs, for tests: tensors of the CPU, lent to the stand-in for NCCL.
//!
//! [`FakeMemory`] is a rank's memory. As on a GPU, a flat buffer is written and read by kernels on a
//! stream of their own, which the backend has to order: a buffer that is read too early holds other numbers.
//! [`abilities`] and [`on_cluster`] are for connectors of ranks with such memory.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use burn::prelude::*;
use burn::tensor::{DType, TensorData, bf16, f16};
use everburn_distributed::{Abilities, Connector, DeviceMemory, Lent, NcclWait};
use everburn_nccl::DeviceBuffer;
use everburn_nccl_fake::{ComputeStream, FakeCluster, Number};

/// How long a kernel of the stand-in is waited for: longer than any test.
const PATIENCE: Duration = Duration::from_secs(120);

/// The memory of one rank of a [`FakeCluster`], for tensors of the processor.
///
/// ```
/// use std::sync::Arc;
/// use burn::prelude::*;
/// use everburn_distributed::DeviceMemory;
/// use everburn_distributed_fake::FakeMemory;
/// use everburn_nccl_fake::FakeCluster;
///
/// let memory = FakeMemory::new(Arc::new(FakeCluster::new(1)), 0);
/// let lent = memory.lend(Tensor::<1>::from_floats([1.0, 2.0], &Device::flex()))?;
/// assert_eq!(lent.buffer().len(), 2);
/// let back = memory.take_back(lent)?;
/// assert_eq!(back.into_data().to_vec::<f32>().unwrap(), [1.0, 2.0]);
/// # Ok::<(), String>(())
/// ```
pub struct FakeMemory {
    cluster: Arc<FakeCluster>,
    rank: usize,
    compute: ComputeStream,
}

impl FakeMemory {
    /// That of rank `rank`.
    #[must_use]
    pub fn new(cluster: Arc<FakeCluster>, rank: usize) -> Self {
        let compute = cluster.compute_stream(rank);
        Self {
            cluster,
            rank,
            compute,
        }
    }

    /// The stream on which the rank computes: a test can keep it busy.
    #[must_use]
    pub fn compute_stream(&self) -> ComputeStream {
        self.compute
    }

    fn put<T: Number + burn::tensor::Element>(
        &self,
        data: &TensorData,
    ) -> Result<DeviceBuffer, String> {
        let numbers = data.as_slice::<T>().map_err(|error| format!("{error:?}"))?;
        let nothing = vec![T::narrow(f64::NAN); numbers.len()];
        let buffer = self.cluster.allocate(self.rank, &nothing);
        let write = self.cluster.writer(&buffer, numbers);
        self.cluster.launch(self.rank, self.compute, write);
        Ok(buffer)
    }

    fn get<T: Number + burn::tensor::Element>(
        &self,
        buffer: &DeviceBuffer,
    ) -> Result<TensorData, String> {
        let copy = self
            .cluster
            .allocate(self.rank, &vec![T::narrow(0.0); buffer.len()]);
        let read = self.cluster.copier(buffer, &copy);
        self.cluster.launch(self.rank, self.compute, read);
        self.wait()?;
        let numbers = self.cluster.read::<T>(&copy);
        Ok(TensorData::new(numbers, [buffer.len()]))
    }

    /// Waits until the stream has come to here.
    fn wait(&self) -> Result<(), String> {
        let (over, ended) = mpsc::channel();
        self.cluster.launch(self.rank, self.compute, move || {
            // A test that has ended does not wait any more.
            let _ = over.send(());
        });
        let ended = ended.recv_timeout(PATIENCE);
        ended.map_err(|_| format!("the stand-in for GPU {} does not go on", self.rank))
    }
}

/// What is needed to give a tensor back.
struct Kept {
    device: Device,
    dtype: DType,
}

impl DeviceMemory for FakeMemory {
    fn lend(&self, numbers: Tensor<1>) -> Result<Lent, String> {
        let (device, dtype) = (numbers.device(), numbers.dtype());
        let data = numbers.try_into_data().map_err(|error| error.to_string())?;
        let buffer = match dtype {
            DType::F32 => self.put::<f32>(&data),
            DType::F64 => self.put::<f64>(&data),
            DType::F16 => self.put::<f16>(&data),
            DType::BF16 => self.put::<bf16>(&data),
            other => Err(format!("the stand-in has no numbers of type {other:?}")),
        };
        Ok(Lent::new(buffer?, Kept { device, dtype }))
    }

    fn take_back(&self, lent: Lent) -> Result<Tensor<1>, String> {
        let buffer = lent.buffer().clone();
        let Kept { device, dtype } = lent.into_kept()?;
        let data = match dtype {
            DType::F64 => self.get::<f64>(&buffer),
            DType::F16 => self.get::<f16>(&buffer),
            DType::BF16 => self.get::<bf16>(&buffer),
            _ => self.get::<f32>(&buffer),
        };
        Ok(Tensor::from_data(data?, (&device, dtype)))
    }

    fn synchronize(&self, _device: &Device) -> Result<(), String> {
        self.wait()
    }
}

impl fmt::Debug for FakeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeMemory")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

/// Those of a rank with a GPU of its own.
#[must_use]
pub fn abilities(rank: usize) -> Abilities {
    Abilities {
        device: format!("cuda:{rank}"),
        gpu: Some(format!("FAKE-{rank}")),
        nccl: Ok("2.21.5".to_string()),
        keeps_to_host: None,
    }
}

/// `connector` with the NCCL, and on the GPU, of rank `rank` of `cluster`.
#[must_use]
pub fn on_cluster(
    connector: Connector,
    cluster: &Arc<FakeCluster>,
    rank: usize,
    waits: NcclWait,
) -> Connector {
    let memory = Arc::new(FakeMemory::new(cluster.clone(), rank));
    let gpu = cluster.gpu(rank);
    connector.with_nccl(move || Ok(gpu.clone()), memory, waits)
}
