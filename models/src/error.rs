//! Numbers of which no model can be built.

use std::fmt::Display;

/// A model that cannot be built, and why.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use everburn::models::gpt::GptConfig;
///
/// let error = GptConfig::new(65).with_width(30).check().unwrap_err();
/// assert_eq!(error.to_string(), "4 heads cannot share a width of 30: it must be a multiple");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelError(pub(crate) String);

impl Display for ModelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ModelError {}

/// The most layers of a model, many times as many as any has.
const MOST_LAYERS: usize = 10_000;

/// The largest of its other sizes, so that no product of two of them is out of range.
const LARGEST_SIZE: usize = 1 << 28;

/// Refuses the first of these sizes that is 0 or too large, and too many layers.
pub(crate) fn check_sizes(layers: usize, sizes: &[(&str, usize)]) -> Result<(), ModelError> {
    let layers = ("number of layers", layers, MOST_LAYERS);
    let sizes = sizes
        .iter()
        .map(|(name, size)| (*name, *size, LARGEST_SIZE));
    for (name, size, most) in std::iter::once(layers).chain(sizes) {
        if size == 0 {
            return Err(ModelError(format!("the {name} must be at least 1")));
        }
        if size > most {
            return Err(ModelError(format!(
                "the {name} is {size}, and at most {most}"
            )));
        }
    }
    Ok(())
}
