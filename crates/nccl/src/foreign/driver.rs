//! The driver's library: which GPUs there are.

#![expect(unsafe_code, reason = "the GPU's driver is a library of C")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::PathBuf;
use std::ptr;

#[cfg(feature = "group")]
use super::context;
use super::dynamic::{Opened, functions};
use crate::error::LibraryError;
use crate::library_paths::find_library;
use crate::version::CudaVersion;

const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

const SUCCESS: c_int = 0;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `.._MINOR`.
const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];

/// The longest name of a GPU that is read, in bytes; the real ones have 30.
const NAME_BYTES: usize = 256;

functions! {
    DeviceFunctions {
        init: fn(c_uint) -> c_int = "cuInit";
        version: fn(*mut c_int) -> c_int = "cuDriverGetVersion";
        error_name: fn(c_int, *mut *const c_char) -> c_int = "cuGetErrorName";
        count: fn(*mut c_int) -> c_int = "cuDeviceGetCount";
        device: fn(*mut c_int, c_int) -> c_int = "cuDeviceGet";
        name: fn(*mut c_char, c_int, c_int) -> c_int = "cuDeviceGetName";
        memory: fn(*mut usize, c_int) -> c_int = "cuDeviceTotalMem_v2";
        attribute: fn(*mut c_int, c_int, c_int) -> c_int = "cuDeviceGetAttribute";
        uuid: fn(*mut [u8; 16], c_int) -> c_int = "cuDeviceGetUuid_v2";
    }
}

/// The driver, opened and initialised.
pub(crate) struct Driver {
    functions: DeviceFunctions,
    #[cfg(feature = "group")]
    pub(super) contexts: context::Functions,
    #[cfg(feature = "group")]
    pub(super) order: Option<context::OrderFunctions>,
}

/// A GPU as the driver numbers it: `CUdevice`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device(pub(super) c_int);

impl Driver {
    pub(crate) fn load() -> Result<Self, LibraryError> {
        // Beside the folders that the loader knows there are those of containers and of WSL.
        let names = NAMES.map(PathBuf::from).into_iter();
        let opened = Opened::first(names.chain(find_library(NAMES[0]))).map_err(|tried| {
            LibraryError::NoDriver {
                reason: tried.join("; "),
            }
        })?;
        let missing = |symbol| LibraryError::Symbol {
            path: opened.path.clone(),
            symbol,
        };
        let driver = Self {
            functions: DeviceFunctions::load(&opened).map_err(missing)?,
            #[cfg(feature = "group")]
            contexts: context::Functions::load(&opened).map_err(missing)?,
            #[cfg(feature = "group")]
            order: context::OrderFunctions::load(&opened).ok(),
        };
        // SAFETY: 0 is the only flag that there is.
        driver.check("cuInit", unsafe { (driver.functions.init)(0) })?;
        Ok(driver)
    }

    /// The newest CUDA that the driver can do.
    pub(crate) fn version(&self) -> Result<CudaVersion, LibraryError> {
        let mut code = 0;
        // SAFETY: the pointer is to an `int` of this frame.
        let result = unsafe { (self.functions.version)(&mut code) };
        self.check("cuDriverGetVersion", result)?;
        Ok(CudaVersion::from_code(u32::try_from(code).unwrap_or(0)))
    }

    pub(crate) fn count(&self) -> Result<usize, LibraryError> {
        let mut count = 0;
        // SAFETY: the pointer is to an `int` of this frame.
        let result = unsafe { (self.functions.count)(&mut count) };
        self.check("cuDeviceGetCount", result)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The GPU with this number among those that this process may see.
    pub(crate) fn device(&self, number: usize) -> Result<Device, LibraryError> {
        let count = self.count()?;
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        if count == 0 {
            return Err(LibraryError::NoGpu { visible });
        }
        let ordinal = c_int::try_from(number).ok().filter(|_| number < count);
        let ordinal = ordinal.ok_or(LibraryError::NoSuchGpu {
            device: number,
            count,
            visible,
        })?;
        let mut device = 0;
        // SAFETY: the pointer is to a `CUdevice`, an `int`, of this frame.
        let result = unsafe { (self.functions.device)(&mut device, ordinal) };
        self.check("cuDeviceGet", result)?;
        Ok(Device(device))
    }

    pub(crate) fn name(&self, device: Device) -> Result<String, LibraryError> {
        let mut name = [0 as c_char; NAME_BYTES];
        // One byte less, so that the last one ends the text whatever the driver does.
        let room = c_int::try_from(NAME_BYTES - 1).unwrap_or(0);
        // SAFETY: the driver writes at most `room` bytes, of which there are more.
        let result = unsafe { (self.functions.name)(name.as_mut_ptr(), room, device.0) };
        self.check("cuDeviceGetName", result)?;
        // SAFETY: the last byte of the array is still zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(name.to_string_lossy().into_owned())
    }

    pub(crate) fn memory(&self, device: Device) -> Result<u64, LibraryError> {
        let mut bytes = 0;
        // SAFETY: the pointer is to a `size_t` of this frame.
        let result = unsafe { (self.functions.memory)(&mut bytes, device.0) };
        self.check("cuDeviceTotalMem", result)?;
        Ok(bytes as u64)
    }

    pub(crate) fn compute_capability(&self, device: Device) -> Result<(u32, u32), LibraryError> {
        let mut values = [0; 2];
        for (value, attribute) in values.iter_mut().zip(COMPUTE_CAPABILITY) {
            // SAFETY: the pointer is to an `int` of this frame.
            let result = unsafe { (self.functions.attribute)(value, attribute, device.0) };
            self.check("cuDeviceGetAttribute", result)?;
        }
        let [major, minor] = values.map(|value| u32::try_from(value).unwrap_or(0));
        Ok((major, minor))
    }

    /// What tells this GPU from all others in the world, as `nvidia-smi -L` writes it.
    pub(crate) fn uuid(&self, device: Device) -> Result<String, LibraryError> {
        let mut bytes = [0; 16];
        // SAFETY: the pointer is to sixteen bytes of this frame, which are a `CUuuid`.
        let result = unsafe { (self.functions.uuid)(&mut bytes, device.0) };
        self.check("cuDeviceGetUuid", result)?;
        Ok(uuid_text(bytes))
    }

    /// The error of a call that has not succeeded.
    pub(super) fn check(&self, call: &'static str, result: c_int) -> Result<(), LibraryError> {
        if result == SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: the pointer is to a pointer of this frame, which the call sets to a text of the
        // driver's own, or to null.
        let known = unsafe { (self.functions.error_name)(result, &mut name) } == SUCCESS;
        let name = match known && !name.is_null() {
            // SAFETY: as above; such texts are constants.
            true => unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned(),
            false => "an unknown error".to_owned(),
        };
        Err(LibraryError::Driver {
            call,
            name,
            code: result,
        })
    }
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (index, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_as_nvidia_smi_names_it() {
        let bytes = std::array::from_fn(|index| u8::try_from(index * 17).unwrap());
        assert_eq!(uuid_text(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
