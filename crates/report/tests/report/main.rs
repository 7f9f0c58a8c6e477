//! Reports of whole run directories.

mod comparison;
mod damage;
mod page;
mod reading;
mod sample;
