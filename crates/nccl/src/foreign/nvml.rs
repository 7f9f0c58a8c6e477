//! NVML: what the driver's library does not tell without a context on the GPU.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr;

use super::dynamic::{Opened, functions};

const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

const SUCCESS: c_int = 0;

/// `NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE`.
const VERSION_BYTES: usize = 80;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

functions! {
    Functions {
        init: fn() -> c_int = "nvmlInit_v2";
        shutdown: fn() -> c_int = "nvmlShutdown";
        driver_version: fn(*mut c_char, c_uint) -> c_int = "nvmlSystemGetDriverVersion";
        by_uuid: fn(*const c_char, *mut *mut c_void) -> c_int = "nvmlDeviceGetHandleByUUID";
        memory: fn(*mut c_void, *mut Memory) -> c_int = "nvmlDeviceGetMemoryInfo";
    }
}

/// NVML, opened and initialised. What it does not know is absent, and no error: nothing depends on
/// it.
pub(crate) struct Nvml {
    functions: Functions,
}

impl Nvml {
    pub(crate) fn load() -> Option<Self> {
        let opened = Opened::first(NAMES.map(PathBuf::from)).ok()?;
        let functions = Functions::load(&opened).ok()?;
        // SAFETY: it takes nothing; each success is undone by one shutdown, in `drop`.
        let result = unsafe { (functions.init)() };
        (result == SUCCESS).then_some(Self { functions })
    }

    /// Such as `580.159.03`.
    pub(crate) fn driver_version(&self) -> Option<String> {
        let mut text = [0 as c_char; VERSION_BYTES];
        let room = c_uint::try_from(VERSION_BYTES - 1).unwrap_or(0);
        // SAFETY: NVML writes at most `room` bytes, of which there are more.
        let result = unsafe { (self.functions.driver_version)(text.as_mut_ptr(), room) };
        // SAFETY: the last byte of the array is still zero.
        let version = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
        (result == SUCCESS && !version.is_empty()).then(|| version.into_owned())
    }

    /// How many bytes of this GPU's memory nobody has.
    pub(crate) fn free_memory(&self, uuid: &str) -> Option<u64> {
        let uuid = CString::new(uuid).ok()?;
        let mut device = ptr::null_mut();
        // SAFETY: a text that ends with zero, and a pointer to a handle of this frame.
        let result = unsafe { (self.functions.by_uuid)(uuid.as_ptr(), &mut device) };
        if result != SUCCESS {
            return None;
        }
        let mut memory = Memory::default();
        // SAFETY: NVML has just given the handle; the pointer is to an `nvmlMemory_t` of this frame.
        let result = unsafe { (self.functions.memory)(device, &mut memory) };
        (result == SUCCESS && memory.free <= memory.total).then_some(memory.free)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it was initialised once by `load`. What it answers changes nothing any more.
        unsafe { (self.functions.shutdown)() };
    }
}
