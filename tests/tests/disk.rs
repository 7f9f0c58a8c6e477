//! Disks that do not take a checkpoint.

use std::path::Path;
use std::process::Command;

use everburn_tests::{Ended, Everburn, Run, skip};

/// What the test process prepares before it becomes everburn, in a name space of mounts that ends with it.
/// `$1` and so on are everburn's arguments; the run directory is `run`, and is kept in `kept`.
fn behind(folder: &Path, prepare: &str, flags: &[&str]) -> Ended {
    let script = format!(
        "set -e; mkdir run; {prepare}; set +e; \"$0\" \"$@\"; code=$?; cp -r run kept; exit $code"
    );
    let command = Everburn::train(folder, "mlp")
        .args(["--run-dir", "run"])
        .args(flags);
    let arguments = ["--mount", "sh", "-c", &script];
    command.by(folder, Path::new("unshare"), arguments).run()
}

/// Whether file systems can be mounted where no other process sees them.
fn can_mount(test: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let tried = Command::new("unshare")
        .args(["--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(folder.path())
        .output();
    let can = tried.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        skip(
            test,
            "no file system can be mounted here; it takes root and `unshare`",
        );
    }
    can
}

/// How many bytes a checkpoint of an undisturbed run has, and how many the model of it.
fn sizes() -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "1", "--run-dir", "run"];
    Everburn::train(folder.path(), "mlp").args(flags).succeed();
    let run = Run::new(folder.path().join("run"));
    let files = std::fs::read_dir(run.checkpoint(1)).unwrap();
    let whole = files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    let model = std::fs::metadata(run.checkpoint(1).join("model.safetensors"));
    (whole, model.unwrap().len())
}

/// The names in a run's folder of checkpoints, unfinished ones included.
fn checkpoints(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("kept/checkpoints")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names = names.collect::<Vec<_>>();
    names.sort();
    names
}

#[test]
fn on_a_full_disk_the_training_goes_on_and_the_earlier_checkpoint_stays() {
    let test = "a full disk";
    if !can_mount(test) {
        return;
    }
    // Room for one checkpoint and the model at the end, not for two checkpoints.
    let kib = (sizes().0 * 8 / 5) / 1024 + 64;
    let mount = format!("mount -t tmpfs -o size={kib}k tmpfs run");
    let folder = tempfile::tempdir().unwrap();
    let ended = behind(folder.path(), &mount, &["--epochs", "3"]).succeeded();
    for epoch in ["epoch-0002", "epoch-0003"] {
        let failed =
            format!("writing the checkpoint run/checkpoints/{epoch} failed: No space left");
        ended.warns([&failed]);
    }
    ended.warns([
        "it needs ",
        " are free",
        "epoch-0001 is the newest good one",
        "the training continues, because --on-checkpoint-failure is not `stop`",
        // Said again at the end, where it is read.
        "was not written, the newest one is of step ",
    ]);
    assert_eq!(checkpoints(folder.path()), ["epoch-0001"], "{ended}");
    let kept = Run::new(folder.path().join("kept"));
    assert_eq!(kept.epochs(), 3);
    assert!(kept.path.join("model.safetensors").is_file());
    let events = kept.text("events.jsonl");
    assert_eq!(
        events.matches(r#""kind":"checkpoint-failed""#).count(),
        2,
        "{events}"
    );
    let doctor = Everburn::new(folder.path(), ["doctor", "kept"]).run();
    doctor.prints(["2 checkpoints could not be written; the first, after step "]);
    // The earlier one is good: the run continues from it where there is space.
    let resumed = Everburn::line(folder.path(), "train --resume --run-dir kept").succeed();
    resumed.warns(["resuming from kept/checkpoints/epoch-0001"]);
    assert_eq!(checkpoints(folder.path()).last().unwrap(), "epoch-0003");
}

#[test]
fn on_a_full_disk_the_training_stops_where_that_is_wanted() {
    let test = "a full disk that ends the training";
    if !can_mount(test) {
        return;
    }
    let kib = (sizes().0 * 8 / 5) / 1024 + 64;
    let mount = format!("mount -t tmpfs -o size={kib}k tmpfs run");
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "50", "--on-checkpoint-failure", "stop"];
    let ended = behind(folder.path(), &mount, &flags);
    ended.failed_with(
        1,
        &[
            "writing the checkpoint run/checkpoints/epoch-0002 failed: No space left",
            "epoch-0001 is the newest good one",
        ],
    );
    assert_eq!(checkpoints(folder.path()), ["epoch-0001"], "{ended}");
    assert!(Run::new(folder.path().join("kept")).epochs() < 5, "{ended}");
}

#[test]
fn a_folder_that_is_read_only_is_named_and_the_training_goes_on() {
    let test = "a read-only folder";
    if !can_mount(test) {
        return;
    }
    let mount = "mkdir run/checkpoints && mount -t tmpfs -o ro tmpfs run/checkpoints";
    let folder = tempfile::tempdir().unwrap();
    let ended = behind(folder.path(), mount, &["--epochs", "2"]).succeeded();
    let failed = "writing the checkpoint run/checkpoints/epoch-0001 failed: Read-only file system";
    ended.warns([
        failed,
        "there is no earlier one",
        "choose another --run-dir",
    ]);
    let kept = Run::new(folder.path().join("kept"));
    assert_eq!(kept.epochs(), 2);
    assert!(kept.path.join("model.safetensors").is_file());

    let folder = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "50", "--on-checkpoint-failure", "stop"];
    let ended = behind(folder.path(), mount, &flags);
    ended.failed_with(1, &[failed]);
}

/// What works where nothing can be mounted: a limit on the length of files, between the model's and that of
/// the optimizer's state, which is twice as long.
#[test]
fn where_files_may_not_be_so_long_the_training_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let blocks = sizes().1 * 3 / 2 / 512;
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let ended = Everburn::train(folder.path(), "mlp")
        .words("--run-dir kept --epochs 2 --set training.seed=77")
        .by(folder.path(), Path::new("dash"), ["-c", &script])
        .succeed();
    let failed = "writing the checkpoint kept/checkpoints/epoch-0002 failed: File too large";
    ended.warns([failed]);
    assert_eq!(
        checkpoints(folder.path()),
        [""; 0],
        "nothing unfinished is left: {ended}"
    );
    assert!(folder.path().join("kept/model.safetensors").is_file());
    // There is nothing to resume from, and the advice can be followed.
    let warned =
        "was not written, there is none; what was trained is in kept/model.safetensors, and `";
    let (_, advised) = ended.stderr.split_once(warned).expect("advice");
    let (command, what_it_does) = advised.split_once('`').unwrap();
    let expected = " begins a training with it, with the data and settings of this one";
    assert!(what_it_does.starts_with(expected), "{ended}");
    // As it is copied.
    Everburn::new(folder.path(), command.split(' ').skip(1)).succeed();
    let config = |run: &str| Run::new(folder.path().join(run)).text("config.toml");
    let (before, now) = (config("kept"), config("runs/mlp-1"));
    let weights = |line: &&str| line.starts_with("init_from = ");
    let (of_weights, rest): (Vec<&str>, Vec<&str>) = now.lines().partition(weights);
    assert!(of_weights.concat().ends_with("/kept\""), "{now}");
    assert_eq!(before.lines().collect::<Vec<_>>(), rest);
    assert!(now.contains("seed = 77"), "{now}");
}

#[test]
fn what_the_test_has_found_is_told_where_the_model_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let blocks = sizes().1 / 2 / 512;
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let ended = Everburn::train(folder.path(), "mlp")
        .args(["--run-dir", "kept", "--epochs", "1"])
        .by(folder.path(), Path::new("dash"), ["-c", &script])
        .run();
    ended.prints(["test accuracy "]);
    assert!(!ended.stdout.contains("recorded in"), "{ended}");
    ended.failed_with(1, &["model.safetensors", "failed: File too large"]);
}

#[test]
fn an_output_on_a_full_disk_leads_to_its_flag() {
    let test = "an output on a full disk";
    if !can_mount(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "1", "--run-dir", "run"];
    Everburn::train(folder.path(), "mlp").args(flags).succeed();
    let script = "mkdir -p full; mount -t tmpfs -o size=4k tmpfs full; exec \"$0\" \"$@\"";
    for words in [
        ["export", "run", "--output", "full/a.pt"].as_slice(),
        &["export", "run", "--output", "full/a.safetensors"],
        &["predict", "run", "--output", "full/a.jsonl"],
        &["report", "run", "--output", "full/a.html"],
        &["compare", "run", "run", "--html", "full/a.html"],
    ] {
        let command = Everburn::new(folder.path(), words);
        let behind = ["--mount", "sh", "-c", script];
        let ended = command
            .by(folder.path(), Path::new("unshare"), behind)
            .run();
        let [.., flag, output] = words else {
            panic!("{words:?}")
        };
        let told = format!(
            "writing {output} failed: No space left on device (os error 28); free some space or choose another {flag}"
        );
        ended.failed_with(1, &[&told]);
        assert!(!ended.stderr.contains(".everburn-"), "{ended}");
    }
}
