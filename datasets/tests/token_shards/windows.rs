//! Windows of files of tokens.

use std::fs;
use std::path::Path;

use everburn_datasets::{
    LoadedText, ShardsRecord, TextRequest, TokenizeRequest, TokenizerKind, load_text,
};
use everburn_tests::AssertContains;

use super::{PASSAGE, request, run, tokens, trained};

#[test]
fn windows_are_those_of_the_text_itself() {
    let folder = tempfile::tempdir().unwrap();
    let text = PASSAGE.repeat(100);
    let request = request(folder.path(), &[("a.txt", text.as_bytes())]);
    run(&TokenizeRequest {
        shard_tokens: 777,
        ..request.clone()
    })
    .unwrap();
    let load = |file: &Path, tokenizer: TokenizerKind| -> LoadedText {
        load_text(&TextRequest {
            file: Some(file.to_owned()),
            tokenizer,
            context: 16,
            train_limit: Some(300),
            ..TextRequest::default()
        })
        .unwrap()
    };
    let whole = load(&request.inputs[0], request.tokenizer.clone());
    // The folder has the tokenizer.
    let shards = load(&request.output, TokenizerKind::Char);
    assert_eq!(shards.kind, TokenizerKind::File(request.output.clone()));
    assert_eq!(shards.tokenizer, whole.tokenizer);
    assert_eq!((shards.vocabulary, whole.vocabulary), (512, 512));
    for (shards, whole) in [(&shards.train, &whole.train), (&shards.test, &whole.test)] {
        assert_eq!(shards.len(), whole.len());
        for index in 0..whole.len() {
            assert_eq!(shards.window(index).unwrap(), whole.window(index).unwrap());
        }
    }
    let line = shards.description.to_string();
    let words = ["tokens, 300 training", "as those of everburn tokenize"];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
    assert!(whole.shards.is_none());
    let record = shards.shards.clone().unwrap();
    assert_eq!(record.tokens, tokens(&request.output)[0].len());
    assert_eq!(
        shards.fingerprint(),
        load(&request.output, TokenizerKind::Char).fingerprint()
    );
    let again = serde_json::to_string(&record).unwrap();
    assert_eq!(
        serde_json::from_str::<ShardsRecord>(&again).unwrap(),
        record
    );
}

#[test]
fn tokens_of_another_tokenizer_or_of_none_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let text = PASSAGE.repeat(20);
    let request = request(here, &[("a.txt", text.as_bytes())]);
    run(&request).unwrap();
    let load = |file: &Path, tokenizer: TokenizerKind, vocabulary: Option<usize>| {
        load_text(&TextRequest {
            file: Some(file.to_owned()),
            tokenizer,
            vocabulary,
            context: 16,
            ..TextRequest::default()
        })
    };
    let other = trained(here, &text, 300);
    for kind in [TokenizerKind::File(other.clone()), TokenizerKind::Byte] {
        let error = load(&request.output, kind, None).unwrap_err().to_string();
        assert!(error.contains("train_000000.bin was made by"), "{error}");
    }
    // Without its tokenizer a folder can be learned from, and not be read.
    fs::remove_file(request.output.join("tokenizer.json")).unwrap();
    let alone = load(&request.output, TokenizerKind::Char, None).unwrap();
    assert_eq!((alone.tokenizer, alone.vocabulary), (None, 512));
    assert_eq!(alone.kind, TokenizerKind::Char);
    // llm.c's files do not say how many tokens there are.
    let mut bytes = vec![0; 1024];
    bytes[..4].copy_from_slice(&20_240_520_u32.to_le_bytes());
    bytes[4] = 1;
    bytes[8..12].copy_from_slice(&400_u32.to_le_bytes());
    bytes.extend((0..400_u16).flat_map(u16::to_le_bytes));
    let foreign = here.join("gpt2.bin");
    fs::write(&foreign, bytes).unwrap();
    let error = load(&foreign, TokenizerKind::Char, None)
        .unwrap_err()
        .to_string();
    let words = ["gpt2.bin: vocabulary", "--tokenizer", "gpt.vocabulary"];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    let named = load(&foreign, TokenizerKind::Char, Some(400)).unwrap();
    assert_eq!((named.vocabulary, named.train.len()), (400, 22));
    assert_eq!(named.test.window(0).unwrap()[0], 360);
    let kind = TokenizerKind::File(other);
    let small = load(&foreign, kind, Some(400)).unwrap();
    let error = small.test.window(0).unwrap_err().to_string();
    error.assert_contains(["gpt2.bin: token 360", "vocabulary of 300"]);
    let error = load(here, TokenizerKind::Char, None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("vocabulary"), "{error}");
    let long = load_text(&TextRequest {
        file: Some(foreign),
        vocabulary: Some(400),
        context: 100,
        ..TextRequest::default()
    });
    let error = long.unwrap_err().to_string();
    error.assert_contains(["no window of 101 tokens to test by"]);
}
