//! On which device a rank's tensors are.

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;

use crate::device::DeviceName;

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

/// `cuda:1`, `flex`: as flags have it.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::Device;
///
/// assert_eq!(everburn::distributed::name_of(&Device::flex().autodiff()), "flex");
/// ```
pub fn name_of(device: &Device) -> String {
    match DeviceName::of(device) {
        Some(name) => name.to_string(),
        None => format!("{:?}", device.clone().inner()),
    }
}
