//! Instructions, of which answers are learned.

use std::fs;

use everburn_datasets::{DatasetError, LoadedText, TextRequest, TokenizerKind, load_text_in};
use everburn_tests::AssertContains;

use super::surroundings;

fn load_lines(lines: impl AsRef<[u8]>, request: &TextRequest) -> Result<LoadedText, DatasetError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lines.jsonl");
    fs::write(&file, lines).unwrap();
    let request = TextRequest {
        file: Some(file),
        tokenizer: TokenizerKind::Byte,
        ..request.clone()
    };
    load_text_in(&request, &surroundings(None))
}

/// The text of a sample, and that of the part of it that is learned.
fn texts(text: &LoadedText, index: usize) -> [String; 2] {
    let item = burn_dataset::Dataset::get(&text.train, index).unwrap();
    let mask = item.mask.unwrap();
    let tokens = item.tokens.iter().zip(&mask);
    let learned = tokens.filter(|(_, learned)| **learned);
    let learned = learned.map(|(token, _)| *token).collect::<Vec<_>>();
    let tokenizer = text.tokenizer.as_ref().unwrap();
    [item.tokens, learned].map(|tokens| tokenizer.decode(&tokens))
}

#[test]
fn of_instructions_only_answers_are_learned() {
    let lines = r#"
        {"prompt": "2 + 2 = ", "completion": "4"}

        {"messages": [{"role": "system", "content": "Count."}, {"role": "user", "content": "1?"},
            {"role": "assistant", "content": "2"}, {"role": "user", "content": "2?"},
            {"role": "assistant", "content": "3"}, {"role": "user", "content": "3?"}]}
        {"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
            "completion": [{"role": "assistant", "content": "d"}], "id": 7}
        {"prompt": "", "completion": "the test"}"#;
    let lines = lines.replace(",\n            ", ", "); // a sample is one line
    let wide = TextRequest {
        context: 200,
        ..TextRequest::default()
    };
    let text = load_lines(&lines, &wide).unwrap();
    assert_eq!((text.train.len(), text.test.len()), (3, 1));
    let line = text.description.to_string();
    line.assert_contains(["3 training and 1 test instructions of up to 200 bytes"]);
    let expected = ["2 + 2 = 4<|im_end|>", "4<|im_end|>"];
    assert_eq!(texts(&text, 0), expected);
    let expected = "<|im_start|>system\nCount.<|im_end|>\n<|im_start|>user\n1?<|im_end|>\n\
        <|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n3<|im_end|>";
    // The last question has no answer.
    assert_eq!(texts(&text, 1), [expected, "2<|im_end|>3<|im_end|>"]);
    assert!(texts(&text, 2)[0].contains("assistant\nb<|im_end|>"));
    assert_eq!(texts(&text, 2)[1], "d<|im_end|>");
    let template = text.template.clone().unwrap();
    assert!(template.messages);
    let second = template.turn("2?", false);
    expected.assert_contains([format!("2<|im_end|>{second}3")]);

    // Long samples are cut at their ends, where that is wanted.
    let narrow = TextRequest {
        context: 10,
        truncate: true,
        ..TextRequest::default()
    };
    let two = "{\"prompt\": \"2 + 2 = \", \"completion\": \"4\"}\n".repeat(2);
    let cut = load_lines(&two, &narrow).unwrap();
    assert_eq!(texts(&cut, 0), ["2 + 2 = 4<|", "4<|"]);
    assert_ne!(cut.fingerprint(), text.fingerprint());

    // Characters are those of all samples, and of the template.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lines.jsonl");
    fs::write(&file, two).unwrap();
    let characters = TextRequest {
        file: Some(file),
        ..wide
    };
    let text = load_text_in(&characters, &surroundings(None)).unwrap();
    let alphabet = text.tokenizer.unwrap().alphabet().unwrap();
    assert_eq!(alphabet, " +24<=>_deimn|");
}

#[test]
fn instructions_that_cannot_be_learned_are_refused_with_file_and_line() {
    let good = r#"{"prompt": "a", "completion": "b"}"#;
    // A line, and what is wrong with it.
    let cases = r#"
        {"prompt": "a",                                      => it is no JSON: EOF
        [1]                                                  => it is no JSON object
        "a text"                                             => it is no JSON object
        {"text": "a"}                                        => it has neither `messages` nor `prompt` and `completion`
        {"prompt": "a"}                                      => it has no field `completion`
        {"completion": "a"}                                  => it has no field `prompt`
        {"prompt": "a", "completion": 1}                     => neither two texts nor two lists
        {"prompt": "a", "completion": " "}                   => its `completion` is empty
        {"messages": {}}                                     => its `messages` is no list
        {"messages": []}                                     => none of its messages is an answer
        {"messages": [], "prompt": "a"}                      => it has `messages`, and `prompt` or `completion`
        {"messages": [{"role": "user", "content": "a"}]}     => none of its messages is an answer
        {"messages": [{"role": "user"}]}                     => `messages[0].content` is no text
        {"messages": [{"role": "a b", "content": ""}]}       => `messages[0].role` is no name
        {"messages": [{"role": "assistant", "content": ""}]} => `messages[0].content`, an answer, is empty
        {"messages": [7]}                                    => `messages[0].role` is no text"#;
    for case in cases.trim().lines() {
        let (line, problem) = case.split_once("=>").unwrap();
        let lines = format!("{good}\n\n{}\n{good}\n", line.trim());
        let error = load_lines(&lines, &TextRequest::default()).unwrap_err();
        let error = error.to_string();
        error.assert_contains(["lines.jsonl, line 3: ", problem.trim()]);
    }
}

#[test]
fn instructions_that_are_too_long_or_too_few_are_refused_or_cut() {
    let good = r#"{"prompt": "a", "completion": "b"}"#;
    let refused = |lines: &[u8]| {
        let error = load_lines(lines, &TextRequest::default()).unwrap_err();
        error.to_string()
    };
    let long = format!("{good}\n{}\n", good.replace('a', &"a".repeat(64)));
    let error = refused(long.as_bytes());
    error.assert_contains(["line 2: it has 75 tokens, and a window has 65: raise text.window"]);
    let cut = TextRequest {
        truncate: true,
        ..TextRequest::default()
    };
    // One token of the answer is left.
    load_lines(&long, &cut).unwrap();
    let longer = long.replace("aaaa", "aaaaaaaa");
    let error = load_lines(&longer, &cut).unwrap_err().to_string();
    error.assert_contains(["line 2: its prompt alone fills the window of 65"]);
    for few in ["", good] {
        let error = refused(few.as_bytes());
        error.assert_contains(["a training needs two samples at least"]);
    }
    let not_utf_8 = b"{\"prompt\": \"\xff\", \"completion\": \"b\"}\n";
    let error = refused(not_utf_8);
    assert!(error.contains("line 1: it is no JSON"), "{error}");
}
