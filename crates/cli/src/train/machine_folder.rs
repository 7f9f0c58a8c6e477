//! The folders that the machines of a job have for one run.

use std::path::{Path, PathBuf};

use everburn_train::RunDirectory;

use crate::config::RunConfig;

/// Where machine `node_rank` has its files of the run in `path`: machine 0 there, others in a folder beside it.
pub(crate) fn folder_of_machine(path: &Path, node_rank: Option<usize>) -> PathBuf {
    let Some(node) = node_rank.filter(|node| *node > 0) else {
        return path.to_owned();
    };
    let mut name = path.file_name().unwrap_or(path.as_os_str()).to_os_string();
    name.push(format!("-node-{node}"));
    path.with_file_name(name)
}

/// Which machine has made this folder, and where the first one has that run; `None` for the first, and where the folder's
/// configuration says that there are fewer machines.
pub(super) fn other_machine(run: &RunDirectory) -> Option<(usize, PathBuf)> {
    let name = run.path().file_name()?.to_str()?;
    let (first, machine) = name.rsplit_once("-node-")?;
    let machine: usize = machine.parse().ok()?;
    let machines = run.read_config::<RunConfig>().ok()?.ranks.nodes;
    // Only rank 0 writes these.
    let is_first = run.path().join("metrics.jsonl").exists();
    let is_other = (1..machines).contains(&machine) && !is_first;
    is_other.then(|| (machine, run.path().with_file_name(first)))
}
