//! Weights go to PyTorch and come back.

use std::process::Command;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use everburn_models::two_part_resnet::TwoPartResNetConfig;
use everburn_tests::AssertContains;
use everburn_train::{Objective, load_state_dict, save_state_dict};
use serde_json::Value;

use crate::cases::{Case, gpt_nano, mnist_bn, simple_cnn, two_part_resnet};
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

#[test]
fn a_checkpoint_of_a_wrapped_model_that_pytorch_has_written_is_read() {
    let golden = parity_folder().join("golden");
    let expected = std::fs::read_to_string(golden.join("checkpoint.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    // The small net of `make_checkpoint` in `make_golden.py`.
    let config = TwoPartResNetConfig::new().with_width(4);
    let case = Case {
        model: config.init(&Device::flex()),
        ..two_part_resnet("two-part-resnet-adam")
    };
    let model = load_state_dict(case.model.valid(), &golden.join("checkpoint.pt")).unwrap();
    let ours = case.logits(&model, 16);
    assert_close(&ours, &numbers(&expected["logits"]), "logits");
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
