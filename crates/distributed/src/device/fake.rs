//! A stand-in for the memory of GPUs, for tests: tensors of the processor, lent to NCCL's stand-in.
//!
//! As on a GPU, what writes a row and what reads it are kernels on a stream of their own, which the group
//! has to order: a row that is read too early holds other numbers.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use burn::prelude::*;
use burn::tensor::{DType, TensorData, bf16, f16};
use everburn_nccl::DeviceBuffer;
use everburn_nccl::fake::{ComputeStream, FakeCluster, Number};

use super::exchange::{DeviceMemory, Lent};

/// How long a kernel of the stand-in is waited for: longer than any test.
const PATIENCE: Duration = Duration::from_secs(120);

/// The memory of one rank of a [`FakeCluster`], for tensors of the processor.
///
/// See [`NcclExchange`](crate::NcclExchange) for an example.
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

/// What is needed to give a row back.
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
