//! Rules about the subjects of commits: `where: what changed`, in plain English.

use std::path::Path;
use std::process::Command;

use super::wording;

/// Subjects up to this commit are older than the rule.
const SINCE: &str = "7fd8439a9f39f3f907674b465b0d614d2b31f39f";

/// Complaints about the commits of the repository; none where there is no history, as in an archive.
pub(super) fn check(root: &Path) -> Vec<String> {
    let range = format!("{SINCE}..HEAD");
    let log = ["log", "--no-merges", "--format=%h %s", &range];
    let log = Command::new("git").current_dir(root).args(log).output();
    let Ok(log) = log.map(|log| String::from_utf8_lossy(&log.stdout).into_owned()) else {
        return Vec::new();
    };
    log.lines().flat_map(check_subject).collect()
}

/// Complaints about a line: a short hash and a subject.
fn check_subject(line: &str) -> Vec<String> {
    let Some((hash, subject)) = line.split_once(' ') else {
        return Vec::new();
    };
    let place = format!("commit {hash}");
    let mut complaints = wording::phrases(subject);
    if !subject.contains(": ") {
        complaints.push("write `where: what changed`".to_owned());
    }
    complaints
        .into_iter()
        .map(|what| format!("{place}: {what}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_says_where_and_what() {
        assert!(check_subject("abc1234 nccl: release buffers before waking waiters").is_empty());
        let found = check_subject("abc1234 The training goes on").join("\n");
        assert!(
            found.starts_with("commit abc1234: `goes on`: write"),
            "{found}"
        );
        assert!(found.contains("where: what changed"), "{found}");
    }

    #[test]
    fn a_folder_without_history_has_no_commits() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check(folder.path()).is_empty());
    }
}
