//! What is refused: weights of other models, damaged files, and outputs that cannot be written.

use everburn_tests::Everburn;

use super::run_of_mlp;

#[test]
fn a_run_of_another_model_is_refused_by_its_model_before_its_weights_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run_of_mlp(here, "--epochs 1");
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
        train.refused(&messages);
        let import = ["import", from, "mnist"];
        Everburn::new(here, import).refused(&messages);
    }
    assert!(!here.join("runs").exists());
}

#[test]
fn weights_of_another_model_are_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run_of_mlp(here, "--steps 1");
    Everburn::line(here, "export a --to pytorch --output mlp.pt").succeed();
    let messages = [
        "the weights in",
        "mlp.pt are not this model's:",
        "conv1.weight is not in the file, and has shape [10, 1, 5, 5] in the model",
        "no tensor of it has a name of the model: it is of another architecture",
        "0.bias has shape [256] in the file, and is not in the model",
        "fc2.bias is not in the file",
    ];
    for ranks in ["1", "2"] {
        let train = Everburn::train(here, "mnist").args(["--init-from", "mlp.pt"]);
        train.args(["--ranks", ranks]).refused(&messages);
    }
    Everburn::line(here, "import mlp.pt mnist").refused(&messages);
    assert!(!here.join("runs").exists());
}

#[test]
fn files_of_weights_are_known_by_their_endings_in_letters_of_either_case() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run_of_mlp(here, "--steps 1");
    Everburn::new(here, ["export", "a"]).refused(&[
        "export to which format?",
        "--to pytorch",
        "--to hugging-face",
    ]);
    Everburn::new(here, ["export", "a", "--output", "named.pth"]).succeed();
    assert!(here.join("named.pth").is_file());
    // The name is a habit of PyTorch's examples.
    std::fs::rename(here.join("named.pth"), here.join("named.pth.tar")).unwrap();
    Everburn::line(here, "import named.pth.tar mlp --run-dir of-tar").succeed();
    Everburn::line(here, "export a --to safetensors --output a.pt")
        .refused(&["a.pt does not end in .safetensors"]);
    Everburn::line(here, "export a --to pytorch --output a.weights")
        .refused(&["a.weights does not end in .pt, .pth"]);
    let messages = [
        "ONNX is not written",
        "export to a .pt file",
        "torch.onnx.export",
    ];
    for flags in [
        "--output a.onnx",
        "--to pytorch --output a.onnx",
        "--output M.ONNX",
        "--to onnx",
    ] {
        Everburn::line(here, "export a")
            .words(flags)
            .refused(&messages);
    }
    // Letters of either case, in what is read and what is written.
    Everburn::line(here, "export a --output CAPITALS.PT").succeed();
    Everburn::line(here, "import CAPITALS.PT mlp --run-dir of-capitals").succeed();
    std::fs::write(here.join("M.ONNX"), b"any").unwrap();
    Everburn::line(here, "import M.ONNX mlp --run-dir of-onnx")
        .refused(&["ONNX is none of these", "torch.save("]);
}

#[test]
fn what_is_in_the_place_of_an_export_is_replaced_by_force_alone_and_a_folder_never() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run_of_mlp(here, "--steps 1");
    let own = here.join("weights.pt");
    std::fs::write(&own, b"of somebody else").unwrap();
    let export = ["export", "a", "--output", "weights.pt"];
    let messages = [
        "--output weights.pt is there already",
        "--force replaces it; or name another file",
    ];
    Everburn::new(here, export).refused(&messages);
    assert_eq!(std::fs::read(&own).unwrap(), b"of somebody else");
    Everburn::new(here, export).args(["--force"]).succeed();
    assert_ne!(std::fs::read(&own).unwrap(), b"of somebody else");
    // In the run's folder it is the run's own.
    for _ in 0..2 {
        Everburn::line(here, "export a --to pytorch").succeed();
    }

    // What else is there is refused before the model is read.
    std::fs::create_dir(here.join("folder.pt")).unwrap();
    std::fs::write(here.join("a/model.safetensors"), b"damaged").unwrap();
    for (flags, told) in [
        ("--to pytorch", "--output folder.pt is a folder"),
        (
            "",
            "name a file in it, such as folder.pt/state-dict.safetensors",
        ),
        (
            "--to hugging-face",
            "--output folder.pt: there is something already",
        ),
        (
            "--adapter",
            "--output folder.pt: there is something already",
        ),
    ] {
        let export = Everburn::line(here, "export a --output folder.pt");
        export.words(flags).refused(&[told]);
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

/// What takes memory in such a file is tested where it is read.
#[test]
fn a_strangers_file_that_calls_something_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let pickle = b"\x80\x02cposix\nsystem\nX\x04\0\0\0trueR.";
    std::fs::write(here.join("calls.pt"), saved(pickle, &[])).unwrap();
    let messages = ["calls.pt", "posix.system", "nothing in a file is called"];
    Everburn::line(here, "import calls.pt mnist").refused(&messages);
}

#[test]
fn what_names_no_model_is_refused_by_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let refused = |line: &str, messages: &[&str]| {
        Everburn::line(here, line).refused(messages);
    };
    let hub = "meta-llama/Llama-3.2-1B";
    let none = format!("{hub}: there is no such file or folder");
    let from = format!("train --init-from {hub} --data my.txt");
    refused(&from, &[&none, "hf download NAME --local-dir FOLDER"]);
    refused(
        "import hf/llmaa",
        &["hf/llmaa: there is no such file or folder"],
    );
    let missing = "none.pth failed: there is no such file or folder";
    refused("import none.pth resnet18", &[missing]);

    // An empty `state`, and empty `param_groups`.
    let optimizer = b"\x80\x02}(X\x05\0\0\0state}X\x0c\0\0\0param_groups]u.";
    std::fs::write(here.join("opt.pt"), saved(optimizer, &[])).unwrap();
    let state = "it is the state of an optimizer, and has no weights of a model";
    refused("import opt.pt resnet18", &[state]);

    std::fs::create_dir(here.join("w")).unwrap();
    refused(
        "import w",
        &["w has no config.json", "import FILE resnet18"],
    );
    std::fs::write(here.join("w/tokenizer.json"), "{}").unwrap();
    refused("import w", &["import FILE llama --tokenizer"]);
    std::fs::remove_file(here.join("w/tokenizer.json")).unwrap();
    std::fs::write(here.join("w/r10.pt"), "weights").unwrap();
    let of_folder = [
        "it is a folder, and no state dict",
        "name a file in it, such as w/r10.pt",
    ];
    refused("import w resnet18", &of_folder);
    let of_file = ["w/r10.pt", "it is a file", "import FILE MODEL"];
    refused("eval w/r10.pt", &of_file);
    let nameless = "w/r10.pt is a file of weights, and has no name of a model";
    refused("train --init-from w/r10.pt", &[nameless, "name the model"]);
    std::fs::write(here.join("w/config.json"), "{}").unwrap();
    refused("import w/r10.pt", &[nameless, "give its folder, w,"]);
    std::fs::rename(here.join("w/r10.pt"), here.join("w/r10.safetensors")).unwrap();
    let no_header = "it is cut off: it has 7 bytes; was it copied whole?";
    refused("import w/r10.safetensors mlp", &[no_header]);
}
