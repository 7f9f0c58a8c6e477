//! Text models: from the command line to what they write.

#[path = "text/instructions.rs"]
mod instructions;

use std::path::Path;

use everburn_tests::{AssertContains, Ended, Everburn, Run};

/// A decoder that trains in a moment, on the embedded text.
const SMALL_GPT: &str = "model = \"gpt-nano\"\n\
    [gpt]\ncontext = 16\nwidth = 16\nlayers = 2\nheads = 2\ndropout = 0.1\n\
    [data]\nname = \"embedded\"\ntrain_samples = 80\ntest_samples = 20\n\
    [training]\nbatch_size = 16\nvalidation_samples = 16\nlog_every = 1\n";

/// `everburn train` of the small decoder with `flags`, in the run directory `name`.
fn train(folder: &Path, name: &str, flags: &[&str]) -> (Run, Ended) {
    std::fs::write(folder.join("small.toml"), SMALL_GPT).unwrap();
    let ended = Everburn::line(folder, "train --config small.toml --epochs 2")
        .args(["--run-dir", name])
        .args(flags)
        .run();
    (Run::new(folder.join(name)), ended)
}

fn generate(folder: &Path, flags: &[&str]) -> Ended {
    Everburn::new(folder, ["generate", "run"]).args(flags).run()
}

#[test]
fn a_run_is_fine_tuned_with_its_own_model_sizes_and_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    train(here, "run", &[]).1.succeeded();
    std::fs::write(here.join("more.txt"), "To be, or not to be. ".repeat(40)).unwrap();
    let tune = |more: &[&str]| {
        Everburn::line(here, "train --init-from run --data more.txt --steps 2")
            .args(["--run-dir", "tuned"])
            .args(more)
            .run()
    };
    tune(&[]).succeeded();
    let [first, tuned] = ["run", "tuned"].map(|name| {
        let config = Run::new(here.join(name)).text("config.toml");
        let wanted = |line: &&str| {
            let key = line.split(" = ").next().unwrap_or_default();
            let wanted = "context width vocabulary heads tokenizer name";
            wanted.split(' ').any(|word| word == key)
        };
        config
            .lines()
            .filter(wanted)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    assert!(
        first.len() > 5 && first.contains(&"width = 16".to_owned()),
        "{first:?}"
    );
    let is_data = |line: &&String| line.starts_with("name = ");
    let [of_first, of_tuned] =
        [&first, &tuned].map(|all| all.iter().filter(|line| !is_data(line)).collect::<Vec<_>>());
    assert_eq!(of_first, of_tuned);
    assert_ne!(first, tuned, "the data are others");
    // A tokenizer of another size does not fit the weights.
    tune(&["--tokenizer", "byte"]).failed_with(
        2,
        &[
            "reads tokens of the tokenizer char",
            "leave --tokenizer out",
        ],
    );
    // The model's file is as good as the folder.
    let path = here.join("run/model.safetensors");
    let of_file = Everburn::line(here, "train --data more.txt --plan --init-from")
        .args([&path])
        .succeed();
    let of_folder = tune(&["--plan"]).succeeded();
    // Ranks, stages and parameters: activations are measured.
    let sizes = |ended: &Ended| {
        let line = ended.stdout.lines().find(|line| line.starts_with("0 "));
        let words = line.unwrap_or_default().split_whitespace().take(4);
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(sizes(&of_file).matches("KiB").count(), 1, "{of_file}");
    assert_eq!(sizes(&of_file), sizes(&of_folder), "{of_file}");
}

#[test]
fn a_model_of_text_trains_shows_samples_is_evaluated_and_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (run, ended) = train(folder.path(), "run", &["--sample-every", "3"]);
    let ended = ended.succeeded();
    let first = ended.stdout.lines().next().unwrap_or_default();
    let expected = "data: embedded, 80 training and 20 test windows of 16 characters";
    assert!(first.starts_with(expected), "{ended}");
    for step in [3, 4, 6, 8] {
        let sample = format!("sample after step {step}:\n    ");
        ended.prints([&sample]);
    }
    assert_eq!(ended.stdout.matches("sample after").count(), 4, "{ended}");

    let report = run.report();
    assert_eq!(
        (&report["dataset"], &report["model"]),
        (&"embedded".into(), &"gpt-nano".into())
    );
    assert_eq!(
        (&report["test_samples"], &report["test_predictions"]),
        (&20.into(), &320.into())
    );
    let config = run.text("config.toml");
    config.assert_contains(["alphabet = ", "vocabulary = "]);
    for line in run.metrics() {
        let samples = line["samples"].as_u64().unwrap();
        assert_eq!(line["predictions"], samples * 16, "{line}");
    }

    let eval = Everburn::new(folder.path(), ["eval", "run", "--json"]).succeed();
    let result = eval.json();
    assert_eq!(
        result["test_loss"], report["test_loss"],
        "the trained model"
    );
    assert_eq!(result["test_predictions"], 320);

    let flags = ["--prompt", "The ", "--tokens", "40", "--seed", "1"];
    let written = generate(folder.path(), &flags).succeeded().stdout;
    assert!(written.starts_with("The "), "{written}");
    assert_eq!(written.chars().count(), 4 + 40 + 1, "{written:?}");
    assert_eq!(generate(folder.path(), &flags).succeeded().stdout, written);
    let other = ["--prompt", "The ", "--tokens", "40", "--seed", "2"];
    assert_ne!(generate(folder.path(), &other).succeeded().stdout, written);
    let likeliest = |more: [&str; 2]| {
        let flags = [&["--prompt", "The ", "--temperature", "0"], &more[..]].concat();
        generate(folder.path(), &flags).succeeded().stdout
    };
    assert_eq!(likeliest(["--seed", "7"]), likeliest(["--checkpoint", "2"]));

    // Samples do not change the training.
    let (without, ended) = train(folder.path(), "without", &[]);
    ended.succeeded();
    for kind in ["step", "validation", "test"] {
        let (with, without) = (run.losses(kind), without.losses(kind));
        assert_eq!(with, without, "{kind}, to the bit");
    }
    let weights = |run: &Run| std::fs::read(run.path.join("model.safetensors")).unwrap();
    assert_eq!(weights(&run), weights(&without));
}

#[test]
fn fewer_test_samples_of_a_copied_text_are_of_those_that_were_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let lines: String = (0..400).map(|n| format!("line {n} of a text\n")).collect();
    for file in ["own.txt", "copy.txt"] {
        std::fs::write(here.join(file), &lines).unwrap();
    }
    let (_, ended) = train(here, "run", &["--data", "own.txt", "--steps", "2"]);
    ended.succeeded();
    let tested = |data: &str| {
        let eval = ["eval", "run", "--json", "--test-samples", "5", "--data"];
        let eval = Everburn::new(here, eval).args([data]).succeed();
        let result = eval.json();
        let windows = result["data"].as_str().unwrap();
        assert!(windows.contains(" training and 5 test windows"), "{eval}");
        result["test_loss"].to_string()
    };
    assert_eq!(tested("own.txt"), tested("copy.txt"));
}

#[test]
fn bytes_are_tokens_too() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--tokenizer", "byte", "--epochs", "1"];
    let (run, ended) = train(folder.path(), "run", &flags);
    let ended = ended.succeeded();
    // A terminal obeys none of them.
    ended.prints(["sample after step 4:", "\u{fffd}"]);
    let is_obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    assert!(!ended.stdout.contains(is_obeyed), "{ended}");
    let config = run.text("config.toml");
    assert!(config.contains("vocabulary = 256"), "{config}");
    assert!(!config.contains("alphabet"), "{config}");
    // A model that has learned nothing writes bytes that are no UTF-8, and they are shown.
    let flags = ["--prompt", "Größe", "--tokens", "20"];
    let written = generate(folder.path(), &flags).succeeded().stdout;
    assert!(written.starts_with("Größe"), "{written}");
}

#[test]
fn what_a_model_of_text_cannot_do_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &str, messages: &[&str]| {
        Everburn::line(folder.path(), arguments).refused(messages);
    };
    std::fs::write(
        folder.path().join("wide.toml"),
        "model = \"gpt-nano\"\n[gpt]\nheads = 3\n",
    )
    .unwrap();
    for line in [
        "gpt-nano --data mnist | --data mnist is images | takes text",
        "mnist --data embedded | --data embedded is text | takes images",
        "mnist --tokenizer byte | mnist does not read text | --tokenizer",
        "gpt-nano --tokenizer word | word | char",
        "gpt-nano --sample-every 0 | --sample-every must be at least 1",
        "gpt-nano --data tinyshakespeare | tinyshakespeare was not found | --data embedded",
        "--config wide.toml | 3 heads cannot share a width of | [gpt]",
    ] {
        let (arguments, messages) = line.split_once(" | ").unwrap();
        let messages: Vec<_> = messages.split(" | ").collect();
        refused(&format!("train {arguments}"), &messages);
    }
    assert!(!folder.path().join("runs").exists(), "nothing was started");

    let (_, ended) = train(folder.path(), "run", &["--steps", "1"]);
    ended.succeeded();
    refused("generate run --prompt über", &["'ü'", "none of the"]);
    refused(
        "generate run --temperature -1",
        &["the temperature must be"],
    );
    refused("generate nowhere", &["nowhere"]);
    let messages = ["gpt-nano makes no predictions", "`generate`"];
    refused("predict run", &messages);
    Everburn::train(folder.path(), "mlp")
        .args(["--steps", "1", "--run-dir", "images"])
        .succeed();
    refused(
        "generate images",
        &["mlp does not write text", "gpt-nano", "`predict`", "`eval`"],
    );
}

#[test]
fn a_model_over_the_ranks_of_a_mesh_writes_and_goes_on_in_another_mesh() {
    let folder = tempfile::tempdir().unwrap();
    let small = SMALL_GPT.replace("dropout = 0.1", "dropout = 0.0");
    // A schedule that knows no end can continue after an epoch.
    let small = format!("{small}schedule = \"constant\"\n");
    std::fs::write(folder.path().join("plain.toml"), small).unwrap();
    let train = |name: &str, flags: &[&str]| {
        let ended = Everburn::new(folder.path(), ["train", "--config", "plain.toml"])
            .args(["--run-dir", name])
            .args(flags)
            .succeed();
        (Run::new(folder.path().join(name)), ended)
    };
    let (alone, ended) = train("alone", &["--epochs", "2"]);
    let sample = |ended: &Ended| {
        let last = ended.stdout.rsplit_once("sample after step 8:");
        let lines = last.unwrap().1.lines();
        let lines = lines.map(|line| line.trim_start_matches("[rank 0] ").trim());
        lines.skip(1).take(1).collect::<String>()
    };
    let expected = sample(&ended);
    for (name, mesh) in [("layers", "tensor=2"), ("stages", "pipeline=2")] {
        let first = ["--epochs", "1", "--ranks", "2", "--mesh", mesh];
        train(name, &first);
        // On with the other, by a checkpoint that knows neither.
        let other = if mesh == "tensor=2" {
            "pipeline=2"
        } else {
            "tensor=2"
        };
        let then = ["--resume", "--epochs", "2", "--ranks", "2", "--mesh", other];
        let (run, ended) = train(name, &then);
        assert_eq!(sample(&ended), expected, "{ended}");
        run.assert_near(&alone, "step", 1e-4);
    }
}

#[test]
fn a_llama_over_ranks_learns_what_it_learns_on_one() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let config = "model = \"llama\"\n\
        [llama]\ncontext = 16\nwidth = 32\nlayers = 2\nheads = 4\nkv_heads = 2\nhead_width = 8\nfeed_forward = 48\n\
        [text]\ntokenizer = \"byte\"\nwindow = 16\n\
        [data]\nname = \"embedded\"\ntrain_samples = 40\ntest_samples = 8\n\
        [training]\nbatch_size = 8\nvalidation_samples = 8\nlog_every = 1\nepochs = 1\n\
        [training.optimizer]\nlearning_rate = 0.01\n";
    std::fs::write(here.join("llama.toml"), config).unwrap();
    let losses = |name: &str, flags: &[&str]| {
        let train = ["train", "--config", "llama.toml", "--run-dir", name];
        Everburn::new(here, train).args(flags).succeed();
        Run::new(here.join(name)).values("step", "loss")
    };
    let alone = losses("alone", &[]);
    for (name, flags, allowed) in [
        ("ranks", &["--ranks", "2"][..], 1e-5),
        ("sharded", &["--ranks", "3", "--shard", "parameters"], 1e-5),
        ("stages", &["--ranks", "2", "--pipeline", "2"], 1e-5),
        ("tensors", &["--ranks", "2", "--mesh", "tensor=2"], 1e-5),
        ("again", &["--activation-checkpointing", "blocks"], 1e-5),
        ("half", &["--precision", "bf16"], 0.05),
    ] {
        let losses = losses(name, flags);
        assert_eq!(losses.len(), alone.len(), "{name}");
        for (ours, alone) in losses.iter().zip(&alone) {
            assert!((ours - alone).abs() < allowed, "{name}: {losses:?}");
        }
    }
    // A state dict has no word of sizes and tokens.
    Everburn::line(here, "export alone --to pytorch --output llama.pt").succeed();
    let import = |more: &[&str]| {
        let import = ["import", "llama.pt"];
        Everburn::new(here, import).args(more).run()
    };
    let unknown = "the sizes and the tokens of this llama are not known";
    import(&["llama"]).failed_with(2, &[unknown, "--config FILE", "--set"]);
    import(&["--config", "alone/config.toml", "--run-dir", "by-file"]).succeeded();
    let sizes = "--set=llama={context=16,width=32,layers=2,heads=4,kv_heads=2,head_width=8,feed_forward=48}";
    let set = [sizes, "--set=text.window=16", "--tokenizer", "byte"];
    import(&[&["llama", "--run-dir", "by-sizes"], &set[..]].concat()).succeeded();
    let scaling = "--set=llama.rotary_scaling={kind=\"linear\",factor=2.0,factr=3.0}";
    let unknown = "[llama]: rotary_scaling: unknown field `factr`, expected `factor`";
    let scaled = import(&[&["llama", scaling, "--run-dir", "never"], &set[..]].concat());
    scaled.failed_with(2, &[unknown]);
}
