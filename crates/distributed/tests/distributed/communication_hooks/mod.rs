//! Communication hooks between ranks that are threads of one process.

mod half_precision;
mod power_sgd;
pub(crate) mod ranks;
mod regression;
