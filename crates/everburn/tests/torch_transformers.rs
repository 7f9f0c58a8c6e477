//! Pretrained models of Hugging Face's transformers and of torchvision: with the same logits, fine-tuned as PyTorch does,
//! and given back.

use std::path::Path;
use std::process::Command;

use burn::prelude::*;
use burn::tensor::{Int, TensorData};
use everburn::burn;
use everburn::models::gpt::GptConfig;
use everburn::models::llama::LlamaConfig;
use everburn::models::resnet18::ResNet18Config;
use everburn::models::resnet50::ResNet50Config;
use everburn::models::vit::ViTConfig;
use everburn::nn::InBlocks;
use everburn::tasks::{PretrainedDecoder, PretrainedImageModel};
use everburn::train::{Patterns, load_state_dict_except};
use everburn_tests::{Everburn, Run};
use serde_json::Value;

/// The kinds of decoders that the script makes; the last one's weights are in several files.
const TEXTS: [&str; 4] = ["gpt2", "llama", "qwen2", "mistral"];

/// The kinds of classifiers of images; the second one's weights are in several files.
const IMAGES: [&str; 4] = ["vit", "vit-plain", "resnet-basic", "resnet-bottleneck"];

/// Torchvision's, by the names of the tasks here.
const TORCHVISION: [&str; 2] = ["resnet18", "resnet50"];

/// The largest difference of a logit.
const TOLERANCE: f32 = 1e-4;

/// Long enough for eight windows of 16 tokens to train on, and one to test by.
const TEXT: &str = "First the fire, then the forge, and then the anvil; so the smith had taught it, and so the \
                    keeper of the fires did it every morning, before the village had its first light and its \
                    first bread. Nobody asked him why. First the fire, then the forge, then the anvil.\n";

/// Flags for eight windows of 16 tokens of that text.
const WINDOWS: [&str; 8] = [
    "--tokenizer",
    "byte",
    "--data",
    "text.txt",
    "--set",
    "text.window=16",
    "--train-samples",
    "8",
];

fn script(command: &str, folder: &Path) -> Command {
    let python = std::env::var_os("EVERBURN_PYTHON");
    let python = python.expect("EVERBURN_PYTHON names a Python that has torch and transformers");
    let script = std::path::absolute("../../tests/parity/transformers_models.py").unwrap();
    let mut run = Command::new(python);
    run.arg("-B").arg(script).arg(command).arg(folder);
    run.env("HF_HUB_OFFLINE", "1");
    run
}

fn succeeds(mut command: Command) {
    let output = command.output().unwrap();
    let [out, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{out}\n{errors}");
}

/// The decoders, and the text to train on.
fn make_texts(here: &Path) {
    let text = here.join("text.txt");
    std::fs::write(&text, TEXT.repeat(2)).unwrap();
    let mut make = script("make", here);
    make.arg(&text);
    succeeds(make);
}

fn everburn(here: &Path, line: &[&str]) {
    Everburn::new(here, line).run().succeeded();
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(json: &Value) -> Vec<f32> {
    let numbers = json.as_array().unwrap().iter();
    numbers
        .map(|number| number.as_f64().unwrap() as f32)
        .collect()
}

/// Compares logits with those that the script has written beside the input.
fn compare(kind: &str, logits: &TensorData, expected: &Value) {
    let expected = numbers(expected);
    let logits = logits.iter::<f32>().collect::<Vec<_>>();
    assert_eq!(logits.len(), expected.len(), "{kind}");
    let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    assert!(largest > 0.1, "{kind}: logits near 0 show nothing");
    let apart = logits.iter().zip(&expected);
    let apart = apart.fold(0.0_f32, |most, (ours, theirs)| {
        most.max((ours - theirs).abs())
    });
    assert!(
        apart <= TOLERANCE,
        "{kind}: {apart} of logits up to {largest}"
    );
}

fn compare_text<C: PretrainedDecoder>(here: &Path, kind: &str) {
    let (folder, device) = (here.join(kind), Device::flex());
    let config = C::adopt(&json(&folder.join("config.json")))
        .unwrap()
        .unwrap();
    let (model, skip) = (config.build(&device), Patterns::default());
    let model = load_state_dict_except(model, &folder, &skip, &config.layout()).unwrap();
    let expected = json(&here.join(format!("{kind}-logits.json")));
    let tokens = numbers(&expected["input"]);
    let tokens = tokens
        .into_iter()
        .map(|token| token as i64)
        .collect::<Vec<_>>();
    let tokens = TensorData::new(tokens, [2, 40]);
    let tokens = Tensor::<2, Int>::from_data(tokens, &device);
    let logits = model.blocks().forward(&model, tokens);
    compare(kind, &logits.into_data(), &expected["logits"]);
}

fn compare_images<C: PretrainedImageModel>(here: &Path, kind: &str, weights: &str, config: C) {
    let (device, skip) = (Device::flex(), Patterns::default());
    let expected = json(&here.join(format!("{kind}-logits.json")));
    let images = numbers(&expected["input"]);
    let classes = numbers(&expected["logits"]).len() / 2;
    let config = config.of_classes(classes);
    let (model, weights) = (config.build(&device), here.join(weights));
    let model = load_state_dict_except(model, &weights, &skip, &config.layout()).unwrap();
    let images = Tensor::<4>::from_data(TensorData::new(images, [2, 3, 32, 32]), &device);
    let logits = model.blocks().forward(&model, images);
    compare(kind, &logits.into_data(), &expected["logits"]);
}

fn adopted<C: PretrainedImageModel>(here: &Path, kind: &str) -> C {
    C::adopt(&json(&here.join(kind).join("config.json")))
        .unwrap()
        .unwrap()
}

/// Fine-tunes a model on two ranks: 50 steps, each on all eight samples.
fn fine_tune(here: &Path, kind: &str, data: &[&str]) {
    let run = format!("{kind}-tuned");
    let train = ["train", "--init-from", kind, "--run-dir", &run];
    let all = "--batch-size 8 --epochs 50 --validation-samples 0".split(' ');
    let plain = "--optimizer sgd --learning-rate 0.03 --weight-decay 0".split(' ');
    let steady = ["--lr-schedule", "constant", "--max-gradient-norm", "1e9"];
    let train = Everburn::new(here, train)
        .args(data)
        .args(all)
        .args(plain)
        .args(steady);
    let train = train.args(["--log-every", "1", "--ranks", "2"]);
    train.run().succeeded();
    let theirs: Vec<f64> =
        serde_json::from_value(json(&here.join(format!("{kind}.json")))).unwrap();
    let lines = Run::new(here.join(&run)).metrics();
    let steps = lines.iter().filter(|line| line["kind"] == "step");
    let ours = steps.map(|line| line["loss"].as_f64().unwrap());
    let ours = ours.collect::<Vec<_>>();
    assert_eq!(ours.len(), theirs.len(), "{kind}");
    assert!(
        (ours[0] - theirs[0]).abs() <= 1e-5,
        "{kind}: {ours:?} {theirs:?}"
    );
    for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        let apart = (ours - theirs).abs();
        assert!(apart <= 1e-3, "{kind}, step {step}: {ours} {theirs}");
    }
    assert!(theirs[49] < theirs[0] - 0.3, "{kind}: {theirs:?}");
}

fn export(here: &Path, run: &str, to: &str, more: &[&str]) {
    let export = ["export", run, "--to", "hugging-face", "--output", to];
    everburn(here, &[&export[..], more].concat());
}

fn several_files(folder: &Path) {
    let index = folder.join("model.safetensors.index.json");
    assert!(index.exists() && !folder.join("model.safetensors").exists());
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn models_of_transformers_are_fine_tuned_as_pytorch_does_and_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    make_texts(here);
    compare_text::<GptConfig>(here, "gpt2");
    for kind in &TEXTS[1..] {
        compare_text::<LlamaConfig>(here, kind);
    }
    for kind in TEXTS {
        let run = format!("{kind}-run");
        everburn(
            here,
            &["import", kind, "--tokenizer", "byte", "--run-dir", &run],
        );
        let back = format!("{kind}-back");
        match kind {
            "llama" => {
                export(here, &run, &back, &["--max-shard-size", "20KB"]);
                several_files(&here.join(&back));
            }
            _ => export(here, &run, &back, &[]),
        }
        fine_tune(here, kind, &WINDOWS);
        let run = format!("{kind}-tuned");
        export(here, &run, &format!("{kind}-ours"), &[]);
        let generate = ["generate", &run, "--prompt", "First "];
        let generate = Everburn::new(here, generate).args(["--tokens", "40", "--temperature", "0"]);
        let written = generate.run().succeeded().stdout;
        std::fs::write(here.join(format!("{kind}.txt")), written).unwrap();
    }
    // Weights in several files as PyTorch writes them.
    everburn(
        here,
        &[
            "import",
            "gpt2-bin",
            "--tokenizer",
            "byte",
            "--run-dir",
            "gpt2-bin-run",
        ],
    );
    export(here, "gpt2-bin-run", "gpt2-bin-back", &[]);
    succeeds(script("check", here));
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn factors_learned_beside_weights_are_loaded_by_peft() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    make_texts(here);
    for kind in TEXTS {
        let run = format!("{kind}-lora");
        let train = ["train", "--init-from", kind, "--run-dir", &run];
        let lora = "--lora 3 --lora-alpha 6 --learning-rate 0.01 --batch-size 8 --epochs 8 --validation-samples 0 --ranks 2";
        let train = Everburn::new(here, train).args(WINDOWS);
        train.words(lora).run().succeeded();
        export(here, &run, &format!("{kind}-adapted"), &[]);
        let adapter = format!("{kind}-adapter");
        everburn(here, &["export", &run, "--adapter", "--output", &adapter]);
    }
    succeeds(script("check-adapters", here));
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn classifiers_of_transformers_are_fine_tuned_as_pytorch_does_and_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    succeeds(script("make-images", here));
    compare_images::<ViTConfig>(here, "vit", "vit", adopted(here, "vit"));
    let plain = adopted::<ViTConfig>(here, "vit-plain");
    compare_images(here, "vit-plain", "vit-plain", plain);
    let basic = adopted::<ResNet18Config>(here, "resnet-basic");
    compare_images(here, "resnet-basic", "resnet-basic", basic);
    let bottleneck = adopted::<ResNet50Config>(here, "resnet-bottleneck");
    compare_images(here, "resnet-bottleneck", "resnet-bottleneck", bottleneck);
    for kind in IMAGES {
        let run = format!("{kind}-run");
        everburn(here, &["import", kind, "--run-dir", &run]);
        let back = format!("{kind}-back");
        export(here, &run, &back, &["--max-shard-size", "20KB"]);
        several_files(&here.join(&back));
    }
    for kind in ["vit", "vit-plain"] {
        fine_tune(here, kind, &["--data", "flowers"]);
        export(here, &format!("{kind}-tuned"), &format!("{kind}-ours"), &[]);
    }
    succeeds(script("check-images", here));
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn weights_of_torchvision_come_in_and_go_out_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    succeeds(script("make-torchvision", here));
    compare_images(here, "resnet18", "resnet18.pth", ResNet18Config::new());
    compare_images(here, "resnet50", "resnet50.pth", ResNet50Config::new());
    for kind in TORCHVISION {
        let (weights, run) = (format!("{kind}.pth"), format!("{kind}-run"));
        let import = [
            "import",
            &weights,
            kind,
            "--data",
            "flowers",
            "--run-dir",
            &run,
        ];
        everburn(here, &import);
        let back = format!("{kind}-back.pth");
        everburn(
            here,
            &["export", &run, "--to", "pytorch", "--output", &back],
        );
    }
    succeeds(script("check-torchvision", here));
}
