//! Folders of pretrained classifiers that are damaged: what one file alone shows is tested where that file is read.

use std::path::{Path, PathBuf};

use everburn_tests::{Ended, Everburn};
use serde_json::{Value, json};

use super::pretrained_images::{RESNET, VIT, exported, stripes};

const WEIGHTS: &str = "model.safetensors";

/// A folder with one file changed, which is restored afterwards.
struct Damage {
    here: PathBuf,
    model: &'static str,
}

impl Damage {
    /// Changes a file, and expects `import` to say these words. It has memory for a sound folder, and not much more.
    fn refused(&self, file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>, expected: &[&str]) {
        let path = self.here.join(self.model).join(file);
        let sound = std::fs::read(&path).ok();
        let changed = change(sound.clone().unwrap_or_default());
        std::fs::write(&path, changed).unwrap();
        let ended = self.import("never");
        let code = ended.code();
        assert!(code == 1 || code == 2, "{file}: {ended}");
        assert!(!ended.stderr.contains("panicked"), "{ended}");
        ended.failed_with(code, expected);
        assert!(!self.here.join("never").exists(), "{ended}");
        match sound {
            Some(sound) => std::fs::write(&path, sound).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
    }

    fn import(&self, run: &str) -> Ended {
        // KiB of memory that is written; threads' stacks count in full.
        let limited = ["-c", "ulimit -d 100000; exec \"$@\"", "sh"];
        let import = Everburn::new(&self.here, ["import", self.model, "--run-dir", run]);
        import.by(&self.here, Path::new("sh"), limited).run()
    }

    /// Changes a key of the configuration.
    fn key(&self, key: &str, value: Value, expected: &str) {
        let change = |text: Vec<u8>| {
            let mut json: Value = serde_json::from_slice(&text).unwrap();
            json[key] = value;
            json.to_string().into_bytes()
        };
        self.refused("config.json", change, &[self.model, expected]);
    }

    /// Changes the header of the weights.
    fn header(&self, change: impl FnOnce(&mut Value), expected: &[&str]) {
        let rewrite = |file: Vec<u8>| {
            let end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            let mut header: Value = serde_json::from_slice(&file[8..end]).unwrap();
            change(&mut header);
            let header = header.to_string().into_bytes();
            let length = (header.len() as u64).to_le_bytes();
            [&length[..], &header, &file[end..]].concat()
        };
        self.refused(WEIGHTS, rewrite, expected);
    }
}

#[test]
fn damaged_classifiers_are_refused_by_file_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    stripes(here);
    exported(here, "vit", VIT);
    let damage = Damage {
        here: here.to_path_buf(),
        model: "vit",
    };
    damage.import("sound").succeeded();
    weights(&damage);
    sizes(&damage);
    for (file, text, expected) in [
        ("config.json", "{", "config.json"),
        ("config.json", "null", "it has no model_type"),
        (
            "preprocessor_config.json",
            "[1, 2]",
            "preprocessor_config.json",
        ),
        (
            "model.safetensors.index.json",
            r#"{"weight_map": {"a": "../vit/model.safetensors"}}"#,
            "does not name a file in this folder",
        ),
        (
            "model.safetensors.index.json",
            r#"{"weight_map": {"a": "config.json"}}"#,
            "must end in",
        ),
    ] {
        damage.refused(file, |_| text.as_bytes().to_vec(), &[expected]);
    }
    exported(here, "resnet18", RESNET);
    let damage = Damage {
        model: "resnet18",
        ..damage
    };
    damage.key("depths", json!([1, 1, 1, 9_999]), "parameters or more");
}

/// Weights that are cut off, or whose header is wrong.
fn weights(damage: &Damage) {
    for part in [0, 1, 9] {
        let cut = |bytes: Vec<u8>| bytes[..bytes.len() * part / 10].to_vec();
        damage.refused(WEIGHTS, cut, &[WEIGHTS]);
    }
    let too_long = |mut bytes: Vec<u8>| {
        bytes[..8].copy_from_slice(&(1_u64 << 62).to_le_bytes());
        bytes
    };
    damage.refused(WEIGHTS, too_long, &[WEIGHTS]);
    let one = "vit.encoder.layer.1.layernorm_after.weight";
    let without = |header: &mut Value| {
        // Its numbers become another's, which the model does not have.
        let tensors = header.as_object_mut().unwrap();
        let taken = tensors.remove(one).unwrap();
        tensors.insert("nobodys.weight".to_string(), taken);
    };
    damage.header(without, &["vit", one, "is not in the file"]);
    for (key, value) in [
        ("shape", json!([1_u64 << 40])),
        ("dtype", json!("F8_E4M3")),
        ("data_offsets", json!([0, 1_u64 << 50])),
    ] {
        let change = |header: &mut Value| header["classifier.bias"][key] = value;
        damage.header(change, &[WEIGHTS]);
    }
    damage.header(|header| *header = json!([]), &[WEIGHTS]);
}

/// Sizes that no machine has the memory for, or that no part of the model takes.
fn sizes(damage: &Damage) {
    for (key, value, expected) in [
        ("hidden_size", json!(1 << 20), "parameters or more"),
        ("num_hidden_layers", json!(9_999), "parameters or more"),
        ("num_hidden_layers", json!(1 << 20), "number of layers"),
        ("num_attention_heads", json!(0), "number of heads"),
        ("intermediate_size", json!(1 << 27), "parameters or more"),
        ("image_size", json!(1 << 24), "image size"),
        ("image_size", json!(32), "preprocessor_config.json: size"),
        ("patch_size", json!(0), "patch size"),
        ("layer_norm_eps", json!(-1.0), "epsilon"),
        ("qkv_bias", json!(false), "is not in the model"),
        ("model_type", json!("swin"), "`swin`"),
    ] {
        damage.key(key, value, expected);
    }
}
