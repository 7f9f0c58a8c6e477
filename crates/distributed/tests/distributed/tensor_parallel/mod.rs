//! Layers cut over ranks equal those of one device. Ranks are threads.

mod equality;
mod failure;
mod model;
mod refusals;
