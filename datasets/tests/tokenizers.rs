//! Tokenizers of files against Hugging Face's Python library, whose answers are in `tokenizer/`.

use std::fs;
use std::path::PathBuf;

use everburn_datasets::{
    DataChoice, DatasetError, TextRequest, Tokenizer, TokenizerKind, load_text,
};
use everburn_tests::AssertContains;
use sha2::{Digest, Sha256};

fn folder() -> PathBuf {
    std::path::absolute("tests/tokenizer").unwrap()
}

/// What Python makes of a text.
fn expected(text: &str) -> serde_json::Value {
    let ids = fs::read_to_string(folder().join("ids.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&ids).unwrap()[text].clone()
}

fn is_pythons(tokenizer: &Tokenizer, name: &str, text: &str) {
    let ids = tokenizer.encode(text).unwrap();
    let expected = expected(name);
    assert_eq!(ids.len() as u64, expected["count"], "{name}");
    assert_eq!(serde_json::json!(ids[..24]), expected["first"], "{name}");
    let bytes = ids
        .iter()
        .flat_map(|id| id.to_le_bytes())
        .collect::<Vec<_>>();
    let hash = data_encoding::HEXLOWER.encode(&Sha256::digest(bytes));
    assert_eq!(hash, expected["sha256"], "{name}");
    assert_eq!(tokenizer.decode(&ids), text, "{name}");
}

#[test]
fn ids_are_pythons_and_come_back_as_the_text() {
    let tokenizer = Tokenizer::from_file(folder().join("tokenizer.json")).unwrap();
    assert_eq!((tokenizer.vocabulary(), tokenizer.unit()), (512, "tokens"));
    is_pythons(
        &tokenizer,
        "embedded",
        include_str!("../src/text/embedded.txt"),
    );
    let Some(real) = everburn_tests::data_folder("tinyshakespeare", "ids of the real text") else {
        return;
    };
    let text = fs::read_to_string(real.join("input.txt")).unwrap();
    is_pythons(&tokenizer, "tinyshakespeare", &text);
}

#[test]
fn gpt2s_two_files_make_the_same_tokenizer() {
    let json = fs::read_to_string(folder().join("tokenizer.json")).unwrap();
    let model = &serde_json::from_str::<serde_json::Value>(&json).unwrap()["model"];
    let two = tempfile::tempdir().unwrap();
    assert_eq!(TokenizerKind::of_pretrained(two.path()), None);
    let merges = model["merges"].as_array().unwrap().iter().map(|pair| {
        let [left, right] = [&pair[0], &pair[1]].map(|part| part.as_str().unwrap());
        format!("{left} {right}\n")
    });
    fs::write(two.path().join("vocab.json"), model["vocab"].to_string()).unwrap();
    let merges = format!("#version: 0.2\n{}", merges.collect::<String>());
    fs::write(two.path().join("merges.txt"), merges).unwrap();
    let both = TokenizerKind::File(two.path().to_owned());
    assert_eq!(TokenizerKind::of_pretrained(two.path()), Some(both));
    let tokenizer = Tokenizer::from_file(two.path()).unwrap();
    is_pythons(
        &tokenizer,
        "embedded",
        include_str!("../src/text/embedded.txt"),
    );
    // A `tokenizer.json` comes first.
    let one = two.path().join("tokenizer.json");
    fs::write(&one, &json).unwrap();
    let found = TokenizerKind::of_pretrained(two.path());
    assert_eq!(found, Some(TokenizerKind::File(one)));
}

#[test]
fn a_text_of_ones_own_is_cut_into_windows_of_tokens() {
    let own = tempfile::tempdir().unwrap();
    let file = own.path().join("own.txt");
    fs::write(&file, "the keeper of the fires ".repeat(200)).unwrap();
    let request = TextRequest {
        choice: DataChoice::Auto,
        file: Some(file.clone()),
        tokenizer: TokenizerKind::File(folder()),
        context: 16,
        ..TextRequest::default()
    };
    let text = load_text(&request).unwrap();
    let description = text.description.to_string();
    description.assert_contains(["own.txt", "windows of 16 tokens"]);
    let bytes = TextRequest {
        tokenizer: TokenizerKind::Byte,
        ..request.clone()
    };
    assert_ne!(text.fingerprint(), load_text(&bytes).unwrap().fingerprint());
    let nowhere = TextRequest {
        file: Some(own.path().join("none.txt")),
        ..request
    };
    assert!(
        load_text(&nowhere)
            .unwrap_err()
            .to_string()
            .contains("none.txt")
    );
}

/// Truncated and changed files, 200 of them: an error that names the file, or a tokenizer; never a panic.
#[test]
fn damaged_files_are_errors_with_the_file() {
    let whole = fs::read(folder().join("tokenizer.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokenizer.json");
    let mut random = 3_u64;
    let mut below = |limit: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % limit
    };
    let mut refused = 0;
    for round in 0..200 {
        let mut damaged = whole.clone();
        match round % 2 {
            0 => damaged.truncate(below(whole.len())),
            _ => {
                for _ in 0..4 {
                    let at = below(damaged.len());
                    damaged[at] = below(256) as u8;
                }
            }
        }
        fs::write(&file, damaged).unwrap();
        match Tokenizer::from_file(&file) {
            Err(error) => {
                assert!(matches!(error, DatasetError::Data { .. }), "{error}");
                assert!(error.to_string().contains("tokenizer.json"), "{error}");
                refused += 1;
            }
            Ok(tokenizer) => drop(tokenizer.encode("the keeper")),
        }
    }
    assert!(refused > 100, "{refused}");
    let empty = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_file(empty.path()).unwrap_err().to_string();
    error.assert_contains(["neither tokenizer.json nor vocab.json"]);
}
