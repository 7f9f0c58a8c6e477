//! What the system allows a rank: open files, memory to share, room for its run.

use std::io::ErrorKind;
use std::path::Path;

use everburn_record::units::counted;
use everburn_record::{Finding, file, units};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, getrlimit};

/// Each rank holds a connection or two to every other, in each of a few groups.
const FILES_A_PAIR: u64 = 16;

/// Files of a rank that have nothing to do with others: data, logs, checkpoints, libraries.
const FILES_BESIDE: u64 = 128;

/// All rings of one group on one machine take this much at most, and a job has a few groups.
const MEMORY_TO_SHARE: u64 = 128 << 20;

/// A few checkpoints of a small model, logs and metrics.
const RUN_NEEDED: u64 = 64 << 20;
const RUN_WANTED: u64 = 2 << 30;

pub(super) fn findings(ranks: usize, run_dir: &Path) -> Vec<Finding> {
    vec![
        open_files(ranks, getrlimit(Resource::Nofile).current),
        memfd(),
        file_size(getrlimit(Resource::Fsize).current),
        run_folder(run_dir),
    ]
}

/// `limit` is `None` where there is none.
fn open_files(ranks: usize, limit: Option<u64>) -> Finding {
    let subject = "open files";
    let needed = FILES_BESIDE + FILES_A_PAIR * ranks as u64;
    match limit {
        None => Finding::ok(subject, "no limit"),
        Some(limit) if limit < needed => Finding::fail(
            subject,
            format!(
                "{limit} a process, and {needed} are needed for {}",
                counted(ranks, "rank")
            ),
            "raise it in the shell that starts the ranks: `ulimit -n 65536`",
        ),
        Some(limit) => Finding::ok(subject, format!("{limit} a process")),
    }
}

/// Ranks of one machine share memory behind a memfd, not in /dev/shm.
fn memfd() -> Finding {
    let subject = "memfd";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = memfd_create("everburn-doctor", flags);
    let allocated = made.and_then(|file| {
        let none = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, none, 0, MEMORY_TO_SHARE)
    });
    match allocated {
        Ok(()) => Finding::ok(
            subject,
            format!(
                "{} can be shared between ranks",
                units::bytes(MEMORY_TO_SHARE)
            ),
        ),
        Err(error) => Finding::warn(
            subject,
            format!(
                "{} cannot be shared between ranks: {error}",
                units::bytes(MEMORY_TO_SHARE)
            ),
            "ranks of this machine use TCP instead, which is slower; allow memfd and free memory",
        ),
    }
}

fn file_size(limit: Option<u64>) -> Finding {
    let subject = "file size";
    match limit {
        Some(limit) if limit < MEMORY_TO_SHARE => Finding::warn(
            subject,
            format!("limited to {}", units::bytes(limit)),
            "shared memory and checkpoints are files: `ulimit -f unlimited`",
        ),
        Some(limit) => Finding::ok(subject, format!("limited to {}", units::bytes(limit))),
        None => Finding::ok(subject, "no limit"),
    }
}

fn run_folder(folder: &Path) -> Finding {
    let subject = "run folder";
    let at = file::nearest_existing(folder);
    let advice = "make room, or choose another folder with `train --run-dir`";
    // Only a try tells: root may write what its mode forbids, and nobody to what is mounted so.
    if let Err(error) = tempfile::NamedTempFile::new_in(at) {
        let found = format!("nothing can be written in {}: {error}", at.display());
        return Finding::fail(subject, found, without_files(error.kind(), advice));
    }
    let Ok(space) = rustix::fs::statvfs(at) else {
        return Finding::warn(
            subject,
            format!("{} cannot be examined", at.display()),
            advice,
        );
    };
    judge_room(space.f_bavail * space.f_frsize, folder, advice)
}

/// What to do where no file can be made; `advice` is that for a full disk.
fn without_files(error: ErrorKind, advice: &'static str) -> &'static str {
    match error {
        ErrorKind::PermissionDenied => {
            "let this user write there (`ls -ld` shows its owner and mode), or choose another folder with `train --run-dir`"
        }
        ErrorKind::ReadOnlyFilesystem => {
            "it is mounted read-only: choose another folder with `train --run-dir`"
        }
        _ => advice,
    }
}

fn judge_room(free: u64, folder: &Path, advice: &'static str) -> Finding {
    let found = format!("{} free for {}", units::bytes(free), folder.display());
    match free {
        free if free < RUN_NEEDED => Finding::fail("run folder", found, advice),
        free if free < RUN_WANTED => Finding::warn("run folder", found, advice),
        _ => Finding::ok("run folder", found),
    }
}

#[cfg(test)]
mod tests {
    use everburn_record::Verdict;

    use super::*;

    #[test]
    fn the_more_ranks_the_more_files_are_needed() {
        assert_eq!(open_files(4, Some(1024)).verdict, Verdict::Ok);
        assert_eq!(open_files(1000, None).verdict, Verdict::Ok);
        let short = open_files(100, Some(1024)).to_string();
        assert!(short.starts_with("FAIL  open files"), "{short}");
        assert!(short.contains("1728 are needed for 100 ranks"), "{short}");
        assert!(short.contains("ulimit -n"), "{short}");
    }

    #[test]
    fn a_full_disk_is_in_the_way_and_a_small_one_worth_a_look() {
        let judge = |free| judge_room(free, Path::new("runs"), "make room").verdict;
        assert_eq!(judge(0), Verdict::Fail);
        assert_eq!(judge(RUN_NEEDED), Verdict::Warn);
        assert_eq!(judge(RUN_WANTED), Verdict::Ok);
    }

    #[test]
    fn room_is_no_help_where_a_user_may_not_write() {
        let advice = |error| without_files(error, "make room");
        assert_eq!(advice(ErrorKind::StorageFull), "make room");
        for error in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem] {
            let advice = advice(error);
            assert!(
                !advice.contains("room") && advice.contains("--run-dir"),
                "{advice}"
            );
        }
    }

    #[test]
    fn a_small_file_limit_is_told() {
        assert_eq!(file_size(None).verdict, Verdict::Ok);
        assert!(file_size(Some(1 << 20)).to_string().contains("ulimit -f"));
    }

    #[test]
    fn this_machine_can_be_examined() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = folder.path().join("runs/a");
        for finding in findings(2, &run_dir) {
            assert_eq!(finding.advice.is_empty(), finding.verdict == Verdict::Ok);
        }
        assert!(!run_dir.exists(), "an examination leaves nothing behind");
    }
}
