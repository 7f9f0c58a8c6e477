//! What [`NcclBackend`](crate::NcclBackend) asks of NCCL and of its GPU, as a trait: of the library and the driver
//! ([`Library::on_gpu`](crate::Library::on_gpu)), or of anything that behaves alike, such as a stand-in for tests.
//!
//! Handles belong to the [`NcclApi`] that made them. A backend gives them to no other.

use std::fmt;

pub use crate::backend::Operation;
use crate::backend::Status;
use crate::error::LibraryError;
use crate::version::NcclVersion;

/// The calls of NCCL and of one GPU that a backend makes.
///
/// Communicators do not block: what waits for other ranks answers [`Status::InProgress`], and
/// [`NcclApi::async_error`] says when it is over. Calls return soon, except for [`NcclApi::abort`] and
/// [`NcclApi::destroy`].
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::api::NcclApi;
///
/// /// What a log says of a rank's GPU.
/// fn describe(api: &dyn NcclApi) -> String {
///     format!("GPU {} with NCCL {}", api.gpu(), api.version())
/// }
/// ```
pub trait NcclApi: Send + Sync {
    /// NCCL's version; all ranks of a group have the same.
    fn version(&self) -> NcclVersion;

    /// An identifier of the GPU, unique over all machines.
    fn gpu(&self) -> String;

    /// `ncclGetUniqueId`.
    ///
    /// # Errors
    /// NCCL's answer.
    fn unique_id(&self) -> Result<UniqueId, Status>;

    /// `ncclCommInitRankConfig`: begins to connect this rank with the others of `id`. A call that fails
    /// at once yields no communicator.
    fn init(&self, id: &UniqueId, rank: usize, world_size: usize)
    -> (Option<Communicator>, Status);

    /// `ncclCommGetAsyncError`: the communicator's state by now.
    fn async_error(&self, communicator: &Communicator) -> Status;

    /// `ncclGetLastError`: the last error in NCCL's own words, or nothing.
    fn last_error(&self) -> String;

    /// `ncclCommFinalize`.
    fn finalize(&self, communicator: &Communicator) -> Status;

    /// `ncclCommDestroy`.
    fn destroy(&self, communicator: Communicator) -> Status;

    /// `ncclCommAbort`: its kernels leave the GPU.
    fn abort(&self, communicator: Communicator) -> Status;

    /// Puts `operation` on `stream`.
    fn enqueue(
        &self,
        communicator: &Communicator,
        operation: &Operation,
        stream: &Stream,
    ) -> Status;

    /// A new stream.
    ///
    /// # Errors
    /// The driver's answer, as for all that follow.
    fn create_stream(&self) -> Result<Stream, LibraryError>;

    /// What is on the stream is still done.
    fn destroy_stream(&self, stream: Stream);

    /// A new event.
    ///
    /// # Errors
    /// The driver's answer.
    fn create_event(&self) -> Result<Event, LibraryError>;

    /// Gives the event back.
    fn destroy_event(&self, event: Event);

    /// `event` is over when all that is on `stream` by now is.
    ///
    /// # Errors
    /// The driver's answer.
    fn record(&self, event: &Event, stream: &Stream) -> Result<(), LibraryError>;

    /// What is put on `stream` from now on waits for `event`.
    ///
    /// # Errors
    /// The driver's answer.
    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), LibraryError>;

    /// Whether `event` is over.
    ///
    /// # Errors
    /// The driver's answer.
    fn query(&self, event: &Event) -> Result<bool, LibraryError>;

    /// Whether the next two exist: with drivers of CUDA 12.5 and later, not with HIP.
    fn orders_all(&self) -> bool;

    /// As [`NcclApi::record`], of all streams of this process on the GPU.
    ///
    /// # Errors
    /// The driver's answer.
    fn record_all(&self, event: &Event) -> Result<(), LibraryError>;

    /// As [`NcclApi::wait`], of all streams of this process on the GPU.
    ///
    /// # Errors
    /// The driver's answer.
    fn wait_all(&self, event: &Event) -> Result<(), LibraryError>;
}

/// `ncclUniqueId`: by which the ranks of a communicator find each other. Any process that has it can join.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::api::UniqueId;
///
/// let id = UniqueId::new([7; UniqueId::BYTES]);
/// assert_eq!(id.bytes(), &[7; 128]);
/// assert_eq!(format!("{id:?}"), "UniqueId(..)");
/// ```
// In memory as NCCL has it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; UniqueId::BYTES]);

impl UniqueId {
    /// `NCCL_UNIQUE_ID_BYTES`.
    pub const BYTES: usize = 128;

    /// The id of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

/// A communicator that has not been destroyed or aborted, since both take it away.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// assert_eq!(everburn::nccl::api::Communicator::new(7).handle(), 7);
/// ```
#[derive(Debug)]
pub struct Communicator(usize);

/// A stream of the GPU that has not been destroyed.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// assert_eq!(everburn::nccl::api::Stream::new(7).handle(), 7);
/// ```
#[derive(Debug)]
pub struct Stream(usize);

/// An event of the GPU that has not been destroyed.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// assert_eq!(everburn::nccl::api::Event::new(7).handle(), 7);
/// ```
#[derive(Debug)]
pub struct Event(usize);

macro_rules! handles {
    ($($name:ident)*) => {
        $(impl $name {
            /// With this handle of the [`NcclApi`] that makes it.
            #[must_use]
            pub const fn new(handle: usize) -> Self {
                Self(handle)
            }

            /// The handle.
            #[must_use]
            pub const fn handle(&self) -> usize {
                self.0
            }
        })*
    };
}

handles! { Communicator Stream Event }
