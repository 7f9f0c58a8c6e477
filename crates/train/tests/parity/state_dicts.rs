//! Weights go to PyTorch and come back.

use std::path::Path;
use std::process::Command;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use everburn_models::mnist_bn::MnistBnConfig;
use everburn_models::two_part_resnet::{TwoPartResNet, TwoPartResNetConfig};
use everburn_tests::AssertContains;
use everburn_train::{Objective, TrainError, load_state_dict, save_state_dict};
use serde_json::Value;

use crate::cases::{Case, Images, gpt_nano, mnist_bn, simple_cnn, two_part_resnet};
use crate::golden::{Golden, parity_folder};

/// How far logits may be apart, as a share of the largest of them.
const ALLOWED: f32 = 1e-5;

fn assert_close(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let pairs = || ours.iter().zip(theirs);
    let scale = pairs().fold(0.0f32, |scale, (a, b)| scale.max(a.abs()).max(b.abs()));
    let apart = pairs().fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(apart <= ALLOWED * scale, "{what}: {apart:e} of {scale:e}");
}

/// A script of `tests/parity`, with the Python that has PyTorch.
fn script(name: &str) -> Command {
    let python = std::env::var_os("EVERBURN_PYTHON");
    let mut command = Command::new(python.expect("EVERBURN_PYTHON names a Python that has torch"));
    // Leaves no compiled modules beside the scripts.
    command.arg("-B").arg(parity_folder().join(name));
    command
}

fn numbers(json: &Value) -> Vec<f32> {
    let numbers = json.as_array().unwrap().iter();
    numbers.map(|n| n.as_f64().unwrap() as f32).collect()
}

impl<M, O, I> Case<M, O, I>
where
    M: Module + std::fmt::Display + Sync + 'static,
    O: Objective,
    I: Clone + Send + Sync + 'static,
{
    /// The first batch's logits.
    fn logits<const D: usize>(&self, model: &M, batch: usize) -> Vec<f32>
    where
        O: Objective<Output = Tensor<D>>,
    {
        let items = (0..batch as u64).map(self.sample).collect();
        let (inputs, _) = self.batcher.batch(items, &Device::flex());
        (self.forward)(&model.valid(), inputs)
            .into_data()
            .iter()
            .collect()
    }

    /// Trains a little, exports, has PyTorch compute with it and change it, and imports that.
    fn goes_to_pytorch_and_back<const D: usize>(&self)
    where
        O: Objective<Output = Tensor<D>>,
    {
        let golden = Golden::read(self.name);
        let (_, trained) = self.train(&golden, 1, golden.optimizer(), 10);
        let folder = tempfile::tempdir().unwrap();
        for name in ["ours.pt", "ours.safetensors"] {
            let at = |name: &str| folder.path().join(name);
            save_state_dict(&trained, 10, &at(name)).unwrap();
            let ended = script("state_dict.py")
                .arg(self.name)
                .args([at(name), at("logits.json"), at("back.pt")])
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success(), "{}: {errors}", self.name);
            let found = std::fs::read_to_string(at("logits.json")).unwrap();
            let found: Value = serde_json::from_str(&found).unwrap();
            let (before, after) = (numbers(&found["before"]), numbers(&found["after"]));
            assert_ne!(before, after, "PyTorch has changed the weights");
            let ours = self.logits(trained.model(), golden.batch);
            assert_close(
                &ours,
                &before,
                &format!("{} to PyTorch in {name}", self.name),
            );
            let back = load_state_dict(self.model.valid(), &at("back.pt")).unwrap();
            let ours = self.logits(&back, golden.batch);
            assert_close(&ours, &after, &format!("{} back in {name}", self.name));
        }
    }
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn pytorch_computes_with_our_weights_and_we_with_pytorchs() {
    simple_cnn("simple-cnn-adam").goes_to_pytorch_and_back();
    mnist_bn("mnist-bn-adam").goes_to_pytorch_and_back();
    two_part_resnet("two-part-resnet-adam").goes_to_pytorch_and_back();
    gpt_nano("gpt-nano-adam-w").goes_to_pytorch_and_back();
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn pytorch_makes_the_goldens_that_are_here() {
    let ended = script("make_golden.py").arg("--check").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}{errors}");
}

/// The small net of `make_checkpoint` in `make_golden.py`.
fn small_resnet() -> Images<TwoPartResNet> {
    let config = TwoPartResNetConfig::new().with_width(4);
    Case {
        model: config.init(&Device::flex()),
        ..two_part_resnet("two-part-resnet-adam")
    }
}

#[test]
fn a_checkpoint_of_a_wrapped_model_that_pytorch_has_written_is_read() {
    let golden = parity_folder().join("golden");
    let expected = std::fs::read_to_string(golden.join("checkpoint.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let case = small_resnet();
    let model = load_state_dict(case.model.valid(), &golden.join("checkpoint.pt")).unwrap();
    let ours = case.logits(&model, 16);
    assert_close(&ours, &numbers(&expected["logits"]), "logits");
}

#[test]
fn what_is_saved_is_loaded_from_both_kinds_of_files() {
    let case = mnist_bn("mnist-bn-adam");
    let golden = Golden::read(case.name);
    let (_, trained) = case.train(&golden, 1, golden.optimizer(), 3);
    let expected = case.logits(trained.model(), 4);
    let folder = tempfile::tempdir().unwrap();
    for name in ["weights.pt", "weights.pth", "weights.safetensors"] {
        let path = folder.path().join(name);
        save_state_dict(&trained, 3, &path).unwrap();
        let loaded = load_state_dict(case.model.valid(), &path).unwrap();
        assert_eq!(case.logits(&loaded, 4), expected, "{name}");
    }
    let error = save_state_dict(&trained, 3, &folder.path().join("weights.onnx")).unwrap_err();
    let error = error.to_string();
    error.assert_contains([".safetensors, .pt, .pth, .pth.tar, .ckpt or .bin"]);
}

#[test]
fn everything_that_does_not_fit_is_named_at_once_with_both_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let device = Device::flex();
    let other = MnistBnConfig::new().with_classes(7).init(&device);
    for name in ["weights.pt", "weights.safetensors"] {
        let path = folder.path().join(name);
        save_state_dict(&other, 0, &path).unwrap();
        let refused = |result: Result<(), TrainError>| result.unwrap_err().to_string();
        let text = refused(load_state_dict(mnist_bn("mnist-bn-adam").model, &path).map(drop));
        for line in [
            "fc2.weight has shape [7, 256] in the file and [10, 256] in the model",
            "fc2.bias has shape [7] in the file and [10] in the model",
            "`init_skip = 'fc2.*'` begins with new weights there",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(text.lines().count(), 4, "{text}");

        let text = refused(load_state_dict(small_resnet().model, &path).map(drop));
        for line in [
            "conv1.weight has shape [12, 1, 3, 3] in the file and [4, 1, 7, 7] in the model",
            "conv2.weight has shape [24, 12, 6, 6] in the file, and is not in the model",
            "is not in the file, and has shape [4] in the model",
            "of another architecture",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(text.lines().count(), 11, "{text}");
    }
}

#[test]
fn damaged_files_are_refused() {
    let good = std::fs::read(parity_folder().join("golden/checkpoint.pt")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.pt");
    let read = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).unwrap();
        load_state_dict(small_resnet().model, path).map(drop)
    };
    read(&path, &good).unwrap();
    for length in (0..good.len()).step_by(997) {
        let error = read(&path, &good[..length]).unwrap_err().to_string();
        assert!(error.contains("weights.pt"), "{error}");
    }
    // Any byte may be wrong: numbers then are, or it is refused, but nothing panics.
    for place in (0..good.len()).step_by(61) {
        let mut bad = good.clone();
        bad[place] ^= 0xff;
        let _ = read(&path, &bad);
    }
    let error = load_state_dict(small_resnet().model, &folder.path().join("none.pt"));
    assert!(error.unwrap_err().to_string().contains("none.pt"));
}

/// What Lightning makes of a model: a module that has it in a field.
#[derive(Module, Debug)]
struct Wrapped {
    net: Linear,
}

#[test]
fn a_first_part_that_all_names_of_a_file_have_and_the_model_has_not_is_left_out() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epoch=3.ckpt");
    let wrapped = Wrapped {
        net: LinearConfig::new(3, 2).init(&device),
    };
    save_state_dict(&wrapped, 0, &path).unwrap();
    let loaded = load_state_dict(LinearConfig::new(3, 2).init(&device), &path).unwrap();
    let weight = |linear: &Linear| linear.weight.val().into_data();
    assert_eq!(weight(&loaded), weight(&wrapped.net));
    // The model's own first part stays.
    let other = Wrapped {
        net: LinearConfig::new(3, 2).init(&device),
    };
    let loaded = load_state_dict(other, &path).unwrap();
    assert_eq!(weight(&loaded.net), weight(&wrapped.net));
    let error = load_state_dict(LinearConfig::new(4, 2).init(&device), &path).unwrap_err();
    let error = error.to_string();
    error.assert_contains(["weight has shape [2, 3] in the file"]);
}
