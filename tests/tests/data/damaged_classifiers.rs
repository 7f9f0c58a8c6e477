//! Folders of pretrained classifiers that are damaged.

use std::path::{Path, PathBuf};

use everburn_tests::{Ended, Everburn};
use serde_json::{Value, json};

use super::pretrained_images::{RESNET, VIT, exported, stripes};

/// A folder with one file changed, which is restored afterwards.
struct Damage {
    here: PathBuf,
    model: &'static str,
    tried: usize,
}

impl Damage {
    /// Changes a file, and expects `import` to say these words. It has memory for a sound folder, and not much more.
    fn refused(&mut self, file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>, expected: &[&str]) {
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
        self.tried += 1;
    }

    fn import(&self, run: &str) -> Ended {
        // KiB of memory that is written; threads' stacks count in full.
        let limited = ["-c", "ulimit -d 100000; exec \"$@\"", "sh"];
        let import = ["import", self.model, "--run-dir", run];
        let import = Everburn::new(&self.here, import);
        import.by(&self.here, Path::new("sh"), limited).run()
    }

    /// Changes a key of a JSON file.
    fn key(&mut self, file: &str, key: &str, value: Value, expected: &[&str]) {
        let change = |text: Vec<u8>| {
            let mut json: Value = serde_json::from_slice(&text).unwrap();
            json[key] = value;
            json.to_string().into_bytes()
        };
        self.refused(file, change, expected);
    }

    /// Changes the header of the weights.
    fn header(&mut self, change: impl FnOnce(&mut Value), expected: &[&str]) {
        let rewrite = |file: Vec<u8>| {
            let end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            let mut header: Value = serde_json::from_slice(&file[8..end]).unwrap();
            change(&mut header);
            let header = header.to_string().into_bytes();
            let length = (header.len() as u64).to_le_bytes();
            [&length[..], &header, &file[end..]].concat()
        };
        self.refused("model.safetensors", rewrite, expected);
    }
}

#[test]
fn sixty_damaged_classifiers_are_refused_by_file_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    stripes(here);
    let mut tried = 0;
    for (model, numbers) in [("vit", VIT), ("resnet18", RESNET)] {
        exported(here, model, numbers);
        let mut damage = Damage {
            here: here.to_path_buf(),
            model,
            tried: 0,
        };
        damage.import("sound").succeeded();
        std::fs::remove_dir_all(here.join("sound")).unwrap();
        weights(&mut damage);
        texts(&mut damage);
        index(&mut damage);
        match model {
            "vit" => sizes_of_vit(&mut damage),
            _ => sizes_of_resnet(&mut damage),
        }
        tried += damage.tried;
    }
    assert!(tried >= 60, "{tried}");
}

/// Weights that are cut off, or whose header is wrong.
fn weights(damage: &mut Damage) {
    let file = "model.safetensors";
    for part in [0, 1, 4, 7, 9] {
        damage.refused(
            file,
            |bytes| bytes[..bytes.len() * part / 10].to_vec(),
            &[file],
        );
    }
    let too_long = |mut bytes: Vec<u8>| {
        bytes[..8].copy_from_slice(&(1_u64 << 62).to_le_bytes());
        bytes
    };
    damage.refused(file, too_long, &[file]);
    let (one, bias) = match damage.model {
        "vit" => (
            "vit.encoder.layer.1.layernorm_after.weight",
            "classifier.bias",
        ),
        _ => (
            "resnet.encoder.stages.1.layers.0.layer.0.normalization.running_var",
            "classifier.1.bias",
        ),
    };
    let own = match damage.model {
        "vit" => one,
        _ => "layer2.0.bn1.running_var",
    };
    let without = |header: &mut Value| {
        // Its numbers become another's, which the model does not have.
        let tensors = header.as_object_mut().unwrap();
        let taken = tensors.remove(one).unwrap();
        tensors.insert("nobodys.weight".to_string(), taken);
    };
    damage.header(without, &[damage.model, own, "is not in the file"]);
    let shape = |header: &mut Value| {
        let count = header[one]["shape"][0].as_u64().unwrap();
        header[one]["shape"] = json!([1, count]);
    };
    damage.header(shape, &[damage.model, own, "has shape"]);
    damage.header(
        |header| header[bias]["shape"] = json!([1_u64 << 40]),
        &[file],
    );
    damage.header(|header| header[bias]["dtype"] = json!("F8_E4M3"), &[file]);
    damage.header(
        |header| header[bias]["data_offsets"] = json!([0, 1_u64 << 50]),
        &[file],
    );
    damage.header(|header| *header = json!([]), &[file]);
}

/// Texts that are no JSON, or of something else.
fn texts(damage: &mut Damage) {
    for file in ["config.json", "preprocessor_config.json"] {
        for text in ["", "{", "[1, 2]", "null", "\u{0}"] {
            // Without a type, a folder is nobody's.
            let expected = [damage.model, file];
            let expected = match (file, text) {
                ("config.json", "[1, 2]" | "null") => &["it has no model_type"][..],
                _ => &expected,
            };
            damage.refused(file, |_| text.as_bytes().to_vec(), expected);
        }
    }
    let preprocessor = "preprocessor_config.json";
    for (key, value) in [
        ("size", json!({"height": 16, "width": 1_u64 << 40})),
        ("size", json!(-16)),
        ("image_mean", json!([0.5])),
        ("image_std", json!([0, 0, 0])),
        ("rescale_factor", json!(1)),
    ] {
        damage.key(preprocessor, key, value, &[damage.model, preprocessor, key]);
    }
    for labels in [
        json!(["a", "b"]),
        json!({"0": "a", "7": "b"}),
        json!({"0": 1}),
    ] {
        let expected = [damage.model, "config.json", "id2label"];
        damage.key("config.json", "id2label", labels, &expected);
    }
}

/// An index of several files.
fn index(damage: &mut Damage) {
    for (text, expected) in [
        (
            r#"{"weight_map": {"a": "../vit/model.safetensors"}}"#,
            "does not name a file in this folder",
        ),
        (
            r#"{"weight_map": {"a": "missing.safetensors"}}"#,
            "missing.safetensors",
        ),
        (
            r#"{"weight_map": {"a": "model.safetensors"}}"#,
            "it has not",
        ),
        (r#"{"weight_map": {"a": "config.json"}}"#, "must end in"),
        (r#"{"weight_map": [1]}"#, "invalid type"),
        (r#"{"weight_map": {}}"#, "is not in the file"),
    ] {
        let file = "model.safetensors.index.json";
        damage.refused(
            file,
            |_| text.as_bytes().to_vec(),
            &[damage.model, expected],
        );
    }
}

fn sizes_of_vit(damage: &mut Damage) {
    let huge = 1_u64 << 60;
    for (key, value, expected) in [
        ("hidden_size", json!(huge), "hidden_size"),
        ("hidden_size", json!(1 << 20), "parameters or more"),
        ("hidden_size", json!(8), "hidden_size is 8 in config.json"),
        ("num_hidden_layers", json!(9_999), "parameters or more"),
        ("num_hidden_layers", json!(1 << 20), "number of layers"),
        ("num_hidden_layers", json!(1), "contradict each other"),
        ("num_attention_heads", json!(0), "number of heads"),
        ("num_attention_heads", json!(3), "3 heads"),
        ("intermediate_size", json!("wide"), "intermediate_size"),
        ("intermediate_size", json!(1 << 27), "parameters or more"),
        ("image_size", json!(huge), "image_size"),
        ("image_size", json!(1 << 24), "image size"),
        ("image_size", json!(32), "preprocessor_config.json: size"),
        ("patch_size", json!(0), "patch size"),
        ("patch_size", json!(4), "has shape"),
        ("num_channels", json!(4), "num_channels"),
        ("hidden_act", json!("relu"), "hidden_act"),
        ("layer_norm_eps", json!(-1.0), "epsilon"),
        ("qkv_bias", json!(false), "is not in the model"),
        ("model_type", json!("swin"), "`swin`"),
    ] {
        damage.key("config.json", key, value, &[damage.model, expected]);
    }
}

fn sizes_of_resnet(damage: &mut Damage) {
    for (key, value, expected) in [
        ("embedding_size", json!(1_u64 << 60), "embedding_size"),
        ("embedding_size", json!(4), "hidden_sizes"),
        ("hidden_sizes", json!([2, 4, 8]), "hidden_sizes"),
        ("depths", json!([1, 1, 1, 0]), "blocks"),
        ("depths", json!([1, 1, 1, 9_999]), "parameters or more"),
        ("depths", json!([1, 1, 1, 1 << 28]), "number of layers"),
        (
            "depths",
            json!([1, 1, 2, 1]),
            "depths.2 is 2 in config.json",
        ),
        ("layer_type", json!("bottleneck"), "hidden_sizes"),
        ("layer_type", json!("narrow"), "no model here"),
        (
            "downsample_in_first_stage",
            json!(true),
            "downsample_in_first_stage",
        ),
    ] {
        damage.key("config.json", key, value, &[damage.model, expected]);
    }
}
