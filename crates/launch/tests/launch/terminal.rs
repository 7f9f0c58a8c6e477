//! A terminal after a dashboard.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::elastic::signal;
use crate::process::{LauncherProcess, number_in, numbers_in, runs, wait_until};

/// `None`, and `test` is skipped, where no terminal can be made.
fn on_a_terminal(test: &str, folder: &Path, role: &str, script: &str) -> Option<LauncherProcess> {
    let launcher = LauncherProcess::start_on_a_terminal(folder, 2, role, script);
    if launcher.is_none() {
        everburn_tests::skip_missing(
            test,
            "there is no `script` to make a terminal with",
            "bsdutils",
        );
    }
    launcher
}

#[test]
fn a_terminal_is_in_order_after_its_dashboard_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("release"), "").unwrap();
    let script = "
        if [ $RANK = 1 ]; then test ! -t 1 && echo quiet; echo 1 > $DIR/written; sleep 1000; fi
        until [ -e $DIR/written ]; do sleep 0.02; done
        test -t 0 && test -t 1 && stty raw -echo && printf '\\033[?1049h' && kill -9 $$";
    let test = "a terminal whose dashboard is killed";
    let Some(mut launcher) = on_a_terminal(test, folder.path(), "", script) else {
        return;
    };
    assert_eq!(launcher.wait().code(), Some(137));
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("outcome").contains("rank 0 was ended by SIGKILL"));
    assert_eq!(read("before"), read("after"));
    let screen = read("stdout");
    assert!(
        screen.contains("\x1b[?1049l") && screen.contains("\x1b[?25h"),
        "{screen:?}"
    );
    assert!(!screen.contains("quiet"), "only rank 0 draws: {screen:?}");
    assert_eq!(
        read("logs/rank-1.log"),
        "quiet\n--- rank 1: the launcher has ended this process ---\n"
    );
}

#[test]
fn a_dashboard_ends_with_its_launcher_and_leaves_the_terminal_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a dashboard whose launcher ends";
    let Some(mut launcher) = on_a_terminal(test, folder.path(), "runs forever", "") else {
        return;
    };
    let pids = numbers_in(folder.path(), "pid", 2);
    signal(number_in(folder.path(), "launcher"), Signal::KILL);
    // The shell around the launcher still holds the terminal, so no hang-up ends the ranks.
    wait_until("the ranks' end", || !pids.iter().any(|&pid| runs(pid)));
    fs::write(folder.path().join("release"), "").unwrap();
    launcher.wait();
    let screen = fs::read_to_string(folder.path().join("stdout")).unwrap();
    assert!(screen.contains("\x1b[?1049l"), "{screen:?}");
}
