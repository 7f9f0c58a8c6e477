//! The limit that a container or a batch system puts on a process' memory, by control groups (cgroups) of Linux.

use std::fs;
use std::path::Path;

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// How much memory this process may still use under the limits of its control groups, in bytes; `None` without a limit.
/// What the kernel would give back first (`inactive_file`) counts as free.
pub fn memory_left() -> Option<u64> {
    memory_left_in(
        Path::new(ROOT),
        &fs::read_to_string("/proc/self/cgroup").ok()?,
    )
}

/// The same for the groups in `own`, as `/proc/self/cgroup` lists them. The narrowest of a group and those around it
/// counts.
fn memory_left_in(root: &Path, own: &str) -> Option<u64> {
    let lines = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, names) = match controllers {
            "" => (root.to_path_buf(), &V2),
            named if named.split(',').any(|name| name == "memory") => (root.join("memory"), &V1),
            _ => return None,
        };
        let group = root.join(path.trim_start_matches('/'));
        // A container may see another path than the one that is mounted for it: then the root is its own group.
        let around = group
            .ancestors()
            .take_while(|folder| folder.starts_with(&root));
        around.filter_map(|folder| left_in(folder, names)).min()
    });
    lines.min()
}

/// Names of files: the limit, the use, and in `memory.stat` what is given back first.
type Names = [&'static str; 3];

const V2: Names = ["memory.max", "memory.current", "inactive_file"];
const V1: Names = [
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
];

/// A limit beyond this is none: version 1 has a number for that.
const NO_LIMIT: u64 = 1 << 60;

fn left_in(folder: &Path, [limit, usage, inactive]: &Names) -> Option<u64> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let limit = number(limit).filter(|limit| *limit < NO_LIMIT)?;
    let usage = number(usage)?;
    let stat = text("memory.stat").unwrap_or_default();
    let inactive = stat.lines().find_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        (name == *inactive).then(|| bytes.trim().parse::<u64>().ok())?
    });
    Some(limit.saturating_sub(usage.saturating_sub(inactive.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_narrowest_limit_around_a_process_counts() {
        let root = tempfile::tempdir().unwrap();
        let (job, step) = (root.path().join("job"), root.path().join("job/step"));
        let own = "0::/job/step\n";
        assert_eq!(memory_left_in(root.path(), own), None);
        group(&step, &[("memory.max", "max\n"), ("memory.current", "7\n")]);
        assert_eq!(memory_left_in(root.path(), own), None);
        group(
            &job,
            &[("memory.max", "1000\n"), ("memory.current", "700\n")],
        );
        assert_eq!(memory_left_in(root.path(), own), Some(300));
        group(&job, &[("memory.stat", "anon 400\ninactive_file 200\n")]);
        assert_eq!(memory_left_in(root.path(), own), Some(500));
        group(
            root.path(),
            &[("memory.max", "100"), ("memory.current", "90")],
        );
        assert_eq!(memory_left_in(root.path(), own), Some(10));
        // As in a container, whose own path is not below its mount.
        assert_eq!(memory_left_in(root.path(), "0::/docker/4711\n"), Some(10));
        assert_eq!(memory_left_in(root.path(), "no group"), None);
    }

    #[test]
    fn version_one_has_other_names_and_a_number_for_no_limit() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("memory/job");
        let own = "11:cpu,cpuacct:/job\n9:memory:/job\n";
        let limit = |limit: &str| {
            let files = [
                ("memory.limit_in_bytes", limit),
                ("memory.usage_in_bytes", "60"),
            ];
            group(&folder, &files);
            memory_left_in(root.path(), own)
        };
        assert_eq!(limit("9223372036854771712"), None);
        assert_eq!(limit("100"), Some(40));
        assert_eq!(limit("50"), Some(0));
    }
}
