//! Which activations are kept for the backward pass.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use burn::module::{Module, ModuleMapper, Param, Parameter};
use burn::prelude::*;
use burn::tensor::GradientCheckpointingStrategy as Strategy;

/// Which activations are kept for the backward pass, and which are computed once more in it.
///
/// Written `none`, `blocks`, a number of blocks, or `burn`, on the command line and in files. The
/// gradients are the same, to the bit where a block draws no random numbers.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::ActivationCheckpointing;
///
/// let checkpointing: ActivationCheckpointing = "3".parse()?;
/// assert_eq!(checkpointing.blocks_a_segment().unwrap().get(), 3);
/// assert_eq!("blocks".parse(), "1".parse::<ActivationCheckpointing>());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ActivationCheckpointing {
    /// All are kept.
    #[default]
    None,
    /// What goes from one segment of this many blocks to the next is kept, and the segments run again:
    /// [`everburn::nn::checkpointed_forward`](everburn_nn::checkpointed_forward).
    Blocks(NonZeroUsize),
    /// Burn's own strategy: outputs of operations that cost little computation are computed again, one by
    /// one.
    Burn,
}

impl ActivationCheckpointing {
    /// How many blocks a segment has; none for other strategies.
    pub fn blocks_a_segment(self) -> Option<NonZeroUsize> {
        match self {
            Self::Blocks(every) => Some(every),
            Self::None | Self::Burn => None,
        }
    }

    /// `device` with a graph of this kind.
    #[must_use]
    pub fn autodiff(self, device: Device) -> Device {
        let device = device.autodiff();
        match self {
            Self::Burn => device.gradient_checkpointing(),
            Self::None | Self::Blocks(_) => device,
        }
    }

    /// `model`, which is on a device of [`autodiff`](Self::autodiff), for graphs of this kind: what
    /// `Module::train` has brought into a graph is in one of Burn's default kind.
    #[must_use]
    pub fn prepare<M: Module>(self, model: M) -> M {
        match self {
            Self::Burn => model.map(&mut Balanced),
            Self::None | Self::Blocks(_) => model,
        }
    }
}

struct Balanced;

impl ModuleMapper for Balanced {
    everburn_nn::walking! { map each self, param => balanced(param, |tensor| {
        tensor.with_gradient_checkpointing_strategy(Strategy::Balanced)
    }) }
}

fn balanced<P: Parameter>(param: Param<P>, change: impl FnOnce(P) -> P) -> Param<P> {
    match param.lazy_device().is_autodiff() {
        true => param.map(change),
        false => param,
    }
}

impl fmt::Display for ActivationCheckpointing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Blocks(every) if every.get() == 1 => f.write_str("blocks"),
            Self::Blocks(every) => every.fmt(f),
            Self::Burn => f.write_str("burn"),
        }
    }
}

impl FromStr for ActivationCheckpointing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "burn" => Ok(Self::Burn),
            "blocks" => Ok(Self::Blocks(NonZeroUsize::MIN)),
            number => number.parse().map(Self::Blocks).map_err(|_| {
                format!(
                    "`{text}` is no activation checkpointing: use none, blocks (each runs again), a number of blocks \
                     to a segment, or burn"
                )
            }),
        }
    }
}

everburn_record::serde_as_text!(ActivationCheckpointing);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["none", "blocks", "4", "burn"] {
            let checkpointing = text.parse::<ActivationCheckpointing>().unwrap();
            assert_eq!(checkpointing.to_string(), text);
        }
        assert!("".parse::<ActivationCheckpointing>().is_err());
        assert!("-1".parse::<ActivationCheckpointing>().is_err());
    }
}
