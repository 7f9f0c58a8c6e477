//! Our stores and PyTorch's, each with the other's clients, where the real PyTorch takes part.
//!
//! All tests here are ignored by default and say why; `cargo xtask test --with-torch` runs them with
//! a Python that has PyTorch. Without one a test fails: none of them can pass unseen.

#[path = "../store_conformance/contract.rs"]
mod contract;
mod crowd;
mod file;
mod operations;
mod python;
mod tcp;
