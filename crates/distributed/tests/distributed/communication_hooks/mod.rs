//! Communication hooks between ranks that are threads of one process.

mod half_precision;
mod power_sgd;
mod ranks;
mod regression;
