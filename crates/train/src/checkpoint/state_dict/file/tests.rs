//! Tests of `file`.

use burn::nn::LinearConfig;
use burn::prelude::Device;
use burn::tensor::TensorData;
use everburn_tests::AssertContains;

use super::*;
use crate::checkpoint::tensor_file;
use crate::{RunDirectory, load_state_dict, save_safetensors};

#[test]
fn a_file_of_a_run_keeps_its_layout_wherever_it_is() {
    // Rows for columns, the shape is the same.
    let linear = LinearConfig::new(3, 3).init(&Device::flex());
    let written = linear.weight.to_data();
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path().join("run")).unwrap();
    save_safetensors(&linear, &run).unwrap();
    let elsewhere = folder.path().join("weights.safetensors");
    std::fs::copy(run.model_path(), &elsewhere).unwrap();
    let read = |path: &Path| {
        let fresh = LinearConfig::new(3, 3).init(&Device::flex());
        load_state_dict(fresh, path).unwrap().weight.to_data()
    };
    assert_eq!(read(&elsewhere), written);

    // A file without metadata is known by its place alone.
    let bias = linear.bias.as_ref().unwrap().to_data();
    let tensors = [("weight", &written), ("bias", &bias)];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor.clone()));
    let bare = tensor_file::write(&tensors, &BTreeMap::new()).unwrap();
    std::fs::write(run.model_path(), &bare).unwrap();
    std::fs::write(&elsewhere, &bare).unwrap();
    assert_ne!(read(&run.model_path()), written, "it is in no run yet");
    std::fs::write(run.config_path(), "").unwrap();
    assert_eq!(read(&run.model_path()), written);
    assert_ne!(read(&elsewhere), written, "PyTorch's, as far as one sees");
}

#[test]
fn files_that_are_cut_off_or_something_else_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = ("a".to_string(), TensorData::zeros::<f32, _>([64]));
    let sound = tensor_file::write(&[tensor], &BTreeMap::new()).unwrap();
    let told = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        read_file(&path).unwrap_err().to_string()
    };
    let name = "a.safetensors";
    for end in [7, 20, sound.len() - 1] {
        let told = told(name, &sound[..end]);
        let expected = format!("it is cut off: it has {end} bytes");
        told.assert_contains(["copied whole?", &expected]);
    }
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    for name in [name, "a.bin", "a.pth"] {
        assert!(told(name, pointer).contains("a pointer of git-lfs"));
        assert!(told(name, b"").contains("it is empty"));
        for page in [
            "<!doctype html><html>",
            "\n<html>",
            "<?xml version=\"1.0\"?><Error>",
        ] {
            assert!(told(name, page.as_bytes()).contains("it is a web page"));
        }
    }
    let torch = pytorch::to_bytes(&[("a".to_string(), TensorData::zeros::<f32, _>([64]))]);
    let torch = torch.unwrap();
    assert!(told("a.pth", &torch[..torch.len() - 1]).contains("it is cut off"));
    assert!(told(name, b"PK\x03\x04 and more").contains("ends in .pt"));
    assert!(told(name, b"a text of some bytes").contains("it is no .safetensors file"));
    assert!(told("a.pt", &sound).contains("ends in .safetensors"));
}

#[test]
fn a_checkpoint_with_other_weights_beside_the_models_names_both() {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pytorch-weights/tests/torch/files");
    let entries = |name: &str| StateDictFile::entries(&files.join(name));
    let both = ("model".to_owned(), vec!["ema".to_owned()]);
    assert_eq!(entries("model_and_ema.pt"), Some(both));
    assert_eq!(entries("nested.pt"), None);
    assert_eq!(entries("none.safetensors"), None);
}

#[test]
fn the_endings_are_one_list_for_files_messages_and_the_document() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pytorch-weights.md");
    let document = std::fs::read_to_string(document).unwrap();
    let (_, supported) = document.split_once("\n## Supported files\n").unwrap();
    let (supported, _) = supported.split_once("\n\n- ").unwrap();
    let told = kind_of(Path::new("weights.onnx")).unwrap_err();
    for ending in ENDINGS {
        let kind = match ending {
            ".safetensors" => StateDictFile::Safetensors,
            _ => StateDictFile::PyTorch,
        };
        for name in [format!("a{ending}"), format!("A{}", ending.to_uppercase())] {
            assert_eq!(StateDictFile::of(Path::new(&name)), Some(kind), "{name}");
        }
        assert_eq!(
            StateDictFile::of(Path::new(ending)),
            None,
            "no name before it"
        );
        assert!(told.contains(ending), "{told}");
        assert!(
            !told.contains("torch.save"),
            "not of a file that is written"
        );
        assert!(supported.contains(&format!("`{ending}`")), "{supported}");
    }
    for onnx in ["weights.onnx", "M.ONNX"] {
        let read = read_file(Path::new(onnx)).unwrap_err();
        assert!(read.to_string().contains("torch.save("), "{read}");
    }
    let listed = supported.matches("`.").count();
    assert_eq!(listed, ENDINGS.len(), "{supported}");
}

#[test]
fn a_folder_that_is_no_models_names_a_file_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let told = |path: &Path| refuse_plain_folder(path).unwrap_err().to_string();
    assert!(told(folder.path()).contains("a folder without a state dict"));
    std::fs::write(folder.path().join("b.pt"), "").unwrap();
    std::fs::write(folder.path().join("a.pth"), "").unwrap();
    let told_now = told(folder.path());
    told_now.assert_contains(["name a file in it, such as"]);
    assert!(told_now.contains("a.pth"), "{told_now}");
    assert!(told(&folder.path().join("none")).contains("no such file or folder"));
    std::fs::write(folder.path().join("a-00001-of-00002.pt"), "").unwrap();
    let of_parts = told(folder.path());
    assert!(of_parts.contains("parts of a state dict"), "{of_parts}");
    assert!(!is_part(Path::new("best-of-10.pt")) && !is_part(Path::new("a.pt")));
    std::fs::write(folder.path().join("config.toml"), "").unwrap();
    refuse_plain_folder(folder.path()).unwrap();
}
