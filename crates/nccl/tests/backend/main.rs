//! The backend over the fake: ranks as threads, memory of the host, faults on request.

mod connecting;
mod deadlines;
mod failures;
mod harness;
mod leaving;
mod operations;
mod ordering;
