//! On which device a rank's tensors are.

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;

use crate::device::{DeviceName, is_gpu};
use crate::error::DdpError;

/// The device of all trained parameters, without autodiff; `None` if they are on several.
pub(crate) fn device_of_parameters<M: Module>(model: &M) -> Option<Device> {
    struct Find(Vec<Device>);
    impl ModuleVisitor for Find {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // Of a parameter that another stage of a pipeline holds, an empty tensor is here.
            if param.lazy_shape().num_elements() == 0 {
                return;
            }
            let device = param.lazy_device().inner();
            let trained = param.base().is_require_grad();
            if trained && !self.0.contains(&device) {
                self.0.push(device);
            }
        }
    }
    let mut find = Find(Vec::new());
    model.visit(&mut find);
    match find.0.len() {
        1 => find.0.pop(),
        _ => None,
    }
}

/// Whether gradients on `device` are better left there: they are not in host memory.
pub(crate) fn gradients_stay_there(device: &Device) -> bool {
    is_gpu(device)
}

/// Checks that all parameters and buffers of `model` are on this rank's device: what is elsewhere would be
/// computed on another rank's GPU, or take its memory.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::distributed::check_placement;
///
/// let device = Device::flex();
/// let model = LinearConfig::new(3, 1).init(&device);
/// check_placement(&model, &device)?;
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
///
/// # Errors
/// [`DdpError::Elsewhere`] naming the first that is not, and where it is.
pub fn check_placement<M: Module>(model: &M, device: &Device) -> Result<(), DdpError> {
    struct Check<'a> {
        device: &'a Device,
        path: Vec<String>,
        found: Option<(String, Device)>,
    }
    impl Check<'_> {
        fn on(&mut self, device: &Device) {
            if device != self.device && self.found.is_none() {
                self.found = Some((self.path.join("."), device.clone()));
            }
        }
    }
    impl ModuleVisitor for Check<'_> {
        everburn_nn::walking! { path }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.on(&param.lazy_device());
        }
        everburn_nn::walking! { visit others self, param => self.on(&param.lazy_device()) }
    }
    let mut check = Check {
        device,
        path: Vec::new(),
        found: None,
    };
    model.visit(&mut check);
    match check.found {
        None => Ok(()),
        Some((path, found)) => Err(DdpError::Elsewhere {
            what: format!("`{path}` of the model"),
            found: name_of(&found),
            expected: name_of(device),
        }),
    }
}

/// `cuda:1`, `flex`: as flags have it.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::Device;
///
/// assert_eq!(everburn::distributed::name_of(&Device::flex().autodiff()), "flex");
/// ```
#[must_use]
pub fn name_of(device: &Device) -> String {
    match DeviceName::of(device) {
        Some(name) => name.to_string(),
        None => format!("{:?}", device.clone().inner()),
    }
}
