//! A process that writes checkpoints is killed at random moments, two hundred times: the newest good one
//! always loads, and is no older than the last that was reported as written.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use everburn_train::BestEpoch;
use everburn_train::checkpoint::{Checkpoint, CheckpointFolder, Progress};

const KILLS: u64 = 200;

/// This many of them at least must come while a checkpoint is written.
const FEW: usize = 3;

/// Where the process that is killed writes; it does nothing without.
const FOLDER: &str = "EVERBURN_TEST_CHECKPOINTS";

/// What it says before the number of a step whose checkpoint is written.
const WRITTEN: &str = "written ";

/// The shortest model of a checkpoint, so long that many kills come while one is written.
const BYTES: usize = 1 << 19;

/// The longest that a kill comes after a checkpoint was reported: some take about as long to be written.
const LONGEST: Duration = Duration::from_millis(25);

/// A hang is an error after so long.
const DEADLINE: Duration = Duration::from_secs(60);

/// Numbers that look random (Steele, Lea and Flood 2014: SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A safetensors file with one tensor, all of whose numbers are the step's.
fn tensors(step: usize, bytes: usize) -> Vec<u8> {
    let header =
        format!(r#"{{"w":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + bytes, step as u8);
    file
}

/// The checkpoint after `step` steps: three to a place, so that many replace another, and of 0.75 to 3 MiB.
fn checkpoint(step: usize) -> Checkpoint {
    let place = step / 3;
    let bytes = BYTES << (step % 3);
    Checkpoint {
        progress: Progress {
            epoch: place / 4,
            batches: place % 4,
            step,
            best: Some(BestEpoch {
                epoch: place / 8,
                validation_loss: 0.1,
                value: None,
            }),
            ..Progress::default()
        },
        files: [
            ("model.safetensors".to_string(), tensors(step, bytes)),
            (
                "optimizer.safetensors".to_string(),
                tensors(step, bytes / 2),
            ),
        ]
        .into(),
    }
}

#[test]
#[ignore = "the process that the other test kills; it writes until then"]
fn write_checkpoints_until_killed() {
    let folder = std::env::var_os(FOLDER).expect("the other test starts this one");
    let folder = CheckpointFolder::new(folder, 2);
    folder.clean().unwrap();
    let first = folder
        .load_newest()
        .map_or(1, |newest| newest.checkpoint.progress.step + 1);
    for step in first.. {
        folder.save(&checkpoint(step)).unwrap();
        // Past the harness, which would keep it.
        writeln!(std::io::stdout(), "\n{WRITTEN}{step}").unwrap();
    }
}

/// Starts a writer, kills it at a random moment, and returns the last step that it reported.
fn kill_a_writer(folder: &Path, random: &mut Random) -> Option<usize> {
    let arguments =
        "--exact checkpoint_kills::write_checkpoints_until_killed --ignored --nocapture".split(' ');
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(writer.stdout.take().unwrap());
    let (reported, reports) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if let Some(step) = line.strip_prefix(WRITTEN) {
                let _ = reported.send(step.parse::<usize>().unwrap());
            }
        }
    });
    let mut last = None;
    for _ in 0..=random.next() % 3 {
        last = Some(reports.recv_timeout(DEADLINE).expect("the writer goes on"));
    }
    // Not a wait for something: the moment of the kill is to be any.
    let nanoseconds = random.next() % LONGEST.as_nanos() as u64;
    std::thread::sleep(Duration::from_nanos(nanoseconds));
    writer.kill().unwrap();
    writer.wait().unwrap();
    reader.join().unwrap();
    reports.try_iter().last().or(last)
}

#[test]
fn after_each_of_two_hundred_kills_the_newest_good_checkpoint_loads() {
    let seed = 6;
    let mut random = Random(seed);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), 2);
    let (mut ahead, mut unfinished) = (0, 0);
    for kill in 0..KILLS {
        let reported = kill_a_writer(folder.path(), &mut random).unwrap();
        let newest = checkpoints.load_newest();
        let newest = newest.unwrap_or_else(|e| panic!("seed {seed}, kill {kill}: {e}"));
        let progress = &newest.checkpoint.progress;
        assert!(
            newest.refused.is_empty(),
            "kill {kill}: {:?}",
            newest.refused
        );
        assert!(
            progress.step >= reported,
            "kill {kill}: {progress:?}, {reported} was written"
        );
        assert_eq!(newest.checkpoint, checkpoint(progress.step), "kill {kill}");
        ahead += usize::from(progress.step > reported);
        let mut entries = std::fs::read_dir(folder.path()).unwrap();
        let is_partial = |name: std::ffi::OsString| name.to_string_lossy().starts_with(".partial");
        unfinished += usize::from(entries.any(|entry| is_partial(entry.unwrap().file_name())));
    }
    // How many there are depends on the disk; without any the test would have tried nothing.
    assert!(
        unfinished >= FEW,
        "{unfinished} of {KILLS} kills came while one was written, {ahead} before one was told of"
    );
    // The best one and the newest two.
    let writer = checkpoints.places().unwrap();
    assert!(writer.len() <= 4, "{writer:?}");
    checkpoints.clean().unwrap();
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, writer.len(), "only checkpoints are left");
}
