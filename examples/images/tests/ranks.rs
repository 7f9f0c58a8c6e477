//! Two ranks, each a process, learn images in folders; they are killed once and continue, and learn what undisturbed ones
//! learn, to the bit.

use std::path::Path;
use std::process::Command;

use image::{Rgb, RgbImage};

/// Stripes that are or stand, in images of several sizes, in a folder for each class.
fn draw(folder: &Path) {
    for (part, count) in [("train", 120), ("test", 20)] {
        for class in ["lying", "standing"] {
            let folder = folder.join(part).join(class);
            std::fs::create_dir_all(&folder).expect("a folder can be made");
            for number in 0..count {
                let picture = RgbImage::from_fn(40 + number % 7, 30 + number % 5, |x, y| {
                    let along = if class == "lying" { y } else { x };
                    Rgb([((along + number) % 8 * 30) as u8, 90, 200])
                });
                let path = folder.join(format!("{number}.png"));
                picture.save(path).expect("an image can be written");
            }
        }
    }
}

fn train(run: &Path, data: &Path, more: &[&str]) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_images"));
    let line = "train --ranks 2 --epochs 9 --steps 30 --checkpoint-every 10steps --run-dir";
    let folder = format!("images.folder={data:?}");
    command.args(line.split(' ')).arg(run).args(["--set", &folder]);
    command.args(more).status().expect("the program starts").success()
}

#[test]
fn a_training_that_was_killed_goes_on_and_learns_the_same() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (data, whole, killed) = (folder.join("images"), folder.join("images-whole"), folder.join("images-killed"));
    draw(&data);
    assert!(train(&whole, &data, &[]));
    assert!(!train(&killed, &data, &["--chaos", "kill=1@step:15"]));
    assert!(train(&killed, &data, &["--resume"]));
    assert!(!train(&folder.join("images-refused"), &data, &["--set", "images.classes=['a', 'b']"]));
    let weights = |run: &Path| std::fs::read(run.join("model.safetensors")).expect("a trained model");
    assert!(weights(&whole) == weights(&killed));
    assert!(whole.join("confusion.json").is_file());
    let mixed = folder.join("images-mixed");
    assert!(train(&mixed, &data, &["--set", "images.augment=mixup"]));
    assert!(weights(&whole) != weights(&mixed), "images are mixed");

    // The trained model needs the images no more: for others, and where they are now.
    let moved = folder.join("images-moved");
    let _ = std::fs::remove_dir_all(&moved);
    std::fs::rename(&data, &moved).expect("a folder can be moved");
    let told = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_images"));
        let output = command.args(words).output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let run = whole.to_str().expect("a path in UTF-8");
    for without_data in [&["eval", run][..], &["train", "--resume", "--run-dir", run, "--steps", "40"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_images"));
        let output = command.args(without_data).output().expect("the program starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("--set images.folder=VALUE names another value"), "{error}");
    }
    let evaluated = told(&["eval", run, "--json", "--set", &format!("images.folder={moved:?}")]);
    assert!(evaluated.contains("\"test_samples\":40,"), "{evaluated}");
    let learnt = format!("images.folder={:?}", moved.join("train"));
    let evaluated = told(&["eval", run, "--json", "--set", &learnt]);
    assert!(evaluated.contains("\"data_changed\":true"), "the images that it learned from: {evaluated}");
    let help = told(&["train", "--help"]);
    assert!(help.contains("--ranks") && !help.contains("--data "), "flags of other tasks are not shown: {help}");
    let new = moved.join("test/lying");
    let predicted = told(&["predict", run, "--input", new.to_str().expect("a path in UTF-8")]);
    assert_eq!(predicted.lines().count(), 20, "{predicted}");
    assert!(predicted.lines().all(|line| line.contains("\"class\":") && line.contains("\"probabilities\":{")));
}
