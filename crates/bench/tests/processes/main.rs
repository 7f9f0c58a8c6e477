//! `everburn-bench` as a process: one program of tests, which links once.

mod kernels;
mod peers;
mod ranks;
mod scale;
mod steps;
