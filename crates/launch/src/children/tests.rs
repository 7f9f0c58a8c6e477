use std::thread;

use everburn_tests::{assert_matches, holds_within};

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn shell(script: &str, deadline: Duration) -> Result<String, ChildError> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Children::unheard().run("the shell", &mut command, folder.path(), deadline)
}

#[test]
fn the_last_words_of_a_failing_child_are_shown() {
    let failure = shell("echo why >&2; exit 3", LONG).unwrap_err().to_string();
    assert!(failure.starts_with("the shell has failed"), "{failure}");
    assert!(
        failure.contains('3') && failure.ends_with("why"),
        "{failure}"
    );
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo so far; echo; echo why >&2"]);
    let ended = Children::unheard().run_to_any_end("it", &mut command, folder.path(), LONG);
    assert_eq!(ended.unwrap().last_words(), "so far\nwhy");
}

#[test]
fn a_child_is_ended_at_its_deadline_with_all_of_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("pid");
    let script = format!("sleep 600 & echo $! > '{}'; wait", mark.display());
    // On a busy machine the shell may not have started what it starts when the first deadlines pass.
    let mut deadline = Duration::from_millis(200);
    let sleeper = loop {
        let failure = shell(&script, deadline).unwrap_err();
        assert_matches!(failure, ChildError::TooLong { .. });
        let written = fs::read_to_string(&mark).unwrap_or_default();
        if written.ends_with('\n') {
            break written;
        }
        assert!(deadline < LONG, "the shell has not started anything");
        deadline *= 2;
    };
    assert!(sleeper.trim().parse::<u32>().is_ok(), "{sleeper:?}");
    assert!(is_gone(&sleeper), "{sleeper} is left");
}

#[test]
fn a_started_child_has_the_id_that_it_finds_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$"]);
    let children = Children::unheard();
    let child = children.start("the shell", &mut command, folder.path());
    let child = child.unwrap();
    let id = child.id().to_string();
    assert_eq!(child.wait(LONG).unwrap().stdout.trim(), id);
}

#[test]
fn what_a_child_says_is_heard_while_it_runs_and_up_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("heard");
    let mut command = Command::new("sh");
    let waits = "while ! test -e heard; do sleep 0.01; done";
    let script = format!("echo one; echo oops >&2; {waits}; printf 'two\\nthr'; printf ee");
    command.args(["-c", &script]).current_dir(folder.path());
    let children = Children::unheard();
    let child = children.start("the shell", &mut command, folder.path());
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let ended = child.unwrap().wait_hearing(LONG, |said| match said {
        Said::Output(line) => {
            output.push(line.to_owned());
            File::create(&mark).unwrap();
        }
        Said::Error(line) => errors.push(line.to_owned()),
    });
    assert_eq!(output, ["one", "two", "three"]);
    assert_eq!(errors, ["oops"]);
    assert_eq!(ended.unwrap().stdout, "one\ntwo\nthree");
}

#[test]
fn an_interrupt_ends_the_child() {
    let folder = tempfile::tempdir().unwrap();
    let children = Children::unheard();
    let flag = Arc::clone(&children.interrupted);
    let mark = folder.path().join("runs");
    let script = format!("echo > '{}'; exec sleep 600", mark.display());
    let asker = thread::spawn(move || {
        let runs = holds_within(LONG, || mark.exists());
        flag.store(true, Ordering::Relaxed);
        runs
    });
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let result = children.run("sleep", &mut command, folder.path(), LONG);
    assert_eq!(result, Err(ChildError::Interrupted));
    assert!(asker.join().unwrap(), "the child did not begin");
}

/// A zombie counts as gone: its new parent has not looked yet.
fn is_gone(pid: &str) -> bool {
    let pid = pid.trim().parse().unwrap();
    holds_within(LONG, || everburn_record::proc::has_ended(pid))
}
