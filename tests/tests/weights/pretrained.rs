//! Folders of Hugging Face's transformers: what a text model takes from them, gives back and refuses.

use std::path::Path;

use everburn_tests::{Ended, Everburn};

/// A folder of Hugging Face's transformers with a small model of this kind, whose run is `made`.
pub(super) fn pretrained(here: &Path, model: &str, size: &str) {
    pretrained_with(here, model, size, "byte");
}

/// The same of a model that reads by `tokenizer`.
fn pretrained_with(here: &Path, model: &str, size: &str, tokenizer: &str) {
    let train = ["train", model, "--tokenizer", tokenizer, "--set", size];
    let train = Everburn::new(here, train).args(["--data", "embedded", "--run-dir", "made"]);
    let few = "--train-samples 8 --test-samples 4 --batch-size 8 --validation-samples 0 --steps 1";
    train.words(few).succeed();
    let export = ["export", "made", "--to", "hugging-face", "--output", model];
    Everburn::new(here, export).succeed();
}

#[test]
fn a_pretrained_model_is_found_by_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    pretrained(
        here,
        "gpt2",
        "gpt={width=16,layers=2,heads=2,context=16,dropout=0.0}",
    );
    Everburn::line(here, "import gpt2 --tokenizer byte --run-dir back").succeed();
    let generate = |run: &str| {
        let generate = ["generate", run, "--prompt", "The", "--tokens", "30"];
        let sampled = Everburn::new(here, generate).args(["--top-k", "40", "--top-p", "0.95"]);
        sampled.succeed().stdout
    };
    assert_eq!(generate("back"), generate("made"));
    // A text to stop at is not shown.
    let whole = generate("made");
    let stop: String = whole.trim_end().chars().skip(8).take(2).collect();
    let generate = [
        "generate", "made", "--prompt", "The", "--tokens", "30", "--top-k", "40",
    ];
    let generate = Everburn::new(here, generate).args(["--top-p", "0.95", "--stop", &stop]);
    let cut = generate.succeed().stdout;
    let expected = whole.find(&stop).unwrap();
    assert_eq!(cut.trim_end_matches('\n'), &whole[..expected]);
    // What exists is not written over.
    Everburn::line(here, "export back --to hugging-face --output gpt2")
        .refused(&["there is something already"]);
    // Another model than the folder's.
    Everburn::line(here, "import gpt2 llama --tokenizer byte")
        .refused(&["model of type `gpt2`, and llama is another"]);
}

/// A small decoder of the tests below.
const SMALL_GPT: &str = "gpt={width=16,layers=1,heads=2,context=16,dropout=0.0}";

/// `import gpt2`, into the run `run`.
fn import(here: &Path, more: &[&str]) -> Ended {
    Everburn::line(here, "import gpt2 --run-dir run")
        .args(more)
        .run()
}

/// What the export of a run to transformers says.
fn export(here: &Path, run: &str, to: &str) -> String {
    let export = ["export", run, "--to", "hugging-face", "--output", to];
    Everburn::new(here, export).succeed().stdout
}

fn read(file: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// A text to learn from.
fn write_text(here: &Path) {
    std::fs::write(here.join("my.txt"), "to be or not to be ".repeat(20)).unwrap();
}

#[test]
fn a_language_model_without_a_tokenizer_keeps_its_special_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    pretrained(here, "gpt2", SMALL_GPT);
    let config = here.join("gpt2/config.json");
    let mut own = read(&config);
    assert!(own["eos_token_id"].is_null() && own.get("eos_token_id").is_some());
    import(here, &[]).failed_with(2, &["gpt2 has no tokenizer.json", "--tokenizer PATH"]);
    write_text(here);
    let train =
        "train --init-from gpt2 --data my.txt --steps 1 --set text.window=8 --run-dir never";
    let train = Everburn::line(here, train).refused(&["gpt2 has no tokenizer.json"]);
    assert_eq!(train.stdout, "", "nothing is said of the data before");
    own["bos_token_id"] = 1.into();
    own["eos_token_id"] = serde_json::json!([2, 3]);
    own["pad_token_id"] = (-1).into();
    std::fs::write(&config, own.to_string()).unwrap();
    let generation = here.join("gpt2/generation_config.json");
    std::fs::write(&generation, r#"{"eos_token_id": 3, "temperature": 0.6}"#).unwrap();
    import(here, &["--tokenizer", "byte"]).succeeded();
    let told = export(here, "run", "bytes");
    let line = "no tokenizer.json in it: its tokens are the bytes of UTF-8";
    assert!(told.contains(line), "{told}");
    let back = read(&here.join("bytes/config.json"));
    assert_eq!(back["eos_token_id"], own["eos_token_id"]);
    assert_eq!(back["bos_token_id"], 1);
    assert!(back["pad_token_id"].is_null());
    let generation = read(&here.join("bytes/generation_config.json"));
    assert_eq!(generation["eos_token_id"], 3);

    // A tokenizer of another model.
    std::fs::remove_dir_all(here.join("run")).unwrap();
    own["vocab_size"] = 255.into();
    std::fs::write(&config, own.to_string()).unwrap();
    let ended = import(here, &["--tokenizer", "byte"]);
    ended.failed_with(2, &["the tokenizer has 256 tokens, and the model 255"]);
    let train = "train --init-from gpt2 --tokenizer byte --data my.txt --steps 1 --set text.window=8 --run-dir never";
    for ranks in ["1", "2"] {
        let train = Everburn::line(here, train).args(["--ranks", ranks]);
        let messages = [
            "the tokenizer of the data has 256 tokens, and the pretrained model 255",
            "name the tokenizer that the model learned with",
        ];
        train.refused(&messages);
    }
    assert!(!here.join("never").exists());
}

#[test]
fn a_language_model_keeps_its_tokenizer_whose_settings_win() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let tokenizer = std::path::absolute("../datasets/tests/tokenizer/tokenizer.json").unwrap();
    pretrained_with(here, "gpt2", SMALL_GPT, &tokenizer.display().to_string());
    // Its tokens are no bytes.
    let message = "the model of gpt2 reads tokens of the tokenizer ";
    import(here, &["--tokenizer", "byte"]).failed_with(2, &[message, "--tokenizer is byte"]);
    // Nor those of a tokenizer that only looks alike.
    let tokenizer = std::fs::read(tokenizer).unwrap();
    let text = String::from_utf8(tokenizer.clone()).unwrap();
    let swapped = text.replacen(r##""#":2,"$":3"##, r##""$":2,"#":3"##, 1);
    assert_ne!(swapped, text);
    std::fs::write(here.join("other.json"), swapped).unwrap();
    write_text(here);
    let train = "train --init-from gpt2 --tokenizer other.json --data my.txt --steps 1 --set text.window=8 \
                 --run-dir never";
    Everburn::line(here, train).refused(&[
        "the model learned from the tokens of ",
        "where token 2 is \"#\"",
    ]);
    let config = here.join("gpt2/config.json");
    let mut own = read(&config);
    own["bos_token_id"] = 1.into();
    own["eos_token_id"] = serde_json::json!([2, 3]);
    let settings = r#"{"eos_token": {"content": "a"}, "tokenizer_class": "GPT2Tokenizer"}"#;
    for (file, text) in [
        ("config.json", own.to_string().as_str()),
        ("tokenizer_config.json", settings),
        ("generation_config.json", r#"{"eos_token_id": 3}"#),
    ] {
        std::fs::write(here.join("gpt2").join(file), text).unwrap();
    }
    import(here, &[]).succeeded();
    write_text(here);
    let tune = "train --init-from run --data my.txt --steps 1 --batch-size 4 --validation-samples 0 --run-dir tuned";
    Everburn::line(here, format!("{tune} --set text.window=8")).succeed();
    let told = export(here, "tuned", "out");
    assert!(!told.contains("no tokenizer.json"), "{told}");
    let out = here.join("out");
    assert_eq!(
        std::fs::read(out.join("tokenizer.json")).unwrap(),
        tokenizer
    );
    let settings = read(&out.join("tokenizer_config.json"));
    assert_eq!(settings["tokenizer_class"], "GPT2Tokenizer");
    let json: serde_json::Value = serde_json::from_slice(&tokenizer).unwrap();
    let end = &json["model"]["vocab"]["a"];
    assert_eq!(&read(&out.join("config.json"))["eos_token_id"], end);
    assert_eq!(
        &read(&out.join("generation_config.json"))["eos_token_id"],
        end
    );
    assert_eq!(read(&out.join("config.json"))["bos_token_id"], 1);
}

#[test]
fn a_damaged_pretrained_model_is_refused_by_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    pretrained(
        here,
        "gpt2",
        "gpt={width=8,layers=1,heads=2,context=8,dropout=0.0}",
    );
    let [weights, config] =
        ["model.safetensors", "config.json"].map(|name| here.join("gpt2").join(name));
    let [sound_weights, sound_config] =
        [&weights, &config].map(|path| std::fs::read(path).unwrap());
    let run = || {
        let ended = Everburn::line(here, "import gpt2 --tokenizer byte --run-dir never").run();
        assert!(!ended.stderr.contains("panicked"), "{ended}");
        assert_eq!(here.join("never").exists(), ended.code() == 0, "{ended}");
        ended
    };
    let refused = |expected: &str| {
        let ended = run();
        ended.failed_with(ended.code().max(1), &[expected]);
    };
    // Cut anywhere, and with other bytes in its header.
    let header = 8 + u64::from_le_bytes(sound_weights[..8].try_into().unwrap()) as usize;
    for part in 0..4 {
        let end = sound_weights.len() * part / 4;
        std::fs::write(&weights, &sound_weights[..end]).unwrap();
        refused("gpt2");
        let mut changed = sound_weights.clone();
        changed[header * part / 4] ^= 0x15;
        std::fs::write(&weights, &changed).unwrap();
        // What is no part of a name or a number may be anything.
        if run().code() == 0 {
            std::fs::remove_dir_all(here.join("never")).unwrap();
        }
    }
    std::fs::write(&weights, &sound_weights).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&sound_config).unwrap();
    for line in [
        "n_embd | 1099511627776 | at most",
        "n_layer | 1000000 | number of layers",
        "n_head | 0 | number of heads",
        "n_head | 5 | n_head = 5",
        "model_type | \"bert\" | no model here",
    ] {
        let words: Vec<_> = line.split(" | ").collect();
        let mut other = json.clone();
        other[words[0]] = serde_json::from_str(words[1]).unwrap();
        std::fs::write(&config, other.to_string()).unwrap();
        refused(words[2]);
    }
    std::fs::write(&config, "{").unwrap();
    refused("gpt2");
}
