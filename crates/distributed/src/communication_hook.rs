//! tmp
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
/// A
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterSlot {
    /// a
    pub path: String,
    /// a
    pub shape: Vec<usize>,
    /// a
    pub offset: usize,
}
/// A
#[derive(Debug)]
pub struct GradientBucket<'a> {
    /// a
    pub index: usize,
    /// a
    pub slots: &'a [ParameterSlot],
    /// a
    pub values: &'a mut [f32],
}
/// A
pub trait CommunicationHook: Send + Debug {
    /// a
    fn name(&self) -> String;
    /// a
    fn reduce(
        &mut self,
        bucket: GradientBucket<'_>,
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError>;
}
/// A
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub enum CommunicationHookConfig {
    /// a
    #[default]
    None,
}
impl CommunicationHookConfig {
    /// a
    pub fn build(self) -> Box<dyn CommunicationHook> {
        Box::new(Plain)
    }
}
#[derive(Debug)]
struct Plain;
impl CommunicationHook for Plain {
    fn name(&self) -> String {
        "none".into()
    }
    fn reduce(
        &mut self,
        bucket: GradientBucket<'_>,
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError> {
        let b = size_of_val(bucket.values) as u64;
        group.all_reduce_in_place(bucket.values, ReduceOp::Sum)?;
        Ok(b)
    }
}

impl std::fmt::Display for CommunicationHookConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("none")
    }
}
impl std::str::FromStr for CommunicationHookConfig {
    type Err = String;
    fn from_str(_: &str) -> Result<Self, String> {
        Ok(Self::None)
    }
}
