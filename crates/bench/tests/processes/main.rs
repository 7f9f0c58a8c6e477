//! `everburn-bench` as a process: one program of tests, which links once.

mod peers;
mod ranks;
mod scale;
