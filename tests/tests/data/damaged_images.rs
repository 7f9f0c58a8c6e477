//! Folders of images that are damaged, or none.

use std::path::Path;

use everburn_tests::{Everburn, Run};

use super::image_folders::{draw, train};

/// Damages the pixels of a PNG file, whose beginning and end stay: it is found when it is read.
fn damage_pixels(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let data = bytes.windows(4).position(|part| part == b"IDAT").unwrap();
    // No stream of zlib begins so.
    bytes[data + 4] = 0xff;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn what_is_no_folder_of_images_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let refused = |data: &str, messages: &[&str]| {
        let ended = train(here, data, "run").refused(messages);
        let is_explained = ended.stderr.contains("--data takes the path");
        assert_eq!(is_explained, data == "nowhere", "{ended}");
        assert!(!here.join("run").exists());
    };
    refused(
        "nowhere",
        &[
            "nowhere",
            "--data takes the path of a file or folder, as in `--data /",
        ],
    );
    draw(&here.join("few"), 4);
    refused(
        "few",
        &["few/across: the class across has 4 of at least 10 images"],
    );
    draw(&here.join("half/train"), 4);
    refused("half", &["half: it has train, and neither test nor val"]);
    let five = Everburn::line(here, "train resnet18 --data damaged --run-dir run")
        .args(["--set=resnet18.classes=5"]);
    draw(&here.join("damaged"), 20);
    let said = [
        "damaged has 2 classes, and the model 5",
        "leave resnet18.classes out",
    ];
    five.refused(&said);
    let none = Everburn::new(here, ["train", "resnet18", "--run-dir", "run"]);
    none.refused(&["no folder of images is given", "--data"]);
    std::fs::write(here.join("damaged/down/07.png"), "no image").unwrap();
    damage_pixels(&here.join("damaged/across/03.png"));
    let refused = |damaged: &str| {
        let ended = train(here, "damaged", "run").run();
        assert_ne!(ended.code(), 0, "{ended}");
        ended.warns([format!("{damaged} is damaged, or no image")]);
        here.join("run").exists()
    };
    // A file without its beginning or its end is found before there is a run, and any other when it is read.
    assert!(!refused("07.png"));
    draw(&here.join("drawn"), 8);
    std::fs::copy(
        here.join("drawn/down/07.png"),
        here.join("damaged/down/07.png"),
    )
    .unwrap();
    assert!(refused("03.png"));
}

#[test]
fn images_that_are_cut_off_are_named_before_a_training_wherever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for (set, count) in [("train", 20), ("test", 3)] {
        draw(&here.join("stripes").join(set), count);
    }
    for file in ["train/down/02.png", "test/across/01.png"] {
        let file = here.join("stripes").join(file);
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    }
    for ranks in ["1", "2"] {
        let ended = train(here, "stripes", "run").args(["--ranks", ranks]).run();
        assert_ne!(ended.code(), 0, "{ended}");
        ended.warns([
            "stripes/train/down/02.png is damaged, or no image",
            "put a readable image in its place",
            "one other is damaged: ",
            "stripes/test/across/01.png",
        ]);
        assert!(!here.join("run").exists(), "{ended}");
    }
}

#[test]
fn a_start_that_makes_no_step_gives_the_folder_back_to_the_run_that_was_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    draw(&here.join("sound"), 20);
    std::fs::write(here.join("sound/down/notes.webp"), "another type").unwrap();
    let ended = train(here, "sound", "run").succeed();
    let said = "; files that are neither JPEG nor PNG, left out: 1, such as down/notes.webp";
    ended.prints([said]);
    let report = Run::new(here.join("run")).report();
    draw(&here.join("damaged"), 20);
    for class in ["across", "down"] {
        for image in here.join("damaged").join(class).read_dir().unwrap() {
            damage_pixels(&image.unwrap().path());
        }
    }
    for ranks in ["1", "2", "1"] {
        let failed = train(here, "damaged", "run").args(["--ranks", ranks]).run();
        assert_ne!(failed.code(), 0, "{failed}");
        let back = "no step was recorded: run contains the earlier run again, and run~failed";
        failed.warns([back]);
        // The log is named where it is now.
        let log = failed.stderr.contains("run~failed/logs/rank-");
        assert_eq!(log, ranks == "2", "{failed}");
        assert!(!failed.stderr.contains("run/logs/rank-"), "{failed}");
        assert_eq!(Run::new(here.join("run")).report(), report);
        assert!(here.join("run~failed/config.toml").is_file());
        assert!(!here.join("run~1").exists());
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let failed = train(here, "sound", "run")
        .args(["--monitor", &address])
        .env("EVERBURN_JOB_TOKEN", "a secret of sixteen bytes")
        .run();
    assert_ne!(failed.code(), 0, "{failed}");
    assert_eq!(Run::new(here.join("run")).report(), report, "{failed}");
}

#[test]
fn a_damaged_test_image_costs_no_training() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    draw(&here.join("stripes/train"), 20);
    draw(&here.join("stripes/test"), 3);
    let image = here.join("stripes/test/down/01.png");
    let sound = std::fs::read(&image).unwrap();
    for (run, ranks) in [
        ("alone", &["--ranks", "1"][..]),
        // A second restart would come after a pause.
        (
            "elastic",
            &["--ranks", "2", "--elastic", "1:2", "--max-restarts", "1"],
        ),
    ] {
        damage_pixels(&image);
        let ended = train(here, "stripes", run).args(ranks).run();
        assert_eq!(ended.code(), 1, "{ended}");
        ended.warns([
            "01.png is damaged, or no image",
            "put a readable image in its place",
            "model.safetensors of the run directory has what was learned",
            "train --resume --run-dir",
        ]);
        std::fs::write(&image, &sound).unwrap();
        let eval = Everburn::new(here, ["eval", run, "--ranks", "1"]).succeed();
        eval.prints([" of 6)"]);
        let resume = ["train", "--resume", "--run-dir", run];
        Everburn::new(here, resume).succeed();
        assert_eq!(Run::new(here.join(run)).number("test_samples"), 6.0);
    }
}
