//! `everburn`: the tasks that come with Everburn, and every command on them.

use std::process::ExitCode;

/// Counts nothing unless a training is profiled.
#[global_allocator]
static ALLOCATOR: everburn::profile::CountingAllocator = everburn::profile::CountingAllocator;

fn main() -> ExitCode {
    everburn::tasks::app().main()
}
