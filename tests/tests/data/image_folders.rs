//! `resnet18` on a folder of images.

use std::path::Path;

use everburn_tests::{Everburn, Run, json_lines};
use image::{Rgb, RgbImage};

/// Two classes of stripes, in images of several sizes.
pub(super) fn draw(folder: &Path, count: u32) {
    for class in ["across", "down"] {
        let below = folder.join(class);
        std::fs::create_dir_all(&below).unwrap();
        for number in 0..count {
            let picture = RgbImage::from_fn(40 + number % 7, 30 + number % 5, |x, y| {
                let along = if class == "across" { y } else { x };
                Rgb([((along + number) % 8 * 30) as u8, 90, 200])
            });
            picture
                .save(below.join(format!("{number:02}.png")))
                .unwrap();
        }
    }
}

/// A ResNet so small that a step takes milliseconds, in one word.
pub(super) const SMALL_RESNET: &str = "--set=resnet18={width=2,blocks=[1,1,1,1]}";

pub(super) fn train(here: &Path, data: &str, run: &str) -> Everburn {
    train_whole(here, data, run).args([SMALL_RESNET])
}

/// The same with the whole `resnet18`.
fn train_whole(here: &Path, data: &str, run: &str) -> Everburn {
    train_model(here, "resnet18", data, run).args(["--epochs", "1"])
}

pub(super) fn train_model(here: &Path, model: &str, data: &str, run: &str) -> Everburn {
    // The size in one word: further `--set` flags do not replace it.
    let small = "--set=data.size=16 --batch-size 8 --validation-samples 4 --log-every 1";
    Everburn::new(here, ["train", model, "--data", data, "--run-dir", run]).words(small)
}

#[test]
fn ranks_share_the_images_of_a_folder_and_predict_the_class_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    draw(&here.join("stripes/train"), 20);
    draw(&here.join("stripes/val"), 3);
    let [one, two] = ["1", "2"].map(|ranks| {
        let train = train_whole(here, "stripes", ranks);
        let train = train.args(["--ranks", ranks, "--sync-batch-norm", "--steps", "2"]);
        let ended = train.succeed();
        let first = "data: stripes, 40 training and 6 test images of 2 classes, scaled to 16x16";
        ended.prints([first, "  resnet18 on stripes  "]);
        Run::new(here.join(ranks))
    });
    assert_eq!(one.losses("step").len(), 2);
    // The same pixels in the same order. In later steps roundings grow, in batch norms of few samples.
    two.assert_near(&one, "step", 2e-3);
    let ended = Everburn::line(here, "predict 2 --input stripes/val/down/01.png").succeed();
    assert!(!ended.stderr.contains("left out"), "{ended}");
    let line = ended.json();
    assert!(
        ["across", "down"].contains(&line["class"].as_str().unwrap()),
        "{ended}"
    );
    let probabilities = line["probabilities"].as_object().unwrap();
    assert!(probabilities.keys().eq(["across", "down"]), "{ended}");
    assert_eq!(line["sample"], "stripes/val/down/01.png");
    // A folder: its images, in the order of their names, on any number of ranks.
    std::fs::write(here.join("stripes/val/down/notes.gif"), "another type").unwrap();
    let [one, two] = ["1", "2"].map(|ranks| {
        let predict = format!("predict 2 --input stripes/val/down --ranks {ranks}");
        let ended = Everburn::line(here, predict).succeed();
        let said = "neither JPEG nor PNG, left out: 1, such as notes.gif";
        assert_eq!(ended.stderr.matches(said).count(), 1, "{ended}");
        ended.stdout
    });
    std::fs::remove_file(here.join("stripes/val/down/notes.gif")).unwrap();
    let samples = |lines: &str| -> Vec<String> {
        let lines = json_lines(lines).into_iter();
        let sample = lines.map(|line| line["sample"].as_str().unwrap().to_owned());
        sample.collect()
    };
    assert_eq!(samples(&one), samples(&two));
    assert_eq!(
        samples(&one).len(),
        std::fs::read_dir(here.join("stripes/val/down"))
            .unwrap()
            .count()
    );
    assert_eq!(samples(&one)[1], "stripes/val/down/01.png");
    // Of another folder all images are tested, and of its own one those that were held out.
    let tested = |data: &[&str]| {
        let eval = Everburn::new(here, ["eval", "2", "--json"]).args(data);
        eval.succeed().json()["test_samples"].as_u64().unwrap()
    };
    draw(&here.join("new"), 4);
    assert_eq!(tested(&["--data", "new"]), 8);
    assert_eq!(tested(&["--data", "new", "--ranks", "2"]), 8);
    assert_eq!(tested(&["--data", "stripes"]), 6);
    assert_eq!(tested(&[]), 6);
    // The run remembers its classes.
    for part in ["train", "test"] {
        let part = here.join("other").join(part);
        draw(&part, 10);
        std::fs::rename(part.join("down"), part.join("up")).unwrap();
    }
    let other = Everburn::new(here, ["eval", "2", "--data", "other"]).run();
    let message = "has the classes across, up, and the model was trained on across, down";
    other.failed_with(2, &[message]);
}

/// Every tenth image of a class is tested, chosen by its place: one fewer and one more in a class moves them.
#[test]
fn a_run_whose_images_changed_says_for_ever_that_its_test_may_have_been_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    draw(&here.join("stripes"), 20);
    let ended = train(here, "stripes", "run").succeed();
    ended.prints(["data: stripes, 36 training and 4 test images of 2 classes"]);
    let warned = |line: &[&str], expected: bool| {
        let ended = Everburn::new(here, line.iter().copied()).succeed();
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert_eq!(
            said.contains("that the training learned from"),
            expected,
            "{ended}"
        );
    };
    let changed = || Run::new(here.join("run")).report()["data_changed"] == true;
    let eval: &[&str] = &["eval", "run"];
    let resume = |epochs| ["train", "--resume", "--run-dir", "run", "--epochs", epochs];
    warned(eval, false);
    warned(&resume("2"), false);
    assert!(!changed());
    let class = here.join("stripes/across");
    std::fs::rename(class.join("00.png"), class.join("20.png")).unwrap();
    warned(eval, true);
    warned(&resume("3"), true);
    assert!(changed());
    warned(eval, true);
    warned(&["eval", "run", "--data", "stripes"], true);
    // With the same images once more, it is as true as before.
    warned(&resume("4"), false);
    assert!(changed());
    warned(eval, true);
    let page = Everburn::new(here, ["report", "run"]).succeed();
    let written = std::fs::read_to_string(here.join("run/report.html")).unwrap();
    assert!(written.contains("some may have been trained on"), "{page}");
}

/// Of a folder with `train` and `test`, an evaluation reads only `test`.
#[test]
fn an_evaluation_warns_of_changed_test_images_and_not_of_more_to_learn_from() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    draw(&here.join("stripes/train"), 20);
    draw(&here.join("stripes/test"), 3);
    train(here, "stripes", "run").succeed();
    let warned = |expected: bool| {
        let ended = Everburn::line(here, "eval run --json").succeed();
        let said = ended.stderr.contains("that the training learned from");
        assert_eq!(said, expected, "{ended}");
        let result = ended.json();
        assert_eq!(result["data_changed"], expected, "{ended}");
        assert!(result["data"].as_str().unwrap().contains("/stripes, "));
    };
    warned(false);
    // All images of the folder that is named are tested.
    for (data, times) in [("stripes/train", 1), ("stripes/test", 0)] {
        let eval = ["eval", "run", "--data", data];
        let ended = Everburn::new(here, eval).succeed();
        let said = "a test on the set that the training learned from";
        assert_eq!(ended.stderr.matches(said).count(), times, "{data}: {ended}");
    }
    // Of the copies in another folder, one is no copy any more.
    draw(&here.join("others"), 3);
    std::fs::copy(
        here.join("others/down/02.png"),
        here.join("others/down/01.png"),
    )
    .unwrap();
    let ended = Everburn::line(here, "eval run --json --data others").succeed();
    ended.warns(["5 of 6 files of the tested folder are in the folder of the training, too"]);
    assert_eq!(ended.json()["data_changed"], true, "{ended}");
    let (learnt, tested) = (
        here.join("stripes/train/across"),
        here.join("stripes/test/across"),
    );
    std::fs::copy(learnt.join("00.png"), learnt.join("20.png")).unwrap();
    warned(false);
    // It is the folder of the training still.
    let eval = ["eval", "run", "--json", "--data", "stripes/train"];
    let ended = Everburn::new(here, eval).succeed();
    assert_eq!(ended.json()["data_changed"], true, "{ended}");
    std::fs::rename(tested.join("00.png"), learnt.join("21.png")).unwrap();
    warned(true);
}

#[test]
fn weights_alone_are_a_run_that_predicts_and_their_classes_are_numbered() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    draw(&here.join("stripes/train"), 20);
    draw(&here.join("stripes/val"), 3);
    let train = train_whole(here, "stripes", "a").args(["--steps", "1"]);
    train.succeed();
    Everburn::line(here, "export a --output a.pth").succeed();
    let import = |run: &str, more: &[&str]| {
        let import = ["import", "a.pth", "resnet18", "--run-dir", run];
        Everburn::new(here, import).args(more).run()
    };
    import("alone", &[]).succeeded();
    import("named", &["--data", "stripes"]).succeeded();
    draw(&here.join("more"), 20);
    std::fs::rename(here.join("more"), here.join("three")).unwrap();
    std::fs::create_dir(here.join("three/up")).unwrap();
    for number in 0..12 {
        let [from, to] =
            ["down", "up"].map(|class| here.join(format!("three/{class}/{number:02}.png")));
        std::fs::copy(from, to).unwrap();
    }
    let head = [
        "fc.weight has shape [2, 512] in the file and [3, 512] in the model",
        "train resnet18 --init-from a.pth --init-skip 'fc.*' --data",
    ];
    import("never", &["--data", "three"]).failed_with(2, &head);
    assert!(!here.join("never").exists());
    // The run's own data name the classes.
    Everburn::line(here, "eval alone --data stripes").succeed();
    // None of the images it learned from, or was named with, is needed.
    let image = here.join("one.png");
    std::fs::copy(here.join("stripes/val/down/01.png"), &image).unwrap();
    std::fs::remove_dir_all(here.join("stripes")).unwrap();
    let predicted = |run: &str| {
        let predict = ["predict", run, "--input", "one.png"];
        Everburn::new(here, predict).succeed().json()
    };
    let [alone, named, own] = ["alone", "named", "a"].map(predicted);
    assert!(
        ["across", "down"].contains(&own["class"].as_str().unwrap()),
        "{own}"
    );
    let [named_by, numbered_by] =
        [&named, &alone].map(|line| line["probabilities"].as_object().unwrap());
    assert!(named_by.keys().eq(["across", "down"]), "{named}");
    assert!(numbered_by.keys().eq(["0", "1"]), "{alone}");
    assert!(
        named_by.values().eq(numbered_by.values()),
        "{named} {alone}"
    );
    let number = usize::from(named["class"] == "down").to_string();
    assert_eq!(alone["class"], number);
    Everburn::new(here, ["eval", "alone"]).refused(&["no folder of images is given", "--data"]);
}

#[test]
fn weights_lead_to_the_settings_or_the_model_that_they_fit() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    draw(&here.join("stripes"), 20);
    let train = train_whole(here, "stripes", "run");
    train.args(["--steps", "1"]).succeed();
    Everburn::line(here, "export run --output a.pth").succeed();
    let refused = |model: &str, settings: &[&str], help: &str| {
        let line = ["train", model, "--data", "stripes", "--init-from", "a.pth"];
        let settings = settings.iter().map(|setting| format!("--set={setting}"));
        let train = Everburn::new(here, line).args(["--run-dir", "other"]);
        train.args(settings.collect::<Vec<_>>()).refused(&[help]);
        assert!(!here.join("other").exists());
    };
    let (small, large) = ("data.stem=small", "data.stem=large");
    refused(
        "resnet18",
        &[small],
        "--set data.stem=large builds the model",
    );
    let (deep, blocks) = (
        "resnet18.blocks=[3,4,6,3]",
        "--set 'resnet18.blocks=[2,2,2,2]'",
    );
    let builds = format!("{blocks} builds the model that the weights fit");
    refused("resnet18", &[deep, large], &builds);
    let builds = format!("{blocks} --set data.stem=large builds the model");
    refused("resnet18", &[deep, small], &builds);
    let narrow = "resnet18.width=16";
    let builds = "--set resnet18.width=64 builds the model that the weights fit";
    refused("resnet18", &[narrow, large], builds);
    let builds = format!("{blocks} --set resnet18.width=64 --set data.stem=large builds the model");
    refused("resnet18", &[narrow, deep, small], &builds);
    let another = "the weights fit resnet18: name it in place of resnet50";
    refused("resnet50", &[large], another);
    let both = format!("{another}, with --set data.stem=large");
    refused("resnet50", &[small], &both);
}

#[test]
fn an_added_class_is_named_by_a_test_and_by_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for part in ["train", "val"] {
        draw(&here.join("stripes").join(part), 8);
    }
    train(here, "stripes", "run").succeed();
    for part in ["train", "val"] {
        draw(&here.join("more"), 3);
        let added = here.join("stripes").join(part).join("added");
        std::fs::rename(here.join("more/across"), added).unwrap();
    }
    let needed = |work: &str| {
        format!(
            "a {work} needs a folder for each class of the model and no other; not of the model: added"
        )
    };
    let eval = Everburn::new(here, ["eval", "run"]).refused(&[&needed("test")]);
    assert!(!eval.stderr.contains("--init-skip"), "{eval}");
    let resume = ["train", "--resume", "--run-dir", "run", "--epochs", "2"];
    let anew = "stripes --init-from run --init-skip 'fc.*'`";
    let resume = Everburn::new(here, resume).run();
    resume.failed_with(2, &[&needed("resume"), "train resnet18 --data", anew]);
}

#[test]
fn augmented_images_are_the_same_on_any_number_of_ranks_and_threads() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    draw(&here.join("stripes/train"), 20);
    draw(&here.join("stripes/val"), 3);
    let losses = |run: &str, augment: &str, flags: &[&str]| {
        let train = train(here, "stripes", run)
            .args(["--virtual-ranks", "2", "--set", augment])
            .args(flags.iter().copied());
        train.succeed();
        Run::new(here.join(run)).losses("step")
    };
    let all = "data.augment=crop:0.5,flip,color,rotate,erase,rand,mixup,cutmix";
    let one = losses("one", all, &[]);
    let two = losses("two", all, &["--ranks", "2", "--workers", "2"]);
    assert_eq!(one, two);
    assert_ne!(one, losses("plain", "data.augment=none", &[]));
    let grey = Everburn::new(here, ["train", "mnist", "--data", "synthetic"]);
    grey.args(["--set", "data.augment=mixup"])
        .refused(&["do not take mixup", "resnet18"]);
    // The samples to validate on are as they are.
    let eval = |run: &str| Everburn::new(here, ["eval", run]).succeed();
    eval("one");
    let wrong = train(here, "stripes", "wrong").args(["--set", "data.augment=crop,warp"]);
    wrong.refused(&["`warp` is no change of images", "rand:2:9"]);
    let text = Everburn::new(here, ["train", "gpt-nano", "--data", "embedded"]);
    text.args(["--set", "data.augment=flip"])
        .refused(&["data.augment changes images"]);
    Everburn::line(here, "train mnist --data synthetic --train-samples 100")
        .words("--data-on-device")
        .args(["--set", "data.augment=shift"])
        .refused(&["--data-on-device", "are augmented"]);
}
