//! Whose things are: what a process makes outside itself carries its number and start in its name, so that what a killed
//! one has left is found.

use std::io;

/// The beginning of all names: `everburn-process-PID-START-WHAT`.
const PREFIX: &str = "everburn-process-";

/// The process that something outside it belongs to, as a folder or a network namespace.
///
/// ```
/// use everburn_record::Owner;
///
/// let owner = Owner::this_process()?;
/// assert!(owner.lives());
/// assert_eq!(Owner::of_name(&owner.name("switch")), Some(owner));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pid: u32,
    /// In the kernel's ticks since it started. Process numbers come again, both together do not.
    start: u64,
}

impl Owner {
    /// This process.
    ///
    /// # Errors
    /// If `/proc` does not show when it was started.
    pub fn this_process() -> io::Result<Self> {
        let owner = Self::of(std::process::id());
        owner.ok_or_else(|| io::Error::other("/proc does not show when this process was started"))
    }

    fn of(pid: u32) -> Option<Self> {
        let start = crate::proc::start_of(pid)?;
        Some(Self { pid, start })
    }

    /// The name of its `what`.
    #[must_use]
    pub fn name(self, what: &str) -> String {
        format!("{PREFIX}{}-{}-{what}", self.pid, self.start)
    }

    /// Whose `name` is, if it is one of these names.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().map(|_| Self { pid, start })
    }

    /// Whether the process runs.
    #[must_use]
    pub fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_they_are() {
        for foreign in [
            "everburn-process-1",
            "everburn-process-x-1-0",
            "web",
            "everburn-probe-1-2-3",
        ] {
            assert_eq!(Owner::of_name(foreign), None, "{foreign}");
        }
        // The same process number, another process.
        let name = format!("everburn-process-{}-1-0", std::process::id());
        assert!(!Owner::of_name(&name).unwrap().lives());
    }
}
