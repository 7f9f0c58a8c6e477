//! Which sizes, channels and stems models of color images take, by data, settings and pretrained weights.

use std::path::Path;

use everburn_tests::{Ended, Everburn, Run, json_lines};
use serde_json::{Value, json};

use super::kinds::write_cifar;
use super::pretrained_images::stripes;

/// A small vision transformer, and a small ResNet.
const VIT: &str =
    "--set=vit={image_size=16,patch_size=8,width=16,layers=2,heads=2,feed_forward=24}";
const GREY_VIT: &str =
    "--set=vit={image_size=16,patch_size=8,width=16,layers=2,heads=2,feed_forward=24,channels=1}";
const RESNET: &str = "--set=resnet50={width=2,blocks=[1,1,1,1]}";

fn train(here: &Path, model: &str, data: &str, run: &str, settings: &[&str]) -> Ended {
    let line = ["train", model, "--data", data, "--run-dir", run];
    let few = "--batch-size 8 --validation-samples 4 --steps 2 --log-every 1";
    let train = Everburn::new(here, line).words(few);
    train.args(settings.iter().copied()).run()
}

fn config(here: &Path, run: &str) -> String {
    Run::new(here.join(run)).text("config.toml")
}

/// The probabilities of the classes of some images.
fn predictions(here: &Path, run: &str) -> Vec<f64> {
    // An imported run has no data of its own.
    let data = ["--data", "stripes", "--input", "stripes/val/down"];
    let predict = ["predict", run].into_iter().chain(data);
    let ended = Everburn::new(here, predict).succeed();
    let lines = json_lines(&ended.stdout).into_iter().map(|line| {
        let numbers = line["probabilities"].as_object().unwrap().clone();
        numbers
            .into_iter()
            .map(|(_, number)| number.as_f64().unwrap())
    });
    lines.flatten().collect()
}

/// Exports a run, and imports the result as `<run>-back`. Its `config.json` and `preprocessor_config.json`.
fn there_and_back(here: &Path, run: &str) -> [Value; 2] {
    let folder = format!("{run}-folder");
    let back = format!("{run}-back");
    let export = ["export", run, "--to", "hugging-face", "--output", &folder];
    Everburn::new(here, export).succeed();
    let import = ["import", &folder, "--run-dir", &back];
    Everburn::new(here, import).succeed();
    let [one, other] = [run, &back].map(|run| predictions(here, run));
    assert_eq!((one.len(), other.len()), (6, 6));
    for (one, other) in one.iter().zip(&other) {
        assert!((one - other).abs() < 1e-5, "{one} {other}");
    }
    ["config.json", "preprocessor_config.json"].map(|file| {
        let text = std::fs::read(here.join(&folder).join(file)).unwrap();
        serde_json::from_slice(&text).unwrap()
    })
}

#[test]
fn a_vision_transformer_has_images_of_its_size_and_channels() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    stripes(here);
    write_cifar(&here.join("cifar"));
    // CIFAR has 32 x 32 pixels, and no stem to choose.
    let ended = train(here, "vit", "cifar", "cifar-run", &[VIT]).succeeded();
    ended.prints(["10 classes, scaled to 16x16"]);
    assert!(!config(here, "cifar-run").contains("stem"));

    let grey = [GREY_VIT, "--set=data.channels=grey"];
    let ended = train(here, "vit", "stripes", "grey", &grey).succeeded();
    ended.prints(["scaled to 16x16, in grey"]);
    let [config, preprocessor] = there_and_back(here, "grey");
    assert_eq!(config["num_channels"], 1);
    assert_eq!(preprocessor["image_mean"].as_array().unwrap().len(), 1);

    let stem = "data.stem is small, and this model has no stem";
    for (settings, expected) in [
        (&[VIT, "--set=data.stem=small"][..], &[stem][..]),
        (
            &[VIT, "--set=data.channels=grey"],
            &["images have 1 channel (grey)", "takes 3 channels"],
        ),
        (&[GREY_VIT], &["takes 1 channel", "data.channels=grey"]),
        (
            &[VIT, "--set=data.size=[16,24]"],
            &["scaled to 16 x 24 pixels", "takes 16 x 16"],
        ),
    ] {
        let ended = train(here, "vit", "stripes", "never", settings);
        ended.failed_with(2, expected);
    }
    assert!(!here.join("never").exists());
}

#[test]
fn a_residual_net_takes_all_images_and_keeps_a_pretrained_stem() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    stripes(here);
    write_cifar(&here.join("cifar"));
    let grey = "--set=data.channels=grey";
    let small = [
        RESNET,
        grey,
        "--set=data.size=[12,16]",
        "--set=data.stem=small",
    ];
    let ended = train(here, "resnet50", "stripes", "small", &small).succeeded();
    ended.prints(["scaled to 12x16, in grey"]);
    Everburn::line(here, "export small --to hugging-face").refused(&["data.stem=small"]);
    // The section of the model may name the stem.
    let own = "--set=resnet50={width=2,blocks=[1,1,1,1],stem=\"Cifar\"}";
    let same = [own, grey, "--set=data.size=[12,16]"];
    train(here, "resnet50", "stripes", "own", &same).succeeded();
    let [one, other] = ["small", "own"].map(|run| Run::new(here.join(run)).losses("step"));
    assert_eq!(one, other);
    let both = [own, "--set=data.stem=large"];
    let ended = train(here, "resnet50", "stripes", "never", &both);
    ended.failed_with(2, &["data.stem is large", "the stem Cifar"]);

    let large = [RESNET, grey, "--set=data.size=[24,32]"];
    train(here, "resnet50", "stripes", "large", &large).succeeded();
    let [json, preprocessor] = there_and_back(here, "large");
    assert_eq!(json["num_channels"], 1);
    assert_eq!(preprocessor["size"], json!({"height": 24, "width": 32}));
    for (key, value) in [
        ("data.mean", "[0.1,0.1,0.1]"),
        ("data.std", "[1.0,1.0,1.0]"),
    ] {
        let import = format!("import large-folder --set {key}={value} --run-dir never");
        let import = Everburn::line(here, import).run();
        let leave = format!("leave {key} out");
        import.failed_with(2, &[&format!("{key} is ["), "another was set", &leave]);
    }

    // CIFAR gets a small stem, but for weights with a large one.
    train(here, "resnet50", "cifar", "cifar-run", &[RESNET]).succeeded();
    assert!(config(here, "cifar-run").contains("stem = \"small\""));
    let line = "train --init-from large-folder --init-skip fc.* --data cifar --run-dir tuned --steps 1 --batch-size 8";
    let tuned = Everburn::line(here, line).succeed();
    tuned.prints(["of 10 classes, scaled to 24x32, in grey"]);
    assert!(config(here, "tuned").contains("stem = \"large\""));
    assert!(!here.join("never").exists());
}
