//! A namespace stands for a machine, and machines have processors of their own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::thread::{CpuSet, sched_getaffinity};

/// What binds a program to processors; part of util-linux.
const TASKSET: &str = "taskset";

/// Shares this process's processors out to `ranks`: each gets as many, side by side, as a list that
/// `taskset` reads. Empty where they do not suffice or cannot be given.
pub(super) fn of_each(ranks: usize) -> Vec<String> {
    let can_bind = std::env::var_os("PATH").is_some_and(|path| find(&path).is_some());
    match sched_getaffinity(None) {
        Ok(own) if can_bind => {
            let own: Vec<usize> = (0..CpuSet::MAX_CPU)
                .filter(|cpu| own.is_set(*cpu))
                .collect();
            share(&own, ranks)
        }
        _ => Vec::new(),
    }
}

/// The words before a program's that bind it to `cores`.
pub(super) fn bind(cores: &str) -> [&str; 3] {
    [TASKSET, "--cpu-list", cores]
}

fn share(own: &[usize], ranks: usize) -> Vec<String> {
    let each = own.len() / ranks.max(1);
    if each == 0 {
        return Vec::new();
    }
    let list = |cores: &[usize]| {
        let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
        cores.join(",")
    };
    own.chunks(each).take(ranks).map(list).collect()
}

fn find(path: &OsStr) -> Option<PathBuf> {
    let programs = std::env::split_paths(path).map(|folder: PathBuf| folder.join(TASKSET));
    programs
        .into_iter()
        .find(|program: &PathBuf| Path::is_file(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_gets_as_many_processors_and_none_gets_those_of_another() {
        assert_eq!(share(&[0, 1], 2), ["0", "1"]);
        assert_eq!(share(&[0, 2, 4, 5, 7], 2), ["0,2", "4,5"]);
        assert_eq!(share(&[3], 1), ["3"]);
    }

    #[test]
    fn where_they_do_not_suffice_none_is_bound() {
        assert!(share(&[0, 1], 3).is_empty());
        assert!(share(&[], 1).is_empty());
    }
}
