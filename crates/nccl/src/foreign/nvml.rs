//! NVML: what the driver's library does not report without a context on the GPU.

#![expect(unsafe_code, reason = "NVML is a library of C")]

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

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `NVML_TEMPERATURE_GPU`.
const OF_THE_CHIP: c_uint = 0;

functions! {
    Functions {
        init: fn() -> c_int = "nvmlInit_v2";
        shutdown: fn() -> c_int = "nvmlShutdown";
        driver_version: fn(*mut c_char, c_uint) -> c_int = "nvmlSystemGetDriverVersion";
        by_uuid: fn(*const c_char, *mut *mut c_void) -> c_int = "nvmlDeviceGetHandleByUUID";
        memory: fn(*mut c_void, *mut Memory) -> c_int = "nvmlDeviceGetMemoryInfo";
        utilization: fn(*mut c_void, *mut Utilization) -> c_int = "nvmlDeviceGetUtilizationRates";
        temperature: fn(*mut c_void, c_uint, *mut c_uint) -> c_int = "nvmlDeviceGetTemperature";
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

    /// NVML's handle of a GPU, which is good for as long as NVML is.
    fn device(&self, uuid: &str) -> Option<*mut c_void> {
        let uuid = CString::new(uuid).ok()?;
        let mut device = ptr::null_mut();
        // SAFETY: a text that ends with zero, and a pointer to a handle of this frame.
        let result = unsafe { (self.functions.by_uuid)(uuid.as_ptr(), &mut device) };
        (result == SUCCESS).then_some(device)
    }

    /// How many bytes of this GPU's memory nobody has.
    pub(crate) fn free_memory(&self, uuid: &str) -> Option<u64> {
        self.all_and_free_memory(uuid).map(|(_, free)| free)
    }

    /// How many bytes of memory this GPU has, and how many nobody has.
    pub(crate) fn all_and_free_memory(&self, uuid: &str) -> Option<(u64, u64)> {
        let device = self.device(uuid)?;
        let mut memory = Memory::default();
        // SAFETY: NVML has just given the handle; the pointer is to an `nvmlMemory_t` of this frame.
        let result = unsafe { (self.functions.memory)(device, &mut memory) };
        let known = result == SUCCESS && memory.free <= memory.total;
        known.then_some((memory.total, memory.free))
    }

    /// For which share of the time a kernel ran on this GPU lately, in per cent.
    pub(crate) fn utilization(&self, uuid: &str) -> Option<u32> {
        let device = self.device(uuid)?;
        let mut rates = Utilization::default();
        // SAFETY: NVML has just given the handle; the pointer is to an `nvmlUtilization_t` of this frame.
        let result = unsafe { (self.functions.utilization)(device, &mut rates) };
        (result == SUCCESS && rates.gpu <= 100).then_some(rates.gpu)
    }

    /// How warm this GPU is, in degrees Celsius.
    pub(crate) fn temperature(&self, uuid: &str) -> Option<u32> {
        let device = self.device(uuid)?;
        let mut celsius = 0;
        // SAFETY: NVML has just given the handle; the pointer is to a number of this frame.
        let result = unsafe { (self.functions.temperature)(device, OF_THE_CHIP, &mut celsius) };
        (result == SUCCESS).then_some(celsius)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it was initialised once by `load`. What it answers changes nothing any more.
        unsafe { (self.functions.shutdown)() };
    }
}
