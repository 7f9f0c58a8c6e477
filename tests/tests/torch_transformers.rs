//! Pretrained models of Hugging Face's transformers: fine-tuned as PyTorch does, and given back.

use std::path::{Path, PathBuf};
use std::process::Command;

use everburn_tests::{Everburn, Run};

/// The kinds of models that the script makes; the last one's weights are in several files.
const KINDS: [&str; 4] = ["gpt2", "llama", "qwen2", "mistral"];

/// Long enough for eight windows of 16 tokens to train on, and one to test by.
const TEXT: &str = "First the fire, then the forge, and then the anvil; so the smith had taught it, and so the \
                    keeper of the fires did it every morning, before the village had its first light and its \
                    first bread. Nobody asked him why. First the fire, then the forge, then the anvil.\n";

fn script(command: &str, folder: &Path) -> Command {
    let python = std::env::var_os("EVERBURN_PYTHON");
    let python = python.expect("EVERBURN_PYTHON names a Python that has torch and transformers");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("parity/transformers_models.py");
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

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn models_of_transformers_are_fine_tuned_as_pytorch_does_and_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let text = here.join("text.txt");
    std::fs::write(&text, TEXT.repeat(2)).unwrap();
    let mut make = script("make", here);
    make.arg(&text);
    succeeds(make);
    for kind in KINDS {
        let back = ["import", kind, "--tokenizer", "byte"];
        let run = format!("{kind}-run");
        Everburn::new(here, back)
            .args(["--run-dir", &run])
            .run()
            .succeeded();
        let export = |run: &str, to: &str| {
            let export = ["export", run, "--to", "hugging-face", "--output", to];
            Everburn::new(here, export).run().succeeded();
        };
        export(&run, &format!("{kind}-back"));

        let run = format!("{kind}-tuned");
        let train = [
            "train",
            "--init-from",
            kind,
            "--tokenizer",
            "byte",
            "--data",
            "text.txt",
            "--set",
            "text.window=16",
            "--max-gradient-norm",
            "1e9",
            "--train-samples",
            "8",
            "--batch-size",
            "8",
            "--validation-samples",
            "0",
            "--epochs",
            "50",
            "--optimizer",
            "sgd",
            "--learning-rate",
            "0.03",
            "--lr-schedule",
            "constant",
            "--weight-decay",
            "0",
            "--log-every",
            "1",
            "--ranks",
            "2",
            "--run-dir",
            &run,
        ];
        Everburn::new(here, train).run().succeeded();
        let losses = std::fs::read(here.join(format!("{kind}.json"))).unwrap();
        let theirs: Vec<f64> = serde_json::from_slice(&losses).unwrap();
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
        assert!(theirs[49] < theirs[0] - 0.5, "{kind}: {theirs:?}");
        export(&run, &format!("{kind}-ours"));
        let generate = ["generate", &run, "--prompt", "First "];
        let generate = Everburn::new(here, generate).args(["--tokens", "40", "--temperature", "0"]);
        let written = generate.run().succeeded().stdout;
        std::fs::write(here.join(format!("{kind}.txt")), written).unwrap();
    }
    succeeds(script("check", here));
}
