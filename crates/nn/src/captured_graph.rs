//! Work on a GPU, captured once as a graph and replayed as one launch.
//!
//! A step of a small model is hundreds of kernels, each of which the host takes longer to launch than the GPU to
//! run. CUDA can record what is launched on a stream as a graph, and launch all of it at once; CubeCL and Burn hand
//! that through ([`Backend::graph_start_capture`] and its companions). What is recorded is launches with their
//! addresses and numbers, not operations: a replay reads and writes the memory of the recording, whatever tensors
//! have been given names since.

#![expect(
    unsafe_code,
    reason = "a replay works on memory that the recording has named"
)]

use std::marker::PhantomData;

use burn::backend::{Backend, Dispatch, DispatchGraph, ExecutionError};
use burn::prelude::*;

/// Why work could not be recorded, or replayed.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::CapturedGraph;
///
/// let error = CapturedGraph::capture(&Device::flex(), || ()).err().unwrap();
/// assert!(error.to_string().starts_with("opening the recording failed"), "{error}");
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[error("{step} failed: {reason}")]
pub struct CaptureError {
    /// What was being done.
    pub step: &'static str,
    /// What the device says.
    pub reason: String,
}

impl CaptureError {
    fn at(step: &'static str) -> impl Fn(ExecutionError) -> Self {
        move |error| Self {
            step,
            reason: error.to_string(),
        }
    }
}

/// Work that a device has captured as a graph, with what it yielded: tensors whose memory each replay writes anew.
///
/// The work must always launch the same: it must not depend on numbers of the device, read any, or draw random
/// ones (they would be the same in each replay). Tensors that it reads from outside have to keep their memory, and
/// be written in place to give it other numbers. It is replayed by the thread that has recorded it, whose order of
/// work on the device it keeps.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::CapturedGraph;
///
/// let device = Device::flex(); // `Device::cuda(0)` on a machine with a GPU
/// let numbers = Tensor::<1>::ones([4], &device);
/// match CapturedGraph::capture(&device, || numbers.clone() * 2) {
///     Ok(mut graph) => {
///         graph.replay().unwrap();
///         assert_eq!(graph.yielded().clone().sum().into_scalar::<f32>(), 8.0);
///     }
///     Err(error) => println!("{error}"), // the processor records nothing
/// }
/// ```
pub struct CapturedGraph<T> {
    graph: DispatchGraph,
    device: Device,
    yielded: T,
    /// A replay comes after what its thread has asked of the device before, and no other thread's.
    of_its_thread: PhantomData<*const ()>,
}

impl<T> CapturedGraph<T> {
    /// Runs `work` twice, so that its kernels are compiled and tuned and its memory is there, then records it.
    ///
    /// No other thread may take memory of the device, or of the host for it, while it is recorded: CUDA then gives
    /// the recording up.
    ///
    /// # Errors
    /// [`CaptureError`] where the device records nothing, or `work` does what cannot be recorded: it waits for
    /// the device, reads from it, takes memory that the runs before have not taken, or is tuned while it runs.
    pub fn capture(device: &Device, work: impl Fn() -> T) -> Result<Self, CaptureError> {
        let device = device.clone().inner();
        let place = device.as_dispatch();
        drop(work());
        device.sync().map_err(CaptureError::at("the first run"))?;
        Dispatch::graph_prepare(place).map_err(CaptureError::at("preparing to record"))?;
        drop(work());
        device.sync().map_err(CaptureError::at("the second run"))?;
        let opened = Dispatch::graph_start_capture(place);
        opened.map_err(CaptureError::at("opening the recording"))?;
        // Closed however the work ends: a stream that still records would record all that comes.
        let mut open = Open {
            device: &device,
            is_open: true,
        };
        let yielded = work();
        let graph = open
            .close()
            .map_err(CaptureError::at("closing the recording"))?;
        drop(open);
        Ok(Self {
            graph,
            device,
            yielded,
            of_its_thread: PhantomData,
        })
    }

    /// Does the recorded work once more, after all that this thread has asked of the device; does not wait for it.
    ///
    /// # Errors
    /// [`CaptureError`] if the device refuses.
    pub fn replay(&mut self) -> Result<(), CaptureError> {
        // SAFETY: the memory that the launches read and write is guarded by the graph for as long as it lives
        // (`Graph::_guards` in cubecl-server: no page of it is freed, moved or handed out), and `self` has the
        // graph. The thread is the one that recorded, since `Self` is not `Send`, so the replay is ordered after
        // what that has asked for; `&mut self` keeps it from being replayed while `yielded` is borrowed, and
        // clones of what was yielded are read after the replay by the same order or, on another thread, after
        // an event that CubeCL puts between streams.
        let replayed = unsafe { Dispatch::graph_replay(self.device.as_dispatch(), &self.graph) };
        replayed.map_err(CaptureError::at("replaying"))
    }

    /// What the work yields, as the newest replay has written it; before the first, nothing has.
    pub fn yielded(&self) -> &T {
        &self.yielded
    }
}

/// A recording that has begun.
struct Open<'a> {
    device: &'a Device,
    is_open: bool,
}

impl Open<'_> {
    fn close(&mut self) -> Result<DispatchGraph, ExecutionError> {
        self.is_open = false;
        Dispatch::graph_stop_capture(self.device.as_dispatch())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // The work has panicked: that is the error to be heard of.
            let _ = self.close();
        }
    }
}
