//! Pretrained classifiers of images: in from a folder of Hugging Face's, and out again.

use std::path::Path;

use everburn_tests::{AssertContains, Ended, Everburn, Run, json_lines};
use serde_json::{Value, json};

use super::image_folders::{draw, train_model};

/// A small vision transformer, and a small ResNet.
pub(super) const VIT: &str =
    "vit={image_size=16,patch_size=8,width=16,layers=2,heads=2,feed_forward=24}";
pub(super) const RESNET: &str = "resnet18={width=2,blocks=[1,1,1,1]}";

/// Two classes in 16 x 16 pixels.
fn train(here: &Path, model: &str, numbers: &str, run: &str) -> Everburn {
    train_model(here, model, "stripes", run).args(["--set", numbers, "--steps", "4"])
}

pub(super) fn stripes(here: &Path) {
    draw(&here.join("stripes/train"), 20);
    draw(&here.join("stripes/val"), 3);
}

/// A folder of a trained model, named after it.
pub(super) fn exported(here: &Path, model: &str, numbers: &str) {
    let run = format!("{model}-run");
    train(here, model, numbers, &run).succeed();
    let export = ["export", &run, "--to", "hugging-face", "--output", model];
    Everburn::new(here, export).succeed();
}

fn predictions(here: &Path, run: &str) -> Vec<Value> {
    let predict = ["predict", run, "--input", "stripes/val/down"];
    let predict = Everburn::new(here, predict).args(["--data", "stripes"]);
    json_lines(&predict.succeed().stdout)
}

#[test]
fn a_vision_transformer_learns_alike_on_one_rank_several_layers_in_parts_and_stages() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    stripes(here);
    let [one, others @ ..] = [
        &["--ranks", "1"][..],
        &["--ranks", "2"],
        &["--ranks", "2", "--mesh", "tensor=2"],
        &["--ranks", "2", "--pipeline", "2"],
    ]
    .map(|ranks| {
        let run = format!("run{}", ranks.join(""));
        train(here, "vit", VIT, &run).args(ranks).succeed();
        Run::new(here.join(run))
    });
    assert_eq!(one.losses("step").len(), 4);
    for other in others {
        other.assert_near(&one, "step", 1e-4);
    }
}

/// `import` of a folder, for the classes of the stripes.
fn import_for(here: &Path, model: &str, run: &str) -> Ended {
    let import = ["import", model, "--data", "stripes", "--run-dir", run];
    Everburn::new(here, import).run()
}

#[test]
fn a_pretrained_classifier_is_found_by_its_folder_with_its_classes() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    stripes(here);
    for (model, numbers, head) in [("vit", VIT, "classifier"), ("resnet18", RESNET, "fc")] {
        exported(here, model, numbers);
        let back = format!("{model}-back");
        let import = ["import", model, "--run-dir", &back];
        Everburn::new(here, import).succeed();
        assert_eq!(
            predictions(here, &back),
            predictions(here, &format!("{model}-run"))
        );

        // The model's order of the classes counts, and its names may be another folder's.
        let config = here.join(model).join("config.json");
        let sound: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
        assert_eq!(sound["id2label"], json!({"0": "across", "1": "down"}));
        let label = |names: Value| {
            let mut other = sound.clone();
            other["id2label"] = names;
            std::fs::write(&config, other.to_string()).unwrap();
        };
        let begin = |run: &str, more: &[&str]| {
            let train = format!("train --init-from {model} --data stripes --run-dir {run}");
            let few = "--steps 1 --batch-size 8 --validation-samples 4";
            Everburn::line(here, train).words(few).args(more).run()
        };
        label(json!({"0": "down", "1": "across"}));
        let run = format!("{model}-order");
        begin(&run, &[]).succeeded();
        let classes = Run::new(here.join(&run)).text("config.toml");
        let classes = classes.replace(['\n', ' '], "");
        classes.assert_contains(["classes=[\"down\",\"across\""]);

        let help = format!("--init-skip '{head}.*'");
        let named = format!("{model}-named");
        import_for(here, model, &named).succeeded();
        label(json!({"0": "up", "1": "down"}));
        let ended = begin("never", &[]);
        let others = [
            "has the classes across, down",
            "on up, down",
            &help,
            "; missing: up; not of the model: across",
        ];
        ended.failed_with(2, &others);
        import_for(here, model, "never").failed_with(2, &others);
        label(json!({"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}));
        let ended = begin("never", &[]);
        ended.failed_with(2, &["has 2 classes, and the model 3", &help]);
        import_for(here, model, "never").failed_with(2, &["has 2 classes, and the model 3"]);
        let run = format!("{model}-new");
        let skip = format!("{head}.*");
        begin(&run, &["--init-skip", &skip]).succeeded();
        let classes = Run::new(here.join(&run)).text("config.toml");
        let classes = classes.replace(['\n', ' '], "");
        classes.assert_contains(["classes=[\"across\",\"down\""]);
    }
    assert!(!here.join("never").exists());
}

#[test]
fn an_adapter_of_a_classifier_has_no_type_of_text() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    stripes(here);
    exported(here, "vit", VIT);
    let train = "train --init-from vit --data stripes --steps 1".split(' ');
    let lora = "--lora 2 --lora-targets query,value --run-dir tuned".split(' ');
    let train = Everburn::new(here, train).args(lora);
    let few = ["--batch-size", "8", "--validation-samples", "4"];
    train.args(few).succeed();
    Everburn::new(here, ["export", "tuned", "--adapter"]).succeed();
    let config = std::fs::read(here.join("tuned/adapter/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert!(config["task_type"].is_null(), "{config}");
    assert_eq!(config["target_modules"].as_array().unwrap().len(), 4);
}

#[test]
fn what_a_vision_transformer_cannot_do_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    stripes(here);
    for (numbers, expected) in [
        (
            "vit={image_size=32}",
            &["scaled to 16 x 16 pixels", "takes 32 x 32"][..],
        ),
        (
            "vit={image_size=16,heads=5}",
            &["5 heads cannot share", "[vit]"],
        ),
        ("vit={image_size=16,width=-1}", &["[vit]"]),
        (
            "vit={image_size=16,depth=2}",
            &["unknown key `vit.depth`", "layers"],
        ),
    ] {
        train(here, "vit", numbers, "never").refused(expected);
    }
    let dropout = "vit={image_size=16,patch_size=8,width=16,layers=2,heads=2,dropout=0.1}";
    let ranks = ["--ranks", "2", "--mesh", "tensor=2"];
    train(here, "vit", dropout, "never")
        .args(ranks)
        .refused(&["dropout of 0.1"]);
    assert!(!here.join("never").exists());
}
