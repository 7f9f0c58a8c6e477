//! Jobs that change their ranks: agreement, clocks, and new groups.

pub(crate) mod agreement;
pub(crate) mod common_clock;
pub(crate) mod elasticity;
pub(crate) mod group;
pub(crate) mod regroup;
