//! `tokenize`, and trainings on what it writes.

use std::fmt::Write;
use std::path::Path;

use everburn_tests::{AssertContains, Ended, Everburn, Run};

/// A decoder that trains in a moment.
const SMALL_GPT: &str = "model = \"gpt-nano\"\n\
    [gpt]\ncontext = 16\nwidth = 16\nlayers = 2\nheads = 2\ndropout = 0.1\n\
    [training]\nbatch_size = 16\nvalidation_samples = 16\nschedule = \"constant\"\nvirtual_ranks = 2\n";

/// Documents with blank lines between them.
fn write_text(file: &Path) {
    let mut text = String::new();
    for number in 0..300_usize {
        let word = ["fire", "river", "keeper", "größe"][number * 7 % 4];
        let more = number * number % 97;
        write!(
            text,
            "The {word} of year {more} was {number}, they say.\nSo it was.\n\n"
        )
        .unwrap();
    }
    std::fs::write(file, text).unwrap();
}

fn tokenize(here: &Path, flags: &[&str]) -> Ended {
    Everburn::new(here, ["tokenize"]).args(flags).run()
}

/// A text, a tokenizer of 300 tokens, and the folder `tokens` of several files made by it.
fn tokenized(here: &Path) -> Ended {
    write_text(&here.join("corpus.txt"));
    let flags = ["--train", "--vocabulary", "300", "--output", "own.json"];
    let trained = tokenize(here, &[&["corpus.txt"][..], &flags].concat());
    let said = trained.succeeded().stdout;
    assert!(said.contains("own.json has 300 tokens"), "{said}");
    Everburn::line(here, "tokenize corpus.txt --document-separator \\n\\n")
        .words("--tokenizer own.json --output tokens --validation 0.1 --shard-tokens 2000")
        .succeed()
}

fn train(here: &Path, name: &str, flags: &[&str]) -> Ended {
    std::fs::write(here.join("small.toml"), SMALL_GPT).unwrap();
    let line = ["train", "--config", "small.toml", "--run-dir", name];
    Everburn::new(here, line)
        .args(["--data", "tokens", "--epochs", "3", "--hash-every", "1"])
        .args(flags)
        .run()
}

fn hashes(here: &Path, name: &str) -> String {
    Run::new(here.join(name)).text("hashes.jsonl")
}

#[test]
fn a_decoder_trains_on_files_of_tokens_on_any_ranks_goes_on_and_writes() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let said = tokenized(here).stdout;
    said.assert_contains([
        "to train on: ",
        "held out: ",
        "a vocabulary of 300, <|endoftext|> (0) after each document",
        "train gpt-nano --data tokens",
    ]);
    assert!(here.join("tokens/train_000001.bin").is_file());
    let one = train(here, "one", &["--steps", "8", "--sample-every", "4"]).succeeded();
    let first = one.stdout.lines().next().unwrap_or_default();
    assert!(first.starts_with("data: tokens, "), "{one}");
    assert!(first.contains("windows of 16 tokens"), "{one}");
    assert!(first.contains("as those of everburn tokenize"), "{one}");
    one.prints(["sample after step 4:"]);
    let whole = hashes(here, "one");
    assert_eq!(whole.lines().count(), 8);
    let flags = ["--steps", "8", "--ranks", "2", "--sample-every", "4"];
    let two = train(here, "two", &flags).succeeded();
    let samples = two.stdout.matches("sample after step 4:").count();
    assert_eq!(samples, 1, "rank 0 alone: {two}");
    assert_eq!(hashes(here, "two"), whole, "the same order on two ranks");

    // On from a checkpoint, on another number of ranks.
    train(here, "run", &["--steps", "5", "--ranks", "2"]).succeeded();
    Everburn::line(here, "train --resume --run-dir run --steps 8 --ranks 1").succeed();
    assert_eq!(hashes(here, "run"), whole);
    let config = Run::new(here.join("run")).text("config.toml");
    for words in ["[text.shards]", "vocabulary = 300", "tokenizer_hash"] {
        assert!(config.contains(words), "{words}: {config}");
    }
    let flags = ["generate", "run", "--prompt", "The fire", "--tokens", "9"];
    let written = Everburn::new(here, flags).succeed().stdout;
    assert!(written.starts_with("The fire"), "{written}");
}

#[test]
fn a_run_goes_on_with_its_own_tokens_only() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    tokenized(here);
    train(here, "run", &["--steps", "2"]).succeeded();
    // Other tokens of the same tokenizer, in the same place.
    let flags = ["corpus.txt", "--tokenizer", "own.json", "--force"];
    let ended = tokenize(here, &[&flags[..], &["--output", "tokens"]].concat());
    ended.succeeded();
    let again = ["train", "--resume", "--run-dir", "run", "--steps", "4"];
    Everburn::new(here, again).refused(&["the run began with", "tokens has 1 file of"]);
    let other = Everburn::new(here, again).args(["--data", "corpus.txt"]);
    other.refused(&["the run began with"]);
    // It may be measured on others.
    Everburn::new(here, ["eval", "run", "--data", "tokens"]).succeed();
    // A new run may have the old one's configuration.
    Everburn::line(here, "train --config run/config.toml --data tokens")
        .args(["--steps", "1", "--run-dir", "new"])
        .succeed();
}

#[test]
fn files_of_llm_c_train_with_a_vocabulary_and_show_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let mut bytes = vec![0; 1024];
    bytes[..4].copy_from_slice(&20_240_520_u32.to_le_bytes());
    bytes[4] = 1;
    bytes[8..12].copy_from_slice(&3_000_u32.to_le_bytes());
    bytes.extend((0..3_000_u32).flat_map(|place| ((place * place % 400) as u16).to_le_bytes()));
    std::fs::write(here.join("fineweb_train_000001.bin"), &bytes).unwrap();
    let file = "fineweb_train_000001.bin";
    let flags = ["--data", file, "--steps", "2"];
    let messages = ["vocabulary", "--tokenizer", "--set gpt.vocabulary"];
    train(here, "none", &flags).failed_with(2, &messages);
    let known = ["--set", "gpt.vocabulary=400"];
    let ended = train(here, "run", &[&flags[..], &known].concat()).succeeded();
    ended.prints(["as those of llm.c"]);
    assert!(!ended.stdout.contains("sample after"), "{ended}");
    Everburn::new(here, ["generate", "run"]).refused(&["does not write text"]);
    // A token that the model does not know.
    let known = ["--set", "gpt.vocabulary=300"];
    let ended = train(here, "small", &[&flags[..], &known].concat());
    assert_ne!(ended.code(), 0, "{ended}");
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert!(said.contains("beyond the vocabulary of 300"), "{ended}");
    // Without a header a file is what it is said to be.
    std::fs::write(here.join("raw.bin"), &bytes[1024..]).unwrap();
    let flags = ["--data", "raw.bin", "--steps", "1"];
    train(here, "raw", &flags).failed_with(2, &["raw.bin: magic", "nanogpt:FILE"]);
    let flags = ["--data", "nanogpt:raw.bin", "--steps", "1"];
    let known = ["--set", "gpt.vocabulary=400"];
    let ended = train(here, "raw", &[&flags[..], &known].concat()).succeeded();
    ended.prints(["as those of nanoGPT"]);
}

#[test]
fn what_cannot_be_tokenized_or_trained_on_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    tokenized(here);
    let again = "tokenize corpus.txt --tokenizer own.json --output tokens";
    Everburn::line(here, again).refused(&["tokens is not empty", "--force"]);
    let flags = ["corpus.txt", "--output", "more"];
    tokenize(here, &flags).failed_with(2, &["--tokenizer"]);
    assert!(!here.join("more").exists());
    let messages = ["train_000000.bin was made by the tokenizer with the SHA-256"];
    train(here, "run", &["--tokenizer", "byte"]).failed_with(2, &messages);
    std::fs::create_dir(here.join("nothing")).unwrap();
    let messages = ["nothing: folder: it has no files *.bin", "tokenize"];
    train(here, "run", &["--data", "nothing"]).failed_with(2, &messages);
    assert!(!here.join("run").exists(), "nothing was started");
}
