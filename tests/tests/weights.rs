//! Weights go out as PyTorch has them and come in again, by the commands.

#[path = "weights/pretrained.rs"]
mod pretrained;
#[path = "weights/unshown.rs"]
mod unshown;

use std::path::Path;

use everburn_tests::{Everburn, Run};

#[test]
fn an_exported_model_is_imported_and_measured_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let ended = Everburn::train(here, "mnist-bn").args(["--epochs", "2", "--run-dir", "a"]);
    ended.run().succeeded();
    let trained = Run::new(here.join("a"));
    for (to, file) in [
        ("safetensors", "a/state-dict.safetensors"),
        ("pytorch", "a/state-dict.pt"),
    ] {
        let ended = Everburn::new(here, ["export", "a", "--to", to]).run();
        assert!(ended.succeeded().stdout.contains(file));
        let run = format!("imported-{to}");
        let import = ["import", file, "mnist-bn", "--run-dir", &run];
        Everburn::new(here, import).run().succeeded();
        let data = ["--data", "synthetic", "--train-samples", "600"];
        let eval = Everburn::new(here, ["eval", &run, "--json", "--test-samples", "200"]);
        let ended = eval.args(data).run().succeeded();
        let result: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let accuracy = result["test_accuracy"].as_f64().unwrap();
        assert_eq!(accuracy, trained.number("test_accuracy"), "{ended}");
    }
}

#[test]
fn a_training_begins_with_the_weights_that_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let ended = Everburn::train(here, "mlp").args(["--epochs", "3", "--run-dir", "a"]);
    ended.run().succeeded();
    for to in ["safetensors", "pytorch"] {
        let ended = Everburn::new(here, ["export", "a", "--to", to]).run();
        ended.succeeded();
    }
    let first_loss = |flags: &[&str], run: &str| {
        let train = Everburn::train(here, "mlp").args(["--steps", "1", "--log-every", "1"]);
        train.args(["--run-dir", run]).args(flags).run().succeeded();
        let metrics = Run::new(here.join(run)).metrics();
        metrics[0]["loss"].as_f64().unwrap()
    };
    let from_seed = first_loss(&[], "seed");
    let expected = first_loss(&["--init-from", "a"], "run");
    assert!(
        expected < from_seed - 0.25,
        "{expected}, {from_seed} from the seed"
    );
    for (run, file, more) in [
        ("one", "a/state-dict.pt", &["--ranks", "1"][..]),
        ("two", "a/state-dict.safetensors", &["--ranks", "2"]),
        (
            "stages",
            "a/state-dict.pt",
            &["--ranks", "2", "--pipeline", "2"],
        ),
    ] {
        let loss = first_loss(&[&["--init-from", file][..], more].concat(), run);
        let apart = (loss - expected).abs() / expected;
        assert!(apart <= 1e-5, "{run}: {loss}, not {expected}");
    }
    // A new run there would move them aside first.
    for weights in ["a", "a/checkpoints"] {
        let own = Everburn::train(here, "mlp").args(["--init-from", weights, "--run-dir", "a"]);
        own.run()
            .failed_with(2, &["is in the folder of the new run", "another --run-dir"]);
    }
}

#[test]
fn a_head_of_another_size_is_left_out_of_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let ended = Everburn::train(here, "mlp").args(["--steps", "1", "--run-dir", "a"]);
    ended.run().succeeded();
    let ended = Everburn::new(here, ["export", "a", "--to", "safetensors"]).run();
    ended.succeeded();
    let weights = here.join("a/state-dict.safetensors");
    let begin = |run: &str, more: &[&str]| {
        let train = Everburn::train(here, "mlp").args(["--steps", "1", "--log-every", "1"]);
        train
            .args(["--learning-rate", "1e-12", "--run-dir", run])
            .args(more)
            .run()
    };
    let from = ["--init-from", weights.to_str().unwrap()];
    let skip = |pattern| [&from[..], &["--init-skip", pattern]].concat();
    begin("all", &from).succeeded();
    begin("but-the-head", &skip("layers.2.*")).succeeded();
    let tensors = |run: &str| std::fs::read(here.join(run).join("model.safetensors")).unwrap();
    assert_ne!(tensors("all"), tensors("but-the-head"));
    let same =
        |from: usize| tensors("all")[from..from + 64] == tensors("but-the-head")[from..from + 64];
    assert!(same(0), "the same names and shapes");
    begin("layer", &skip("layers.2")).failed_with(2, &["did you mean 'layers.2.*'?"]);
    begin("nothing", &skip("*")).failed_with(2, &["--init-skip leaves out all tensors"]);
    let told = begin("told", &skip("layers.2.*")).succeeded();
    let line = "4 tensors; layers.2.weight, layers.2.bias begin with new weights";
    assert!(told.stdout.contains(line), "{told}");
    begin("none", &skip("head.*")).failed_with(2, &["--init-skip head.*", "matches no parameter"]);
    let alone = begin("alone", &["--init-skip", "layers.2.*"]);
    alone.failed_with(2, &["--init-skip", "--init-from, which is not given"]);
    let of_a_run = begin("run", &["--init-from", "a", "--init-skip", "layers.2.*"]).succeeded();
    assert!(of_a_run.stdout.contains(line), "{of_a_run}");
    assert_eq!(tensors("run"), tensors("but-the-head"));
    let resume = [
        "train",
        "--resume",
        "--run-dir",
        "run",
        "--init-skip",
        "fc.*",
    ];
    Everburn::new(here, resume).run().failed_with(
        2,
        &[
            "--init-skip fc.* has no effect on a resume: the run in",
            "began with --init-skip layers.2.* and continues with its checkpoint",
            "leave --resume away, name another --run-dir, and add --init-from",
        ],
    );
}

#[test]
fn a_model_that_its_run_has_gone_beyond_is_not_taken_for_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let begun = Everburn::train(here, "mlp").args(["--steps", "3", "--epochs", "3"]);
    begun.args(["--run-dir", "a"]).run().succeeded();
    Everburn::new(here, ["eval", "a"]).run().succeeded();
    let resumed = ["train", "--resume", "--run-dir", "a", "--steps", "20"];
    let lost = ["--checkpoint-every", "1steps", "--chaos", "kill=0@step:9"];
    let ended = Everburn::new(here, resumed).args(lost).run();
    assert_ne!(ended.code(), 0, "{ended}");
    let messages = [
        "it is of step 3, and the run has come to step ",
        "--checkpoint best",
    ];
    for command in [
        "eval a",
        "export a --to pytorch",
        "train mlp --init-from a --run-dir b",
    ] {
        let ended = Everburn::new(here, command.split(' ')).run();
        ended.failed_with(2, &messages);
    }
    Everburn::new(here, resumed).run().succeeded();
    Everburn::new(here, ["eval", "a"]).run().succeeded();
}

#[test]
fn a_checkpoint_is_weights_to_begin_with_and_an_import_none_to_resume() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let begun = Everburn::train(here, "mlp").args(["--epochs", "1", "--run-dir", "a"]);
    begun.run().succeeded();
    let first_loss = |from: &str, run: &str| {
        let flags = [
            "--steps",
            "1",
            "--log-every",
            "1",
            "--init-from",
            from,
            "--run-dir",
            run,
        ];
        Everburn::train(here, "mlp").args(flags).run().succeeded();
        Run::new(here.join(run)).losses("step")[0].1
    };
    let of_run = first_loss("a", "b");
    assert_eq!(first_loss("a/checkpoints/epoch-0001", "c"), of_run);
    let file = "a/checkpoints/epoch-0001/model.safetensors";
    assert_eq!(first_loss(file, "d"), of_run);
    std::fs::copy(here.join(file), here.join("copied.safetensors")).unwrap();
    assert_eq!(first_loss("copied.safetensors", "e"), of_run);

    let exported = ["export", "a", "--to", "pytorch", "--output"];
    let missing = Everburn::new(here, exported).args(["none/mlp.pt"]).run();
    missing.failed_with(2, &["--output none/mlp.pt: there is no folder none"]);
    Everburn::new(here, exported)
        .args(["mlp.pt"])
        .run()
        .succeeded();
    let import = ["import", "mlp.pt", "mlp", "--run-dir", "imported"];
    Everburn::new(here, import).run().succeeded();
    for checkpoint in ["best", "1"] {
        let export = ["export", "imported", "--to", "pytorch", "--checkpoint"];
        let messages = ["imported has no checkpoints", "leave --checkpoint out"];
        let export = Everburn::new(here, export).args([checkpoint]);
        export.run().failed_with(2, &messages);
    }
    let resume = [
        "train",
        "--resume",
        "--run-dir",
        "imported",
        "--epochs",
        "1",
    ];
    let messages = [
        "weights of an import",
        "train mlp --init-from imported` trains from these",
    ];
    Everburn::new(here, resume).run().failed_with(2, &messages);
}

#[test]
fn a_damaged_model_of_a_run_leads_to_its_good_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let begun = Everburn::train(here, "mlp").args(["--epochs", "2", "--run-dir", "a"]);
    begun.run().succeeded();
    let run = Run::new(here.join("a"));
    std::fs::write(run.path.join("model.safetensors"), "damaged").unwrap();
    run.damage_checkpoint(2);
    let good = "epoch-0001 is the newest good checkpoint: ";
    for command in ["eval a", "export a --to pytorch"] {
        let command = Everburn::new(here, command.split(' '));
        let messages = [
            "a/model.safetensors",
            "cut off",
            good,
            "--checkpoint epoch-0001 takes it",
        ];
        command.run().failed_with(2, &messages);
    }
    let from = ["--init-from", "a", "--run-dir", "b"];
    let messages = [good, "name it, ", "a/checkpoints/epoch-0001"];
    let train = Everburn::train(here, "mlp").args(from);
    train.run().failed_with(2, &messages);
    let eval = ["eval", "a", "--checkpoint", "epoch-0001"];
    Everburn::new(here, eval).run().succeeded();
    std::fs::remove_dir_all(run.path.join("checkpoints")).unwrap();
    let eval = Everburn::new(here, ["eval", "a"]);
    eval.run()
        .failed_with(2, &["no checkpoint of this run is good"]);
}

#[test]
fn a_run_of_another_model_is_refused_by_its_model_before_its_weights_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let begun = Everburn::train(here, "mlp").args(["--epochs", "1", "--run-dir", "a"]);
    begun.run().succeeded();
    let weights = [
        "a/model.safetensors",
        "a/checkpoints/epoch-0001/model.safetensors",
    ];
    for file in weights {
        std::fs::write(here.join(file), "damaged").unwrap();
    }
    let messages = [
        "a is a run of mlp, and its weights are not those of mnist",
        "leave the model's name out",
        "export a --to safetensors",
    ];
    for from in ["a", "a/model.safetensors", "a/checkpoints/epoch-0001"] {
        let train = Everburn::train(here, "mnist").args(["--init-from", from]);
        train.run().failed_with(2, &messages);
        let import = ["import", from, "mnist"];
        Everburn::new(here, import).run().failed_with(2, &messages);
    }
    assert!(!here.join("runs").exists());
}

#[test]
fn weights_of_another_model_are_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let ended = Everburn::train(here, "mlp").args(["--steps", "1", "--run-dir", "a"]);
    ended.run().succeeded();
    Everburn::new(
        here,
        ["export", "a", "--to", "pytorch", "--output", "mlp.pt"],
    )
    .run()
    .succeeded();
    let messages = [
        "the weights in",
        "mlp.pt are not this model's:",
        "conv1.weight is not in the file, and has shape [10, 1, 5, 5] in the model",
        "no tensor of it has a name of the model: it is of another architecture",
        "0.bias has shape [256] in the file, and is not in the model",
        "and 6 more",
    ];
    for ranks in ["1", "2"] {
        let train = Everburn::train(here, "mnist").args(["--init-from", "mlp.pt"]);
        train
            .args(["--ranks", ranks])
            .run()
            .failed_with(2, &messages);
    }
    let import = ["import", "mlp.pt", "mnist"];
    Everburn::new(here, import).run().failed_with(2, &messages);
    assert!(!here.join("runs").exists());
    let which = Everburn::new(here, ["export", "a"]).run();
    which.failed_with(
        2,
        &[
            "export to which format?",
            "--to pytorch",
            "--to hugging-face",
        ],
    );
    let by_name = Everburn::new(here, ["export", "a", "--output", "named.pth"]).run();
    by_name.succeeded();
    assert!(here.join("named.pth").is_file());
    // The name is a habit of PyTorch's examples.
    std::fs::rename(here.join("named.pth"), here.join("named.pth.tar")).unwrap();
    let import = ["import", "named.pth.tar", "mlp", "--run-dir", "of-tar"];
    Everburn::new(here, import).run().succeeded();
    let export = ["export", "a", "--to", "safetensors", "--output", "a.pt"];
    let ended = Everburn::new(here, export).run();
    ended.failed_with(2, &["a.pt does not end in .safetensors"]);
    let export = ["export", "a", "--to", "pytorch", "--output", "a.weights"];
    let ended = Everburn::new(here, export).run();
    ended.failed_with(2, &["a.weights does not end in .pt, .pth"]);
    for flags in [
        ["--output", "a.onnx"].as_slice(),
        &["--to", "pytorch", "--output", "a.onnx"],
        &["--output", "M.ONNX"],
        &["--to", "onnx"],
    ] {
        let ended = Everburn::new(here, ["export", "a"]).args(flags).run();
        ended.failed_with(
            2,
            &[
                "ONNX is not written",
                "export to a .pt file",
                "torch.onnx.export",
            ],
        );
    }
    // Letters of either case, in what is read and what is written.
    let export = ["export", "a", "--output", "CAPITALS.PT"];
    Everburn::new(here, export).run().succeeded();
    let import = ["import", "CAPITALS.PT", "mlp", "--run-dir", "of-capitals"];
    Everburn::new(here, import).run().succeeded();
    std::fs::write(here.join("M.ONNX"), b"any").unwrap();
    let import = ["import", "M.ONNX", "mlp", "--run-dir", "of-onnx"];
    Everburn::new(here, import)
        .run()
        .failed_with(2, &["ONNX is none of these", "torch.save("]);
    // What is there is refused before the model is read.
    std::fs::create_dir(here.join("folder.pt")).unwrap();
    std::fs::write(here.join("a/model.safetensors"), b"damaged").unwrap();
    for (flags, told) in [
        (
            ["--to", "pytorch"].as_slice(),
            "--output folder.pt is a folder",
        ),
        (
            [].as_slice(),
            "name a file in it, such as folder.pt/state-dict.safetensors",
        ),
        (
            ["--to", "hugging-face"].as_slice(),
            "--output folder.pt: there is something already",
        ),
        (
            ["--adapter"].as_slice(),
            "--output folder.pt: there is something already",
        ),
    ] {
        let export = ["export", "a", "--output", "folder.pt"];
        let ended = Everburn::new(here, export).args(flags).run();
        ended.failed_with(2, &[told]);
    }
}

/// An archive as `torch.save` makes one of `pickle` and `storage`, without checksums.
fn saved(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in [("a/data.pkl", pickle), ("a/data/0", storage)] {
        let offset = archive.len() as u32;
        let size = (content.len() as u32).to_le_bytes();
        let length = (name.len() as u16).to_le_bytes();
        let head = [&[0; 14][..], &size, &size, &length, &[0; 2]].concat();
        archive.extend([&b"PK\x03\x04"[..], &head, name.as_bytes(), content].concat());
        let rest = [&[0; 10][..], &offset.to_le_bytes(), name.as_bytes()].concat();
        directory.extend([&b"PK\x01\x02\0\0"[..], &head, &rest].concat());
    }
    let place = [directory.len() as u32, archive.len() as u32].map(u32::to_le_bytes);
    archive.extend(directory);
    archive.extend(b"PK\x05\x06\0\0\0\0\x02\0\x02\0");
    archive.extend(place.concat());
    archive.extend([0; 2]);
    archive
}

#[test]
fn a_strangers_file_is_refused_and_not_a_machines_memory() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let refused = |name: &str, messages: &[&str]| {
        let import = ["import", name, "mnist"];
        // Far more than it needs, and far less than what these files ask for.
        let limited = ["-c", "ulimit -v 6000000; exec \"$@\"", "sh"];
        let import = Everburn::new(here, import).by(here, Path::new("sh"), limited);
        import.run().failed_with(2, messages);
    };
    // `weight`, all of a storage of this many floats.
    let tensor = |elements: i32| {
        let elements = [&b"J"[..], &elements.to_le_bytes()].concat();
        let parts: [&[u8]; 5] = [
            b"X\x06\0\0\0weightctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n\
              FloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu",
            &elements,
            b"tQK\0",
            &elements,
            b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR",
        ];
        parts.concat()
    };
    // 1 MB: a list that is appended to itself, a third of a million times.
    let list = [&b"X\x04\0\0\0list]q\0"[..], &b"h\0a".repeat(333_000)].concat();
    // 10,000 names of one tensor of 4 MB: 40 GB, if each had its own.
    let names = (0..10_000).flat_map(|name| format!("X\x05\0\0\0n{name:04}h\x01").into_bytes());
    let names: Vec<u8> = [b"q\x01".to_vec(), names.collect()].concat();
    // Of many differences the first are told, and how many there are.
    let (one, many) = ("weight has shape [1] in the file", "and 10001 more");
    for (name, elements, more, told) in [
        ("list.pt", 1, list, one),
        ("names.pt", 1_000_000, names, many),
    ] {
        let pickle = [&b"\x80\x02}("[..], &tensor(elements), &more, b"u."].concat();
        let storage = vec![0; 4 * elements as usize];
        std::fs::write(here.join(name), saved(&pickle, &storage)).unwrap();
        refused(
            name,
            &["are not this model's:", "is not in the model", told],
        );
    }
    let pickle = b"\x80\x02cposix\nsystem\nX\x04\0\0\0trueR.";
    std::fs::write(here.join("calls.pt"), saved(pickle, &[])).unwrap();
    refused(
        "calls.pt",
        &["calls.pt", "posix.system", "nothing in a file is called"],
    );
}

#[test]
fn what_names_no_model_is_refused_by_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let refused = |line: &[&str], messages: &[&str]| {
        Everburn::new(here, line.to_vec())
            .run()
            .failed_with(2, messages);
    };
    let hub = "meta-llama/Llama-3.2-1B";
    let none = format!("{hub}: there is no such file or folder");
    let from = ["train", "--init-from", hub, "--data", "my.txt"];
    refused(&from, &[&none, "hf download NAME --local-dir FOLDER"]);
    refused(
        &["import", "hf/llmaa"],
        &["hf/llmaa: there is no such file or folder"],
    );
    let missing = "none.pth failed: there is no such file or folder";
    refused(&["import", "none.pth", "resnet18"], &[missing]);

    // An empty `state`, and empty `param_groups`.
    let optimizer = b"\x80\x02}(X\x05\0\0\0state}X\x0c\0\0\0param_groups]u.";
    std::fs::write(here.join("opt.pt"), saved(optimizer, &[])).unwrap();
    let state = "it is the state of an optimizer, and has no weights of a model";
    refused(&["import", "opt.pt", "resnet18"], &[state]);

    std::fs::create_dir(here.join("w")).unwrap();
    refused(
        &["import", "w"],
        &["w has no config.json", "import FILE resnet18"],
    );
    std::fs::write(here.join("w/tokenizer.json"), "{}").unwrap();
    refused(&["import", "w"], &["import FILE llama --tokenizer"]);
    std::fs::remove_file(here.join("w/tokenizer.json")).unwrap();
    std::fs::write(here.join("w/r10.pt"), "weights").unwrap();
    let of_folder = [
        "it is a folder, and no state dict",
        "name a file in it, such as w/r10.pt",
    ];
    refused(&["import", "w", "resnet18"], &of_folder);
    let of_file = ["w/r10.pt", "it is a file", "import FILE MODEL"];
    refused(&["eval", "w/r10.pt"], &of_file);
    let nameless = "w/r10.pt is a file of weights, and has no name of a model";
    refused(
        &["train", "--init-from", "w/r10.pt"],
        &[nameless, "name the model"],
    );
    std::fs::write(here.join("w/config.json"), "{}").unwrap();
    refused(&["import", "w/r10.pt"], &[nameless, "give its folder, w,"]);
    std::fs::rename(here.join("w/r10.pt"), here.join("w/r10.safetensors")).unwrap();
    let no_header = "it is cut off: it has 7 bytes; was it copied whole?";
    refused(&["import", "w/r10.safetensors", "mlp"], &[no_header]);
}
