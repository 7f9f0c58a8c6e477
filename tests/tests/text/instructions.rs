//! Instructions, from lines of JSON to a conversation, and several texts at once.

use std::path::Path;

use everburn_tests::{Everburn, Run, json_lines};

/// Questions with their answers, as lines of JSON: two in each conversation, or one by itself; and what learns them.
fn questions(folder: &Path, messages: bool) -> [(&'static str, &'static str); 3] {
    let pairs = [("one", "uno"), ("two", "dos."), ("three", "tres!!")];
    let said = |(question, answer)| {
        let messages = [("user", question), ("assistant", answer)];
        messages.map(|(role, content)| serde_json::json!({ "role": role, "content": content }))
    };
    let line = |index: usize| {
        let (question, answer) = pairs[index % 3];
        match messages {
            true => {
                let turns = [index, index / 3].map(|pair| said(pairs[pair % 3]));
                let messages = turns.concat();
                serde_json::json!({ "messages": messages })
            }
            false => serde_json::json!({ "prompt": question, "completion": answer }),
        }
    };
    let lines = (0..40).map(|index| format!("{}\n", line(index)));
    std::fs::write(folder.join("lines.jsonl"), lines.collect::<String>()).unwrap();
    std::fs::write(folder.join("answering.toml"), ANSWERING).unwrap();
    pairs
}

/// A decoder that learns a few answers by heart.
const ANSWERING: &str = "model = \"gpt-nano\"\n\
    [gpt]\ncontext = 160\nwidth = 32\nlayers = 2\nheads = 2\n\
    [data]\nname = \"lines.jsonl\"\n\
    [training]\nbatch_size = 6\nvalidation_samples = 4\nlog_every = 1\nschedule = \"constant\"\n\
    [training.optimizer]\nkind = \"adam-w\"\nlearning_rate = 0.01\n";

#[test]
fn a_model_learns_answers_on_any_number_of_ranks_and_gives_them_in_a_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let pairs = questions(here, true);
    let train = |name: &str, flags: &[&str]| {
        let train = ["train", "--config", "answering.toml", "--run-dir", name];
        let ended = Everburn::new(here, train).args(flags).succeed();
        (Run::new(here.join(name)), ended)
    };
    let (alone, ended) = train("run", &["--epochs", "40"]);
    let first = ended.stdout.lines().next().unwrap_or_default();
    let expected =
        "data: instructions, 36 training and 4 test instructions of up to 160 characters";
    assert!(first.starts_with(expected), "{ended}");
    let config = alone.text("config.toml");
    assert!(config.contains("start = \"<|im_start|>\""), "{config}");
    for ranks in ["2", "3"] {
        let few = ["--steps", "12", "--ranks", ranks];
        let (other, _) = train(&format!("ranks-{ranks}"), &few);
        let [one, other] = [&alone, &other].map(|run| run.losses("step"));
        for ((_, one), (_, other)) in one.into_iter().zip(other) {
            assert!(
                (one - other).abs() <= 2e-4 * one,
                "{ranks} ranks: {one} {other}"
            );
        }
    }
    // Each answer counts by its length, and no question.
    let answers = alone.metrics().into_iter();
    let steps = answers.filter(|line| line["kind"] == "step");
    for line in steps {
        let samples = line["samples"].as_u64().unwrap();
        let [least, most] =
            ["uno", "tres!!"].map(|answer| samples * 2 * (answer.len() as u64 + 10));
        let predictions = line["predictions"].as_u64().unwrap();
        assert!((least..=most).contains(&predictions), "{line}");
    }

    let input = "two\n\none\n/reset\nthree\n?\nthree";
    let ended = Everburn::line(here, "chat run --temperature 0 --tokens 40")
        .input(input)
        .succeed();
    let answers = ended.stdout.lines().collect::<Vec<_>>();
    let [uno, dos, tres] = pairs.map(|(_, answer)| answer);
    assert_eq!(answers, [dos, uno, tres, "", tres], "{ended}");
    ended.warns(["'?', which is none of the", " tokens, "]);
    // A conversation is one text: what the cache has is what a whole text would give.
    let said = "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\ndos.<|im_end|>\n\
        <|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n";
    let whole = Everburn::line(here, "generate run --temperature 0 --tokens 40")
        .args(["--stop", "<|im_end|>", "--prompt", said])
        .succeed();
    assert_eq!(
        whole.stdout.trim_end(),
        format!("{said}{}", answers[1]).trim_end()
    );

    // A conversation that is longer than the context continues.
    let long = "two\n".repeat(6);
    let ended = Everburn::line(here, "chat run --temperature 0 --tokens 40")
        .input(&long)
        .succeed();
    let forgets = "longer than the model's context of 160 tokens";
    assert_eq!(ended.stderr.matches(forgets).count(), 1, "{ended}");
}

#[test]
fn completions_without_roles_are_learned_and_several_texts_are_written_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let pairs = questions(here, false);
    let train = "train --config answering.toml --run-dir run --epochs 30";
    Everburn::line(here, train).succeed();
    let input = pairs.map(|(question, _)| question).join("\n");
    let ended = Everburn::line(here, "chat run --temperature 0 --tokens 40")
        .input(&input)
        .succeed();
    let expected = pairs.map(|(_, answer)| answer);
    assert_eq!(
        ended.stdout.lines().collect::<Vec<_>>(),
        expected,
        "{ended}"
    );

    // Prompts of different lengths, at once and one by one.
    let prompts = [
        "three",
        "o",
        "two",
        "one",
        "three<|im_end|>one<|im_end|>two",
    ];
    let generate = |flags: &[&str]| {
        let generate = Everburn::new(here, ["generate", "run", "--tokens", "30"]);
        generate.args(flags).succeed()
    };
    for temperature in ["0", "0.9"] {
        let how = ["--temperature", temperature, "--stop", "!", "--seed", "5"];
        let alone = prompts.map(|prompt| {
            let flags = [&how[..], &["--prompt", prompt]].concat();
            generate(&flags).stdout
        });
        let several = prompts.map(|prompt| format!("--prompt={prompt}"));
        let several = several.each_ref().map(String::as_str);
        let together = generate(&[&how[..], &several].concat());
        assert_eq!(together.stdout, alone.join("\n"), "{temperature}");
        together.warns([" tokens, "]);
        std::fs::write(here.join("prompts.txt"), prompts.join("\n\n")).unwrap();
        let flags = ["--prompts", "prompts.txt", "--batch-size", "2"];
        assert_eq!(
            generate(&[&how[..], &flags].concat()).stdout,
            together.stdout
        );
    }
    let flags = ["--prompts", "prompts.txt", "--json", "--temperature", "0"];
    let lines = generate(&[&flags[..], &["--stop", "<|im_end|>"]].concat());
    let lines = json_lines(&lines.stdout);
    let first = serde_json::json!({ "prompt": "three", "completion": "tres!!" });
    assert_eq!((lines.len(), &lines[0]), (5, &first));
}

#[test]
fn prompts_and_instructions_that_cannot_be_used_are_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    questions(here, false);
    let train = "train --config answering.toml --run-dir run --steps 1";
    Everburn::line(here, train).succeed();
    let refused = |line: &str, messages: &[&str]| {
        Everburn::line(here, line).refused(messages);
    };
    std::fs::write(here.join("prompts.txt"), "one\n").unwrap();
    refused("generate run --prompts nowhere", &["nowhere"]);
    let both = "generate run --prompts prompts.txt --prompt a";
    refused(both, &["cannot be used with"]);
    refused("generate run --batch-size 0", &["--batch-size"]);
    std::fs::write(here.join("prompts.txt"), "\n").unwrap();
    refused("generate run --prompts prompts.txt", &["no prompt"]);
    // A sample too long for the model.
    let long = "a".repeat(200);
    let line = serde_json::json!({ "prompt": "a", "completion": long });
    std::fs::write(here.join("lines.jsonl"), format!("{line}\n").repeat(2)).unwrap();
    let train = "train --config answering.toml --validation-samples 0";
    let too_long = "lines.jsonl, line 1: it has 211 tokens, and a window has 161";
    refused(train, &[too_long]);
    assert!(!here.join("runs").exists(), "nothing was started");
    let ended = Everburn::line(here, train)
        .words("--set text.truncate=true --data-on-device")
        .run();
    ended.failed_with(
        ended.code().max(1),
        &["--data-on-device", "different lengths"],
    );
}
