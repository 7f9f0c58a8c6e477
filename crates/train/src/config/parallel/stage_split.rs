//! Where the stages of a pipeline begin.

use std::fmt;
use std::str::FromStr;

/// Where the stages of a pipeline begin.
///
/// Written `auto`, `even`, or the names of the blocks that begin a stage, without the first block.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::StageSplit;
///
/// let stages: StageSplit = "conv2,fc1".parse()?;
/// assert_eq!(stages, StageSplit::Named(vec!["conv2".into(), "fc1".into()]));
/// assert_eq!("auto".parse(), Ok(StageSplit::default()));
/// assert!("conv1,,fc1".parse::<StageSplit>().unwrap_err().contains("conv1,,fc1"));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StageSplit {
    /// Where the slowest stage is as fast as it can be, by measured times.
    #[default]
    Auto,
    /// Where the stage with the most parameters has as few as can be.
    Even,
    /// At the blocks of these names.
    Named(Vec<String>),
}

impl fmt::Display for StageSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Even => f.write_str("even"),
            Self::Named(starts) => f.write_str(&starts.join(",")),
        }
    }
}

impl FromStr for StageSplit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "even" => return Ok(Self::Even),
            _ => {}
        }
        let names = text.split(',').map(|name| name.trim().to_string());
        let names = names.collect::<Vec<_>>();
        if names.iter().any(String::is_empty) {
            return Err(format!(
                "`{text}` does not name the stages: use auto, even, or the first blocks of stages with commas between them, as in conv2,fc1"
            ));
        }
        Ok(Self::Named(names))
    }
}

everburn_record::serde_as_text!(StageSplit);
