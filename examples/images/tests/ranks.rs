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
    let weights = |run: &Path| std::fs::read(run.join("model.safetensors")).expect("a trained model");
    assert!(weights(&whole) == weights(&killed));
}
