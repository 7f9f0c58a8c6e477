//! Whose things are: what a benchmark makes outside itself carries its process in its name, so that
//! what a killed one has left is known.

use crate::failure::Failure;

/// The beginning of all names: `everburn-bench-PID-START-WHAT`.
const PREFIX: &str = "everburn-bench-";

/// The process that something belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pid: u32,
    /// In the kernel's ticks since it started. Process numbers come again, both together do not.
    start: u64,
}

impl Owner {
    pub(super) fn this_process() -> Result<Self, Failure> {
        Self::of(std::process::id())
            .ok_or_else(|| Failure::new("/proc does not show when this process was started"))
    }

    fn of(pid: u32) -> Option<Self> {
        let start = everburn_record::proc::start_of(pid)?;
        Some(Self { pid, start })
    }

    pub(super) fn name(self, what: &str) -> String {
        format!("{PREFIX}{}-{}-{what}", self.pid, self.start)
    }

    /// Whose `name` is, if it is a benchmark's.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().map(|_| Self { pid, start })
    }

    pub(super) fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_they_are() {
        let owner = Owner::this_process().unwrap();
        assert!(owner.lives());
        assert_eq!(Owner::of_name(&owner.name("switch")), Some(owner));
        for foreign in [
            "everburn-bench-1",
            "everburn-bench-x-1-0",
            "web",
            "everburn-probe-1-2-3",
        ] {
            assert_eq!(Owner::of_name(foreign), None, "{foreign}");
        }
        // The same process number, another process.
        let name = format!("everburn-bench-{}-1-0", std::process::id());
        assert!(!Owner::of_name(&name).unwrap().lives());
    }
}
