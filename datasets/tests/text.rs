//! Where text comes from, and what it becomes.

#[path = "text/instructions.rs"]
mod instructions;

use std::fs;
use std::path::Path;

use everburn_datasets::{
    DataChoice, DataRequest, DatasetError, LoadedText, Surroundings, TextRequest, Tokenizer,
    TokenizerKind, load_in, load_text_in,
};
use everburn_tests::AssertContains;
use proptest::prelude::*;

/// Surroundings where nothing is found but below `data_dir`.
fn surroundings(data_dir: Option<&Path>) -> Surroundings {
    Surroundings {
        data_dir: data_dir.map(Path::to_owned),
        ..Surroundings::default()
    }
}

fn request(choice: DataChoice) -> TextRequest {
    TextRequest {
        choice,
        ..TextRequest::default()
    }
}

/// A folder with `tinyshakespeare/input.txt` of these bytes.
fn folder_with(bytes: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tinyshakespeare")).unwrap();
    fs::write(folder.path().join("tinyshakespeare/input.txt"), bytes).unwrap();
    folder
}

fn load_bytes(bytes: &[u8], request: &TextRequest) -> Result<LoadedText, DatasetError> {
    let folder = folder_with(bytes);
    load_text_in(request, &surroundings(Some(folder.path())))
}

#[test]
fn the_real_text_is_found_by_the_variable() {
    let Some(text) = everburn_tests::data_folder("tinyshakespeare", "reading the real text") else {
        return;
    };
    let folder = text.parent().unwrap();
    for choice in [DataChoice::Auto, DataChoice::TinyShakespeare] {
        let text = load_text_in(&request(choice), &surroundings(Some(folder))).unwrap();
        assert_eq!(text.vocabulary, 65);
        // 1,115,394 characters: (1,003,851 - 1) / 64 and (111,543 - 1) / 64.
        assert_eq!((text.train.len(), text.test.len()), (15_685, 1_742));
        assert_eq!(text.description.name, "tinyshakespeare");
        assert_eq!(text.description.reason, "found by EVERBURN_DATA_DIR");
        let window = text.train.window(0).unwrap();
        let start = text.tokenizer.unwrap().decode(&window[..14]);
        assert_eq!(start, "First Citizen:");
    }
}

#[test]
fn without_a_file_auto_takes_the_embedded_text_and_says_why() {
    let empty = tempfile::tempdir().unwrap();
    let auto = request(DataChoice::Auto);
    let text = load_text_in(&auto, &surroundings(Some(empty.path()))).unwrap();
    let line = text.description.to_string();
    let folder = empty.path().join("tinyshakespeare");
    let reason = format!("there is no input.txt in {}", folder.display());
    assert!(line.starts_with("embedded, "), "{line}");
    assert!(line.contains("windows of 64 characters"), "{line}");
    assert!(line.ends_with(&reason), "{line}");

    let asked = load_text_in(&request(DataChoice::Embedded), &surroundings(None)).unwrap();
    assert_eq!(asked.description.reason, "asked for");
    assert_eq!(asked.fingerprint(), text.fingerprint());
    assert!(asked.train.len() >= 90 && asked.test.len() >= 10);
}

#[test]
fn the_text_by_name_fails_where_it_is_not_and_lists_the_places() {
    let named = tempfile::tempdir().unwrap();
    let request = request(DataChoice::TinyShakespeare);
    let error = load_text_in(&request, &surroundings(Some(named.path()))).unwrap_err();
    let error = error.to_string();
    let place = named.path().join("tinyshakespeare").display().to_string();
    error.assert_contains([place.as_str(), "lacks input.txt", "--data embedded"]);
}

#[test]
fn no_other_text_is_taken_in_place_of_a_named_folders() {
    let given = tempfile::tempdir().unwrap();
    let variable = folder_with(&b"abcdefghij".repeat(100));
    for choice in [DataChoice::TinyShakespeare, DataChoice::Auto] {
        let named = |folder: &Path| {
            let request = TextRequest {
                data_dir: Some(folder.to_owned()),
                ..request(choice)
            };
            load_text_in(&request, &surroundings(Some(variable.path()))).unwrap_err()
        };
        let error = named(given.path());
        assert!(matches!(error, DatasetError::NotFound { .. }), "{error}");
        assert!(!error.to_string().contains("EVERBURN_DATA_DIR)"), "{error}");
        let error = named(&given.path().join("nowhere"));
        assert!(matches!(error, DatasetError::Data { .. }), "{error}");
        let nowhere = given.path().join("nowhere");
        let error = load_text_in(&request(choice), &surroundings(Some(&nowhere))).unwrap_err();
        assert!(matches!(error, DatasetError::Data { .. }), "{error}");
    }
}

#[test]
fn another_text_in_its_place_is_taken_and_told() {
    let bytes = b"to be or not to be ".repeat(50);
    let text = load_bytes(&bytes, &request(DataChoice::Auto)).unwrap();
    let alphabet = text.tokenizer.unwrap().alphabet();
    assert_eq!(alphabet.as_deref(), Some(" benort"));
    let reason = "found by EVERBURN_DATA_DIR; it is not the published text";
    assert_eq!(text.description.reason, reason);
}

#[test]
fn a_folder_of_the_text_itself_may_be_named() {
    let folder = folder_with(&b"abcdefghij".repeat(100));
    let request = TextRequest {
        data_dir: Some(folder.path().join("tinyshakespeare")),
        ..request(DataChoice::TinyShakespeare)
    };
    let text = load_text_in(&request, &surroundings(None)).unwrap();
    let reason = text.description.reason;
    assert!(reason.starts_with("found by --data-dir;"), "{reason}");
}

#[test]
fn a_file_that_is_damaged_too_short_or_unreadable_is_an_error_even_for_auto() {
    let request = request(DataChoice::Auto);
    let mut damaged = b"abc".repeat(500);
    damaged[700] = 0xff;
    let error = load_bytes(&damaged, &request).unwrap_err().to_string();
    assert!(error.contains("byte 700 is not UTF-8"), "{error}");
    assert!(error.contains("input.txt"), "{error}");
    for length in [0, 1, 64, 640] {
        let error = load_bytes(&vec![b'a'; length], &request).unwrap_err();
        let tokens = format!("has {length} tokens");
        error
            .to_string()
            .assert_contains([tokens.as_str(), "more than the 64"]);
    }
    assert_eq!(load_bytes(&[b'a'; 650], &request).unwrap().test.len(), 1);

    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("tinyshakespeare/input.txt")).unwrap();
    let error = load_text_in(&request, &surroundings(Some(folder.path()))).unwrap_err();
    assert!(error.to_string().contains("cannot read"), "{error}");
}

#[test]
fn images_are_no_text_and_text_is_no_image() {
    let error = load_text_in(&request(DataChoice::Mnist), &surroundings(None)).unwrap_err();
    let expected = "--data mnist is images, and this model takes text";
    assert_eq!(error.to_string(), expected);
    let images = DataRequest {
        choice: DataChoice::TinyShakespeare,
        ..DataRequest::default()
    };
    let error = load_in(&images, &surroundings(None)).unwrap_err();
    let expected = "--data tinyshakespeare is text, and this model takes images";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn bytes_read_any_text_and_characters_only_those_that_they_know() {
    let text = "Größe\n".repeat(200);
    let bytes = TextRequest {
        tokenizer: TokenizerKind::Byte,
        ..request(DataChoice::Auto)
    };
    let loaded = load_bytes(text.as_bytes(), &bytes).unwrap();
    let alphabet = loaded.tokenizer.unwrap().alphabet();
    assert_eq!((loaded.vocabulary, alphabet), (256, None));
    assert!(loaded.description.unit.ends_with("bytes"));

    let known = TextRequest {
        alphabet: Some("\nGerö".to_string()),
        ..request(DataChoice::Auto)
    };
    let error = load_bytes(text.as_bytes(), &known).unwrap_err().to_string();
    let start = "byte 4 of the text begins 'ß'";
    assert!(error.starts_with(start), "{error}");
    let known = TextRequest {
        alphabet: Some("\nGerzßö".to_string()),
        ..known
    };
    let loaded = load_bytes(text.as_bytes(), &known).unwrap();
    assert_eq!(loaded.vocabulary, 7, "as the model was trained");
}

#[test]
fn limits_keep_the_first_windows() {
    let limited = TextRequest {
        train_limit: Some(3),
        test_limit: Some(2),
        ..request(DataChoice::Embedded)
    };
    let text = load_text_in(&limited, &surroundings(None)).unwrap();
    assert_eq!((text.train.len(), text.test.len()), (3, 2));
    let none = TextRequest {
        train_limit: Some(0),
        ..limited
    };
    let error = load_text_in(&none, &surroundings(None)).unwrap_err();
    let start = "0 training samples";
    assert!(error.to_string().starts_with(start), "{error}");
}

proptest! {
    #[test]
    fn every_text_comes_back_from_its_tokens(text in ".{1,200}") {
        for tokenizer in [Tokenizer::of_characters_in(&text).unwrap(), Tokenizer::of_bytes()] {
            let tokens = tokenizer.encode(&text).unwrap();
            prop_assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocabulary()));
            prop_assert_eq!(tokenizer.decode(&tokens), text.clone());
        }
    }

    #[test]
    fn an_alphabet_makes_the_same_tokenizer_again(text in ".{1,200}") {
        let tokenizer = Tokenizer::of_characters_in(&text).unwrap();
        let again = Tokenizer::of_alphabet(&tokenizer.alphabet().unwrap());
        prop_assert_eq!(again.unwrap(), tokenizer);
    }

    #[test]
    fn anything_can_be_decoded(tokens in prop::collection::vec(any::<u32>(), 0..50)) {
        let characters = Tokenizer::of_characters_in("abc").unwrap();
        prop_assert_eq!(characters.decode(&tokens).chars().count(), tokens.len());
        Tokenizer::of_bytes().decode(&tokens);
    }
}

#[test]
fn an_alphabet_that_is_none_is_refused() {
    for alphabet in ["", "ba", "aa"] {
        let error = Tokenizer::of_alphabet(alphabet).unwrap_err().to_string();
        assert!(error.contains("alphabet"), "{error}");
    }
}
