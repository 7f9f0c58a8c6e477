//! The driver's library, CUDA's or HIP's: which GPUs there are.

#![expect(unsafe_code, reason = "the GPU's driver is a library of C")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::PathBuf;
use std::ptr;

#[cfg(feature = "backend")]
use super::context;
use super::dynamic::{Named, Opened, functions_of_both};
use crate::error::LibraryError;
use crate::library_paths::find_library;
use crate::vendor::Vendor;
use crate::version::CudaVersion;

const SUCCESS: c_int = 0;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `.._MINOR`.
const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];

/// The longest text of the driver that is read, in bytes: names of GPUs have 30.
const TEXT_BYTES: usize = 256;

functions_of_both! {
    DeviceFunctions {
        init: fn(c_uint) -> c_int = "cuInit" | "hipInit";
        version: fn(*mut c_int) -> c_int = "cuDriverGetVersion" | "hipDriverGetVersion";
        error_name: fn(c_int, *mut *const c_char) -> c_int = "cuGetErrorName" | "hipDrvGetErrorName";
        count: fn(*mut c_int) -> c_int = "cuDeviceGetCount" | "hipGetDeviceCount";
        device: fn(*mut c_int, c_int) -> c_int = "cuDeviceGet" | "hipDeviceGet";
        name: fn(*mut c_char, c_int, c_int) -> c_int = "cuDeviceGetName" | "hipDeviceGetName";
        memory: fn(*mut usize, c_int) -> c_int = "cuDeviceTotalMem_v2" | "hipDeviceTotalMem";
        attribute: fn(*mut c_int, c_int, c_int) -> c_int = "cuDeviceGetAttribute" | "hipDeviceGetAttribute";
        uuid: fn(*mut [u8; 16], c_int) -> c_int = "cuDeviceGetUuid_v2" | "hipDeviceGetUuid";
        address: fn(*mut c_char, c_int, c_int) -> c_int = "cuDeviceGetPCIBusId" | "hipDeviceGetPCIBusId";
    }
}

/// The driver, opened and initialised.
pub(crate) struct Driver {
    vendor: Vendor,
    functions: DeviceFunctions,
    #[cfg(feature = "backend")]
    pub(super) contexts: context::Functions,
    #[cfg(feature = "backend")]
    pub(super) selection: context::Selection,
    #[cfg(feature = "backend")]
    pub(super) order: Option<context::OrderFunctions>,
}

/// A GPU as the driver numbers it: `CUdevice`, `hipDevice_t`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device(pub(super) c_int);

impl Driver {
    pub(crate) fn load(vendor: Vendor) -> Result<Self, LibraryError> {
        // Beside the folders that the loader knows there are those of containers, of WSL and of ROCm.
        let files = vendor.driver_files();
        let names = files.iter().map(PathBuf::from);
        let opened = Opened::first(names.chain(find_library(files[0]))).map_err(|tried| {
            LibraryError::NoDriver {
                vendor,
                reason: tried.join("; "),
            }
        })?;
        let missing = |symbol| LibraryError::Symbol {
            path: opened.path.clone(),
            symbol,
        };
        let driver = Self {
            vendor,
            functions: DeviceFunctions::load(vendor, &opened).map_err(missing)?,
            #[cfg(feature = "backend")]
            contexts: context::Functions::load(vendor, &opened).map_err(missing)?,
            #[cfg(feature = "backend")]
            selection: context::Selection::load(vendor, &opened).map_err(missing)?,
            #[cfg(feature = "backend")]
            order: context::OrderFunctions::load(&opened).ok(),
        };
        let init = driver.functions.init;
        // SAFETY: 0 is the only flag that there is.
        driver.check(init.name, unsafe { (init.call)(0) })?;
        Ok(driver)
    }

    /// The newest CUDA that the driver can do.
    pub(crate) fn version(&self) -> Result<CudaVersion, LibraryError> {
        let mut code = 0;
        // SAFETY: the pointer is to an `int` of this frame.
        let result = unsafe { (self.functions.version.call)(&mut code) };
        self.check(self.functions.version.name, result)?;
        Ok(CudaVersion::from_code(u32::try_from(code).unwrap_or(0)))
    }

    pub(crate) fn count(&self) -> Result<usize, LibraryError> {
        let mut count = 0;
        // SAFETY: the pointer is to an `int` of this frame.
        let result = unsafe { (self.functions.count.call)(&mut count) };
        self.check(self.functions.count.name, result)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The GPU with this number among those that this process may see.
    pub(crate) fn device(&self, number: usize) -> Result<Device, LibraryError> {
        let count = self.count()?;
        let (vendor, visible) = (self.vendor, self.vendor.visible());
        if count == 0 {
            return Err(LibraryError::NoGpu { vendor, visible });
        }
        let ordinal = c_int::try_from(number).ok().filter(|_| number < count);
        let ordinal = ordinal.ok_or(LibraryError::NoSuchGpu {
            vendor,
            device: number,
            count,
            visible,
        })?;
        let mut device = 0;
        // SAFETY: the pointer is to a `CUdevice`, an `int`, of this frame.
        let result = unsafe { (self.functions.device.call)(&mut device, ordinal) };
        self.check(self.functions.device.name, result)?;
        Ok(Device(device))
    }

    pub(crate) fn name(&self, device: Device) -> Result<String, LibraryError> {
        self.text(self.functions.name, |text, room, name| {
            // SAFETY: the driver writes at most `room` bytes, of which there are more.
            unsafe { name(text, room, device.0) }
        })
    }

    /// A text that the driver writes.
    fn text<F: Copy>(
        &self,
        function: Named<F>,
        write: impl FnOnce(*mut c_char, c_int, F) -> c_int,
    ) -> Result<String, LibraryError> {
        let mut text = [0 as c_char; TEXT_BYTES];
        // One byte less, so that the last one ends the text whatever the driver does.
        let room = c_int::try_from(TEXT_BYTES - 1).unwrap_or(0);
        let result = write(text.as_mut_ptr(), room, function.call);
        self.check(function.name, result)?;
        // SAFETY: the last byte of the array is still zero.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(text.to_string_lossy().into_owned())
    }

    pub(crate) fn memory(&self, device: Device) -> Result<u64, LibraryError> {
        let mut bytes = 0;
        // SAFETY: the pointer is to a `size_t` of this frame.
        let result = unsafe { (self.functions.memory.call)(&mut bytes, device.0) };
        self.check(self.functions.memory.name, result)?;
        Ok(bytes as u64)
    }

    pub(crate) fn compute_capability(&self, device: Device) -> Result<(u32, u32), LibraryError> {
        let mut values = [0; 2];
        for (value, attribute) in values.iter_mut().zip(COMPUTE_CAPABILITY) {
            // SAFETY: the pointer is to an `int` of this frame.
            let result = unsafe { (self.functions.attribute.call)(value, attribute, device.0) };
            self.check(self.functions.attribute.name, result)?;
        }
        let [major, minor] = values.map(|value| u32::try_from(value).unwrap_or(0));
        Ok((major, minor))
    }

    /// What tells this GPU from all others in the world: for NVIDIA's as `nvidia-smi -L` writes it. Not all of AMD's have
    /// a number of their own; their address tells those of one machine apart.
    pub(crate) fn uuid(&self, device: Device) -> Result<String, LibraryError> {
        let mut bytes = [0; 16];
        // SAFETY: the pointer is to sixteen bytes of this frame, which are a `CUuuid` or a `hipUUID`.
        let result = unsafe { (self.functions.uuid.call)(&mut bytes, device.0) };
        self.check(self.functions.uuid.name, result)?;
        let uuid = uuid_text(bytes);
        if self.vendor == Vendor::Nvidia {
            return Ok(uuid);
        }
        let address = self.text(self.functions.address, |text, room, address| {
            // SAFETY: as for the name.
            unsafe { address(text, room, device.0) }
        })?;
        Ok(format!("{uuid}-{address}"))
    }

    pub(super) fn check(&self, call: &'static str, result: c_int) -> Result<(), LibraryError> {
        if result == SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: the pointer is to a pointer of this frame, which the call sets to a text of the
        // driver's own, or to null.
        let known = unsafe { (self.functions.error_name.call)(result, &mut name) } == SUCCESS;
        let name = match known && !name.is_null() {
            // SAFETY: as above; such texts are constants.
            true => unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned(),
            false => "an unknown error".to_owned(),
        };
        Err(LibraryError::Driver {
            vendor: self.vendor,
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
