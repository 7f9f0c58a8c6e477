//! Memory of a memfd: made, sealed, and opened from another process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use everburn_record::proc;
use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals,
    fcntl_get_seals, fstat, ftruncate, memfd_create, open as open_file, stat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use super::SegmentError;
use super::header::HEADER_BYTES;
use super::layout::Layout;
use super::memory::Memory;
use super::segment::Nonce;

/// What a rank that opens the memory relies on: it keeps its length, and that stays so.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// The creator's open descriptor, by which others find the memory.
#[derive(Debug)]
pub(super) struct Descriptor(OwnedFd);

impl Descriptor {
    pub(super) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Makes, fills, seals and maps it.
pub(super) fn create(layout: &Layout, nonce: &Nonce) -> Result<(Memory, Descriptor), SegmentError> {
    let bytes = layout.bytes;
    let refuse = |step, error| refused(bytes, step, error);
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < bytes as u64) {
        // Found before the kernel does, which would send SIGXFSZ.
        return Err(refuse("sized", Errno::FBIG));
    }
    if proc::available_memory().is_some_and(|free| free < bytes as u64) {
        // Found before the kernel does, which would end some process to make room.
        return Err(refuse("allocated", Errno::NOMEM));
    }
    let file = new_memfd().map_err(|error| refuse("created", error))?;
    ftruncate(&file, bytes as u64).map_err(|error| refuse("sized", error))?;
    // All pages now: when memory is short this is an error, a touch later would be a SIGBUS.
    retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, bytes as u64))
        .map_err(|error| refuse("allocated", error))?;
    let header = layout.header(nonce);
    let written = retry_on_intr(|| pwrite(&file, &header, 0));
    match written.map_err(|error| refuse("written", error))? {
        HEADER_BYTES => {}
        _ => return Err(refuse("written", Errno::IO)),
    }
    fcntl_add_seals(&file, SEALS).map_err(|error| refuse("sealed", error))?;
    let memory = Memory::map(file.as_fd(), layout).map_err(|error| refuse("mapped", error))?;
    Ok((memory, Descriptor(file)))
}

fn new_memfd() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Systems that allow memfds only without the right to execute want it said; kernels before
    // 6.3 do not know how.
    match memfd_create("everburn", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("everburn", flags),
        made => made,
    }
}

fn refused(bytes: usize, step: &'static str, error: Errno) -> SegmentError {
    let advice = match error {
        Errno::NOSYS => return SegmentError::Unavailable,
        Errno::NOMEM | Errno::NOSPC | Errno::DQUOT => {
            "this machine or container has too little free memory: use fewer ranks, smaller \
             rings, or TCP"
        }
        Errno::MFILE | Errno::NFILE => "too many files are open: raise `ulimit -n`",
        Errno::FBIG => "the limit of file sizes is lower: raise `ulimit -f`",
        Errno::PERM | Errno::ACCESS => {
            "this system or container forbids memfd: allow it, or use TCP"
        }
        _ => "use TCP if it stays so",
    };
    SegmentError::Create {
        bytes,
        step,
        advice,
        source: error.into(),
    }
}

/// Opens what process `pid` holds as `descriptor`, checks all of it, and maps it.
pub(super) fn open(
    pid: u32,
    descriptor: i32,
    nonce: &Nonce,
) -> Result<(Memory, Layout), SegmentError> {
    let unreachable = |step, error: Errno| SegmentError::Unreachable {
        pid,
        descriptor,
        step,
        meaning: meaning(pid, error),
        source: error.into(),
    };
    let foreign = |what: String| SegmentError::Foreign {
        pid,
        descriptor,
        what,
    };
    let path = format!("/proc/{pid}/fd/{descriptor}");
    let found = stat(&path).map_err(|error| unreachable("found", error))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        // Not opened at all: to open a device or a pipe may wait or have effects.
        return Err(foreign("it is no memory".to_owned()));
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file =
        open_file(&path, flags, Mode::empty()).map_err(|error| unreachable("opened", error))?;
    let seals = fcntl_get_seals(&file)
        .map_err(|error| foreign(format!("it is no memfd ({})", io::Error::from(error))))?;
    if !seals.contains(SEALS) {
        return Err(foreign("it is not sealed against being cut".to_owned()));
    }
    let found = fstat(&file).map_err(|error| unreachable("examined", error))?;
    let header = read_header(&file).map_err(|error| unreachable("read", error))?;
    let header = header.ok_or_else(|| foreign("it is too short".to_owned()))?;
    let layout = Layout::from_header(&header, nonce).map_err(foreign)?;
    if u64::try_from(found.st_size) != Ok(layout.bytes as u64) {
        let (has, needs) = (found.st_size, layout.bytes);
        return Err(foreign(format!("it has {has} bytes and needs {needs}")));
    }
    let memory =
        Memory::map(file.as_fd(), &layout).map_err(|error| unreachable("mapped", error))?;
    Ok((memory, layout))
}

fn read_header(file: &OwnedFd) -> rustix::io::Result<Option<[u8; HEADER_BYTES]>> {
    let mut header = [0; HEADER_BYTES];
    let count = retry_on_intr(|| pread(file, &mut header, 0))?;
    Ok((count == HEADER_BYTES).then_some(header))
}

/// What it usually means that a descriptor of another process cannot be opened.
fn meaning(pid: u32, error: Errno) -> &'static str {
    match error {
        Errno::NOENT if !Path::new("/proc/self").exists() => "/proc is not mounted here",
        Errno::NOENT if !Path::new(&format!("/proc/{pid}")).exists() => {
            "there is no such process here: the rank has ended, or the ranks are in different PID \
             namespaces (containers), which must share one (`--pid=host`) or use TCP"
        }
        Errno::NOENT => {
            "the process has no such descriptor: the ranks are probably in different PID \
             namespaces (containers), where the same number is another process"
        }
        Errno::ACCESS | Errno::PERM => {
            "the other rank runs as another user, or a container or security module forbids it: \
             run all ranks of a machine as one user, or use TCP"
        }
        Errno::MFILE | Errno::NFILE => "too many files are open: raise `ulimit -n`",
        Errno::NOMEM => "this machine or container has too little free memory",
        _ => "use TCP if it stays so",
    }
}
