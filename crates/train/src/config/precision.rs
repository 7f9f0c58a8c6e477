//! In which type of number a training computes.

use burn::prelude::Device;
use everburn_distributed::name_of;
use everburn_nn::{ComputeType, low_products};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// In which type of number a training computes. Parameters, gradients that ranks exchange and the state of the
/// optimizer are `f32` whatever it is.
///
/// With `bf16` and `f16`, the layers of `everburn::nn` multiply in 16 bits ([`everburn::nn::autocast`](everburn_nn::autocast)); norms,
/// softmax, losses and reductions are computed in `f32`. With `f16` the loss is scaled
/// ([`LossScaling`](crate::LossScaling)).
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Precision;
///
/// assert_eq!("bf16".parse(), Ok(Precision::Bf16));
/// assert_eq!(Precision::default().to_string(), "f32");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// All in `f32`. On GPUs, CubeCL may multiply `f32` in `tf32` where it measures that to be faster.
    #[default]
    F32,
    /// As `f32`, on GPUs only: says that products of 11 significant binary digits are welcome.
    Tf32,
    /// Products in `bf16`.
    Bf16,
    /// Products in `f16`, with a loss that is scaled.
    F16,
}

everburn_record::named!(Precision, "no precision: use f32, bf16, f16 or tf32", Self::F32 => "f32", Self::Tf32 => "tf32", Self::Bf16 => "bf16", Self::F16 => "f16");

impl Precision {
    /// In what layers multiply.
    pub fn compute_type(self) -> ComputeType {
        match self {
            Self::F32 | Self::Tf32 => ComputeType::F32,
            Self::Bf16 => ComputeType::Bf16,
            Self::F16 => ComputeType::F16,
        }
    }

    /// Whether gradients can be too large or too small for it, so that the loss has to be scaled.
    pub(crate) fn scales_losses(self) -> bool {
        self == Self::F16
    }

    /// Checks that a device called `device` ("flex", "cuda:0") can compute in it.
    ///
    /// # Errors
    /// [`TrainError::Config`] for `tf32` on a processor.
    pub fn check_device(self, device: &str) -> Result<(), TrainError> {
        if self != Self::Tf32 || device.starts_with("cuda") {
            return Ok(());
        }
        Err(TrainError::Config(format!(
            "`training.precision = tf32` is for GPUs, and a rank computes on {device}: CPUs have no such type; use f32, or bf16 or f16 for the results of a GPU"
        )))
    }

    /// Checks that `device` has the type in which it multiplies.
    ///
    /// # Errors
    /// [`TrainError::Config`] if not.
    pub(crate) fn check_type(self, device: &Device) -> Result<(), TrainError> {
        match self.compute_type().low() {
            Some(low) if !device.supports_dtype(low) => Err(TrainError::Config(format!(
                "`training.precision = {self}`: {} does not compute in this type; use `training.precision = f32`, or another device",
                name_of(device)
            ))),
            _ => Ok(()),
        }
    }

    /// Checks after a pass on this thread that some layer has computed in it since there were `before` products
    /// in half precision.
    pub(crate) fn check_reached(self, before: u64) -> Result<(), TrainError> {
        if self.compute_type().low().is_none() || low_products() > before {
            return Ok(());
        }
        Err(TrainError::Config(format!(
            "`training.precision = {self}` reaches no layer of this model: it is for the layers of everburn::nn (Linear, Conv2d, matmul and the like), which replace Burn's by a changed import; use them, or `training.precision = f32`"
        )))
    }
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn every_precision_is_read_as_it_is_written_in_flags_and_in_files() {
        #[derive(Serialize, Deserialize)]
        struct File {
            precision: Precision,
        }
        for (precision, name) in [
            (Precision::F32, "f32"),
            (Precision::Tf32, "tf32"),
            (Precision::Bf16, "bf16"),
            (Precision::F16, "f16"),
        ] {
            assert_eq!(name.parse(), Ok(precision));
            assert_eq!(precision.to_string(), name);
            let text = toml::to_string(&File { precision }).unwrap();
            assert_eq!(text.trim(), format!("precision = \"{name}\""));
            assert_eq!(toml::from_str::<File>(&text).unwrap().precision, precision);
        }
        let error = "fp16".parse::<Precision>().unwrap_err();
        assert!(error.contains("use f32, bf16, f16 or tf32"), "{error}");
    }

    #[test]
    fn tf32_on_a_processor_is_refused_with_what_to_use() {
        assert!(Precision::Tf32.check_device("cuda:1").is_ok());
        assert!(Precision::Bf16.check_device("flex").is_ok());
        assert!(Precision::Bf16.check_type(&Device::flex()).is_ok());
        let error = Precision::Tf32
            .check_device("flex")
            .unwrap_err()
            .to_string();
        error.assert_contains(["is for GPUs", "use f32"]);
    }
}
