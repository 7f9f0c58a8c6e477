//! Two ranks, each a process, of which one is killed, continue and learn what undisturbed ones learn, to the bit.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // What an earlier test has left is not gone on with.
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("a folder can be removed");
    }
    fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

fn gan(ranks: usize, steps: usize, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gan"));
    command.args([ranks.to_string(), steps.to_string()]).arg(folder);
    command
}

/// What a training that ends well says.
fn said_by(mut command: Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().expect("the program starts");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

fn line<'a>(said: &'a str, part: &str) -> &'a str {
    said.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("no `{part}` in\n{said}"))
}

/// Kills rank 1 in the middle of a training that would be long; returns the step of the newest checkpoint.
fn kill_in_the_middle(folder: &Path) -> usize {
    let errors = folder.join("errors.txt");
    let mut job = gan(2, 1_000_000, folder)
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&errors).expect("a file can be made"))
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(job.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    let process = lines.find_map(|line| Some(line.split_once("rank 1 of 2 is process ")?.1.to_string()));
    assert!(lines.any(|line| line.starts_with("[rank 0] step 40:")));
    let kill = format!("kill -9 {}", process.expect("rank 1 says its process"));
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("there is a shell").success());
    // To the end of the job, or its output would have nowhere to go.
    lines.for_each(drop);
    assert_eq!(job.wait().expect("the program ends").code(), Some(128 + 9));
    let errors = fs::read_to_string(errors).expect("what the job said");
    assert!(errors.contains("rank 1 was ended by SIGKILL"), "{errors}");
    let names = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let steps = names.filter_map(|name| name.to_string_lossy().strip_prefix("step-")?.parse().ok());
    steps.max().expect("a checkpoint")
}

#[test]
fn a_gan_of_which_a_rank_was_killed_goes_on_and_learns_the_same() {
    let (whole, killed) = (folder("gan-whole"), folder("gan-killed"));
    let done = kill_in_the_middle(&killed);
    let steps = done + 30;
    let (again, undisturbed) = (said_by(gan(2, steps, &killed)), said_by(gan(2, steps, &whole)));
    assert!(again.contains(&format!("continues after step {done}\n")), "{again}");
    // Both losses, and what the generator makes, to the last bit.
    let last = format!("step {steps}:");
    assert_eq!(line(&again, &last), line(&undisturbed, &last));
    let points = |folder: &Path| fs::read(folder.join("points.csv")).expect("points");
    assert!(points(&killed) == points(&whole));
}

#[test]
fn two_ranks_see_as_many_samples_as_one() {
    for ranks in [1, 2] {
        let said = said_by(gan(ranks, 30, &folder(&format!("gan-of-{ranks}"))));
        assert!(line(&said, "samples seen").ends_with("1920 samples seen"), "{said}");
    }
}
