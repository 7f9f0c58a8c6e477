//! burn-train's dashboard on a terminal, and how it is left.

use everburn_tests::{Run, Terminal};
use rustix::process::Signal;

/// Starts a long training on two ranks in a terminal and waits until its dashboard shows numbers.
fn dashboard(folder: &std::path::Path, test: &str) -> Option<Terminal> {
    let terminal = Terminal::open_or_skip(folder, test)?;
    let small = everburn_tests::SMALL;
    terminal.enter_everburn(&format!(
        "train mnist --ranks 2 {small} --epochs 1000000 --run-dir run; echo code=$?"
    ));
    // A screen may be seen while it is painted, so all of it is waited for.
    let expected = [
        "Train epoch",
        "Valid epoch",
        "Loss",
        "Accuracy",
        "Epochs",
        "/1000000",
        "Progress",
        "Quit",
    ];
    terminal.wait_for("a dashboard with two epochs", |screen| {
        expected.iter().all(|text| screen.contains(text))
            && Run::new(folder.join("run")).epochs() > 1
    });
    assert_eq!(terminal.property("alternate_on"), "1");
    assert_eq!(terminal.ranks().len(), 2);
    Some(terminal)
}

/// All ranks have ended, the run says that the user did it, and the terminal is as it was.
fn check_restored(terminal: &Terminal, folder: &std::path::Path) -> String {
    let screen = terminal.wait_for("the shell again", |screen| {
        screen.lines().any(|line| line.starts_with("code="))
    });
    assert_eq!(terminal.ranks(), [], "{screen}");
    let report = Run::new(folder.join("run")).report();
    let stopped = report["stopped"].as_str().unwrap_or_default();
    assert!(stopped.starts_with("on request"), "{report:#}");
    check_terminal(terminal, &screen);
    screen
}

fn check_terminal(terminal: &Terminal, screen: &str) {
    for (property, value) in [
        ("alternate_on", "0"),
        ("cursor_flag", "1"),
        ("mouse_any_flag", "0"),
    ] {
        assert_eq!(terminal.property(property), value, "{property}\n{screen}");
    }
    // The quotes tell what the terminal echoes from what the shell prints.
    terminal.enter("echo 're'stored");
    terminal.wait_for("what is typed, and its answer", |screen| {
        screen.contains("echo 're'stored") && screen.lines().any(|line| line == "restored")
    });
    terminal.enter("stty -a");
    let expected = ["icanon", "echo", "isig", "icrnl", "opost"];
    terminal.wait_for(&format!("{expected:?}"), |screen| {
        let words: Vec<_> = screen.split_whitespace().collect();
        expected.iter().all(|word| words.contains(word))
    });
}

#[test]
fn ctrl_c_ends_all_ranks_and_restores_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let Some(terminal) = dashboard(folder.path(), "Ctrl-C at the dashboard") else {
        return;
    };
    terminal.press("C-c");
    let screen = check_restored(&terminal, folder.path());
    assert!(screen.contains("code=130"), "{screen}");
}

#[test]
fn the_quit_key_ends_all_ranks_and_restores_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let Some(terminal) = dashboard(folder.path(), "the dashboard's quit key") else {
        return;
    };
    terminal.press("q");
    terminal.wait_for("the question how", |screen| {
        screen.contains("[s] Stop after this step")
    });
    terminal.press("s");
    let screen = check_restored(&terminal, folder.path());
    assert!(screen.contains("stopped on request after step"), "{screen}");
}

#[test]
fn the_kill_key_ends_ranks_that_hang_too_and_restores_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let Some(terminal) = dashboard(folder.path(), "the dashboard's kill key") else {
        return;
    };
    let ranks = terminal.ranks();
    let last = ranks.iter().find(|process| process.rank == Some(1));
    last.unwrap().signal(Signal::STOP);
    terminal.press("q");
    terminal.wait_for("the question how", |screen| screen.contains("[k] Kill"));
    terminal.press("k");
    let screen = terminal.wait_for("the shell again", |screen| {
        screen.lines().any(|line| line.starts_with("code="))
    });
    assert_eq!(terminal.ranks(), [], "{screen}");
    assert!(screen.contains("code=130"), "{screen}");
    check_terminal(&terminal, &screen);
}
