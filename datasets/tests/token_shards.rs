//! Text of any size: from files of text to files of tokens, and from there to windows.

#[path = "token_shards/windows.rs"]
mod windows;

use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use everburn_datasets::{
    DatasetError, Documents, EndOfDocument, TextRequest, TokenFiles, TokenFormat, TokenizeRequest,
    Tokenized, Tokenizer, TokenizerKind, TokenizerRequest, load_text, tokenize, train_tokenizer,
};
use everburn_tests::AssertContains;
use flate2::Compression;
use flate2::write::GzEncoder;

/// Words, numbers, lines, other scripts, and code.
const PASSAGE: &str = "The keeper of the fires wrote 1234567 lines, didn't she?  \n\n\tAnd then: größer, \
    日本語のテキスト。 Ещё раз!\n    fn main() { println!(\"{}\", 3.14); }\r\n";

fn tokenizer_file() -> PathBuf {
    std::path::absolute("tests/tokenizer/tokenizer.json").unwrap()
}

/// A request for the text of these files in `folder`, with the tests' tokenizer, which has no token for ends.
fn request(folder: &Path, files: &[(&str, &[u8])]) -> TokenizeRequest {
    let write = |(name, text): &(&str, &[u8])| {
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        file
    };
    TokenizeRequest {
        inputs: files.iter().map(write).collect(),
        tokenizer: TokenizerKind::File(tokenizer_file()),
        end_of_document: EndOfDocument::None,
        output: folder.join("tokens"),
        ..TokenizeRequest::default()
    }
}

fn run(request: &TokenizeRequest) -> Result<Tokenized, DatasetError> {
    tokenize(request, &mut |_| ControlFlow::Continue(()))
}

fn refused(request: &TokenizeRequest, expected: &[&str]) {
    let error = run(request).unwrap_err().to_string();
    error.assert_contains(expected);
}

/// The tokens to train on and to validate by in a folder.
fn tokens(folder: &Path) -> [Vec<u32>; 2] {
    let files = TokenFiles::open(folder, TokenFormat::Detect).unwrap();
    files.train.verify().unwrap();
    let all = |shards: &everburn_datasets::TokenShards| shards.read(0..shards.tokens()).unwrap();
    [
        all(&files.train),
        files.held_out.as_ref().map(all).unwrap_or_default(),
    ]
}

fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A tokenizer that knows `<|endoftext|>`, trained on `text`.
fn trained(folder: &Path, text: &str, vocabulary: usize) -> PathBuf {
    let input = folder.join("to-train-on.txt");
    fs::write(&input, text).unwrap();
    let (json, _) = train_tokenizer(&TokenizerRequest {
        inputs: vec![input],
        documents: Documents::Files,
        vocabulary,
    })
    .unwrap();
    let file = folder.join("own.json");
    fs::write(&file, json).unwrap();
    file
}

#[test]
fn a_long_text_has_the_tokens_that_it_has_when_it_is_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    // Cut in five places.
    let mut text = String::new();
    while text.len() < 1_500_000 {
        text.push_str(PASSAGE);
        let number = text.len().wrapping_mul(2_654_435_761) % 99_991;
        text.push_str(&format!("{number} and so on{}", " ".repeat(number % 4)));
    }
    let request = request(folder.path(), &[("a.txt", text.as_bytes())]);
    let request = TokenizeRequest {
        shard_tokens: 100_000,
        ..request
    };
    let mut told = Vec::new();
    let done = tokenize(&request, &mut |bytes| {
        told.push(bytes);
        ControlFlow::Continue(())
    });
    let done = done.unwrap();
    let expected = Tokenizer::from_file(tokenizer_file()).unwrap();
    let expected = expected.encode(&text).unwrap();
    assert_eq!(tokens(&request.output), [expected.clone(), Vec::new()]);
    assert_eq!(done.tokens, [expected.len() as u64, 0]);
    assert_eq!(done.documents, [1, 0]);
    assert_eq!(done.files, [expected.len().div_ceil(100_000), 0]);
    assert_eq!(done.bytes, text.len() as u64);
    assert!(told.is_sorted() && !told.is_empty(), "{told:?}");
    let files = names(&request.output);
    assert_eq!(files[0], "tokenizer.json");
    assert_eq!(files[2], "train_000001.bin");
    let output = folder.path().join("more");
    let ended = tokenize(&TokenizeRequest { output, ..request }, &mut |_| {
        ControlFlow::Break(())
    });
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("interrupted"), "{error}");
    // Nothing else is left.
    assert_eq!(names(folder.path()), ["a.txt", "tokens"]);
}

#[test]
fn documents_are_kept_apart_however_they_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let own = trained(here, &PASSAGE.repeat(20), 400);
    let tokenizer = Tokenizer::from_file(&own).unwrap();
    assert_eq!(tokenizer.token("<|endoftext|>"), Some(0));
    let texts = ["one fire", "two\nfires \"and\" größer", "three"];
    let mut expected = Vec::new();
    for text in texts {
        expected.extend(tokenizer.encode(text).unwrap());
        expected.push(0);
    }
    let lines = texts.map(|text| serde_json::json!({"n": 1, "text": text}).to_string());
    let packed = |text: &str| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        packed.finish().unwrap()
    };
    fs::create_dir(here.join("folder")).unwrap();
    for (name, text) in ["a.txt", "b.txt", "c"].iter().zip(texts) {
        fs::write(here.join("folder").join(name), text).unwrap();
    }
    fs::write(here.join("folder/.hidden"), "no").unwrap();
    let separator = "\n<|endoftext|>\n";
    let separated = format!("{}{separator} \n", texts.join(separator));
    let apart = Documents::Separated(separator.to_owned());
    let json = Documents::JsonLines("text".to_owned());
    let returns = format!("{}\n\n", lines.join("\r\n"));
    let cases = [
        ("a", separated.clone().into_bytes(), apart.clone()),
        ("a.gz", packed(&separated), apart),
        ("a.jsonl", lines.join("\n").into_bytes(), json.clone()),
        ("b.jsonl.gz", packed(&returns), json),
        ("folder", Vec::new(), Documents::Files),
    ];
    for (name, bytes, documents) in cases {
        if !bytes.is_empty() {
            fs::write(here.join(name), bytes).unwrap();
        }
        let request = TokenizeRequest {
            inputs: vec![here.join(name)],
            documents,
            tokenizer: TokenizerKind::File(own.clone()),
            output: here.join("tokens"),
            replace: true,
            ..TokenizeRequest::default()
        };
        let done = run(&request).unwrap();
        assert_eq!(tokens(&request.output)[0], expected, "{name}");
        assert_eq!(done.documents, [3, 0], "{name}");
        assert_eq!(done.end_of_document, Some(("<|endoftext|>".to_owned(), 0)));
        assert_eq!(
            names(&request.output),
            ["tokenizer.json", "train_000000.bin"]
        );
    }
}

#[test]
fn a_share_of_documents_is_held_out_and_spread_over_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let documents = (0..200).map(|number| format!("{number:04}"));
    let text = documents.collect::<Vec<_>>().join(";");
    let request = TokenizeRequest {
        documents: Documents::Separated(";".to_owned()),
        tokenizer: TokenizerKind::Byte,
        validation: 0.1,
        ..request(folder.path(), &[("a.txt", text.as_bytes())])
    };
    let done = run(&request).unwrap();
    assert_eq!(done.documents, [180, 20]);
    assert_eq!(done.tokens, [720, 80]);
    assert_eq!(
        names(&request.output),
        ["train_000000.bin", "val_000000.bin"]
    );
    let [train, held_out] = tokens(&request.output);
    assert_eq!(&held_out[..8], b"00010011".map(u32::from));
    assert_eq!(&train[..8], b"00000002".map(u32::from));
    // They are the test set of a training.
    let text = load_text(&TextRequest {
        file: Some(request.output),
        context: 4,
        ..TextRequest::default()
    });
    let text = text.unwrap();
    assert_eq!((text.train.len(), text.test.len()), (179, 19));
    assert_eq!((text.kind, text.vocabulary), (TokenizerKind::Byte, 256));
}

#[test]
fn what_cannot_be_tokenized_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let good = request(folder.path(), &[("a.txt", b"one; two; three")]);
    let separated = TokenizeRequest {
        documents: Documents::Separated(";".to_owned()),
        ..good.clone()
    };
    let with = |end| TokenizeRequest {
        end_of_document: end,
        ..separated.clone()
    };
    refused(
        &with(EndOfDocument::Found),
        &["several documents", "--end-of-document"],
    );
    let missing = EndOfDocument::Token("</s>".to_owned());
    refused(&with(missing), &["tokenizer.json has no token \"</s>\""]);
    let with = |tokenizer| TokenizeRequest {
        tokenizer,
        ..good.clone()
    };
    refused(&with(TokenizerKind::Char), &["tokenizer.json, or byte"]);
    refused(&with(TokenizerKind::File("no.json".into())), &["no.json"]);
    let share = |validation| TokenizeRequest {
        validation,
        ..good.clone()
    };
    refused(&share(0.7), &["0.7"]);
    refused(&share(f64::NAN), &["NaN"]);
    refused(&share(0.1), &["only one document", "--jsonl"]);
    let named = |path: PathBuf| TokenizeRequest {
        inputs: vec![path],
        ..good.clone()
    };
    refused(&named(folder.path().join("none.txt")), &["none.txt"]);
    fs::create_dir(folder.path().join("empty")).unwrap();
    refused(
        &named(folder.path().join("empty")),
        &["empty`: it is a folder without files"],
    );
    let of = |bytes: &[u8]| request(folder.path(), &[("b.txt", bytes)]);
    refused(&of(b" \n "), &["no text"]);
    let mut long = vec![b'a'; 700_000];
    for place in (0..700_000).step_by(7) {
        long[place] = b' ';
    }
    long[650_000] = 0xff;
    refused(&of(&long), &["b.txt", "byte 650000 is not UTF-8"]);
    let lines = |text: &str| TokenizeRequest {
        documents: Documents::JsonLines("text".to_owned()),
        ..of(text.as_bytes())
    };
    refused(
        &lines("{\"text\": \"a\"}\n\n{\"tex\": 1}"),
        &["b.txt, line 3", "no field `text`"],
    );
    refused(&lines("{\"text\": 1}"), &["line 1", "no text"]);
    refused(&lines("{\"text\": \"a\"}\n{"), &["line 2", "no JSON"]);
    // A text that no tokenizer cuts: a word without an end.
    refused(
        &of(&vec![b'a'; 17 << 20]),
        &["b.txt, byte 0", "--document-separator"],
    );
    let left = names(folder.path());
    assert_eq!(
        left,
        ["a.txt", "b.txt", "empty"],
        "no tokens, and nothing unfinished"
    );
    run(&TokenizeRequest {
        tokenizer: TokenizerKind::Byte,
        ..of(&vec![b'a'; 17 << 20])
    })
    .unwrap();
}

#[test]
fn only_a_folder_of_tokens_is_replaced_and_only_if_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let first = request(folder.path(), &[("a.txt", b"one two three")]);
    fs::create_dir(&first.output).unwrap();
    run(&first).unwrap();
    let before = tokens(&first.output);
    fs::write(&first.inputs[0], "something else").unwrap();
    refused(&first, &["tokens is not empty", "--force"]);
    assert_eq!(tokens(&first.output), before);
    let forced = TokenizeRequest {
        replace: true,
        ..first
    };
    run(&forced).unwrap();
    assert_ne!(tokens(&forced.output), before);
    fs::write(forced.output.join("thesis.tex"), "").unwrap();
    refused(&forced, &["thesis.tex", "not replaced"]);
    let file = TokenizeRequest {
        output: forced.inputs[0].clone(),
        ..forced.clone()
    };
    refused(&file, &["a.txt is there already, and is no folder"]);
    assert_eq!(names(folder.path()), ["a.txt", "tokens"]);
}

#[test]
fn a_tokenizer_is_trained_the_same_each_time_and_reads_any_text() {
    let folder = tempfile::tempdir().unwrap();
    let text = PASSAGE.repeat(30);
    let first = trained(folder.path(), &text, 320);
    let json = fs::read(&first).unwrap();
    let again = trained(folder.path(), &text, 320);
    assert_eq!(fs::read(again).unwrap(), json);
    let tokenizer = Tokenizer::from_file(first).unwrap();
    assert_eq!(tokenizer.vocabulary(), 320);
    for text in [PASSAGE, "никогда", "\u{1f600}\0\u{7f}"] {
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&tokens), text);
    }
    let learned = tokenizer.encode(PASSAGE).unwrap().len();
    assert!(learned * 3 < PASSAGE.len() * 2, "{learned} tokens");
    for (vocabulary, text) in [(256, "a"), (1 << 21, "a"), (300, " ")] {
        let input = folder.path().join("a.txt");
        fs::write(&input, text).unwrap();
        let error = train_tokenizer(&TokenizerRequest {
            inputs: vec![input],
            documents: Documents::Files,
            vocabulary,
        });
        assert!(matches!(error, Err(DatasetError::Request(_))), "{error:?}");
    }
}
