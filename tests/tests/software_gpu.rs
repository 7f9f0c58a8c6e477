//! Training by generated kernels on a Vulkan device that is made of the CPU (lavapipe), as on a GPU of any maker.
//!
//! `cargo xtask check` builds the binary with the feature `webgpu` for these, and runs them where such a driver is; those
//! whose names begin with `long` with `--long` only.

use std::path::{Path, PathBuf};
use std::process::Command;

use everburn_tests::{Ended, Everburn, Run};

/// Compiled kernels are kept beside the binary for all tests: each starts with those of the others.
fn kernels() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test.parent().and_then(Path::parent);
    profile
        .expect("cargo puts tests into <profile>/deps")
        .join("kernels-of-tests")
}

fn everburn<'a>(folder: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Everburn {
    Everburn::new(folder, arguments)
        .env("EVERBURN_KERNEL_CACHE", kernels())
        .env("MESA_SHADER_CACHE_DIR", kernels())
        // On two cores, the best of many kernels is not worth minutes of tuning.
        .env("CUBECL_AUTOTUNE_LEVEL", "minimal")
        // The driver looks for it, and says so where it is not set.
        .env("XDG_RUNTIME_DIR", folder)
}

fn train(folder: &Path, name: &str, model: &str, flags: &[&str]) -> Everburn {
    everburn(folder, ["train", model])
        .args(["--data", "synthetic", "--train-samples", "216"])
        // Few shapes of batches: for each, kernels are compiled.
        .args(["--validation-samples", "16", "--test-samples", "16"])
        .args(["--steps", "12", "--batch-size", "16", "--log-every", "1"])
        // Adam does not see gradients that are all too large by the same factor.
        .args(["--optimizer", "sgd", "--learning-rate", "0.1"])
        .args(["--lr-schedule", "constant", "--warmup-steps", "0"])
        .args(["--run-dir", name])
        .args(flags)
}

fn trained(folder: &Path, name: &str, model: &str, flags: &[&str]) -> (Run, Ended) {
    let ended = train(folder, name, model, flags).succeed();
    (Run::new(folder.join(name)), ended)
}

/// Losses differ by rounding only: gradients that are too large by a hundredth change them by 9e-5.
fn assert_near(found: &Run, expected: &Run, what: &str) {
    assert_eq!(found.losses("step").len(), 12, "{what}");
    found.assert_near(expected, "step", 2e-5);
}

#[test]
#[ignore = "needs the feature webgpu and a software Vulkan driver"]
fn the_device_is_listed_checked_and_used_only_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let listed = everburn(folder, ["devices"]).succeed();
    let line = listed
        .stdout
        .lines()
        .find(|line| line.starts_with("webgpu:cpu"));
    assert!(
        line.is_some_and(|line| line.contains("wgpu<wgsl>")),
        "{listed}"
    );
    let examined = everburn(folder, ["doctor"]).run();
    examined.prints(["webgpu:cpu has the CPU's results"]);
    // It is no GPU that `--gpus` would take.
    everburn(
        folder,
        ["train", "mlp", "--gpus", "1", "--data", "synthetic"],
    )
    .refused(&["cannot be used"]);
    train(folder, "none", "mlp", &["--devices", "webgpu:7"])
        .refused(&["webgpu:7 cannot be used: this machine has no such device"]);
    train(folder, "none", "mlp", &["--devices", "cuda:0"]).refused(&["cuda:0 cannot be used"]);
    let flags = ["--devices", "webgpu:cpu,webgpu:cpu", "--backend", "nccl"];
    train(folder, "none", "mlp", &flags)
        .refused(&["it is between NVIDIA's or AMD's GPUs, and --devices names webgpu:cpu"]);
    let ended = train(
        folder,
        "none",
        "mnist",
        &["--devices", "webgpu:cpu", "--precision", "bf16"],
    )
    .run();
    assert_ne!(ended.code(), 0, "{ended}");
    ended.warns(["webgpu:cpu does not compute in this type"]);
}

#[test]
#[ignore = "needs the feature webgpu and a software Vulkan driver"]
fn one_rank_two_ranks_and_ranks_of_both_kinds_learn_what_the_processor_does() {
    learn_what_the_processor_does("mlp");
}

#[test]
#[ignore = "needs the feature webgpu and a software Vulkan driver"]
fn long_convolutions_learn_what_the_processor_does() {
    learn_what_the_processor_does("mnist");
}

fn learn_what_the_processor_does(model: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (flex, _) = trained(folder, "flex", model, &["--ranks", "2"]);
    for (name, devices) in [
        ("one", "webgpu:cpu"),
        ("two", "webgpu:cpu,webgpu:cpu"),
        ("mixed", "flex,webgpu:cpu"),
    ] {
        let (run, ended) = trained(folder, name, model, &["--devices", devices]);
        assert_near(&run, &flex, name);
        if name == "one" {
            continue;
        }
        let by = run.report()["gradients_by"].clone();
        let by = by.as_str().unwrap_or_default();
        assert!(by.starts_with("host ("), "{by}: {ended}");
    }
}

#[test]
#[ignore = "needs the feature webgpu and a software Vulkan driver"]
fn gradients_that_the_device_rounds_are_those_of_the_hook_in_fewer_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let devices = ["--devices", "webgpu:cpu,webgpu:cpu"];
    let (plain, _) = trained(folder, "plain", "mlp", &devices);
    for hook in ["fp16", "bf16"] {
        let hooked = ["--communication-hook", hook];
        let on_flex = [&["--ranks", "2"], &hooked[..]].concat();
        let (flex, _) = trained(folder, &format!("flex-{hook}"), "mlp", &on_flex);
        let (run, ended) = trained(folder, hook, "mlp", &[&devices, &hooked[..]].concat());
        // The last bit of a gradient may decide how it is rounded.
        run.assert_near(&flex, "step", 1e-3);
        let share = run.number("gradient_bytes") / plain.number("gradient_bytes");
        assert!(share < 0.6, "{hook}: {share} of the bytes: {ended}");
    }
}

#[test]
#[ignore = "needs the feature webgpu and a software Vulkan driver"]
fn long_four_ranks_that_shard_their_state_learn_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (flex, _) = trained(folder, "flex", "mlp", &["--ranks", "4"]);
    let devices = ["--ranks", "4", "--devices", "webgpu:cpu"];
    let (run, _) = trained(folder, "plain", "mlp", &devices);
    assert_near(&run, &flex, "no shards");
    for stage in ["optimizer", "gradients", "parameters"] {
        let flags = [&devices[..], &["--shard", stage]].concat();
        let (run, _) = trained(folder, stage, "mlp", &flags);
        assert_near(&run, &flex, stage);
    }
}

#[test]
#[ignore = "needs the feature webgpu and a software Vulkan driver"]
fn a_pipeline_over_both_kinds_of_device_learns_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (flex, _) = trained(
        folder,
        "flex",
        "mnist",
        &["--ranks", "2", "--pipeline", "2"],
    );
    let flags = ["--devices", "flex,webgpu:cpu", "--pipeline", "2"];
    let (run, _) = trained(folder, "mixed", "mnist", &flags);
    assert_near(&run, &flex, "a pipeline");
}

#[test]
#[ignore = "needs the feature webgpu and a software Vulkan driver"]
fn a_killed_rank_comes_back_and_a_run_goes_on_on_the_other_kind_of_device() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (flex, _) = trained(folder, "flex", "mlp", &["--ranks", "2"]);
    let flags = "--devices webgpu:cpu,webgpu:cpu --elastic 1:2 --chaos kill=1@step:6 --checkpoint-every 4steps";
    let flags: Vec<_> = flags.split(' ').collect();
    let (run, ended) = trained(folder, "elastic", "mlp", &flags);
    assert_near(&run, &flex, "a rank is killed");
    ended.warns(["SIGKILL"]);

    for (name, first, then) in [
        ("to-flex", "webgpu:cpu", "flex"),
        ("from-flex", "flex", "webgpu:cpu"),
    ] {
        let flags = ["--steps", "6", "--ranks", "2", "--devices", first];
        trained(folder, name, "mlp", &flags);
        let arguments = ["train", "--resume", "--run-dir", name, "--steps", "12"];
        everburn(folder, arguments)
            .args(["--ranks", "2", "--devices", then])
            .succeed();
        assert_near(&Run::new(folder.join(name)), &flex, name);
    }
    // turso may panic where a database may be shared: each process has its own, which CubeCL did not open first.
    assert!(kernels().join("kernels.db").exists());
    assert!(!kernels().join("kernels.db-tshm").exists());
}

/// A folder with the Vulkan layer of `lose_device.c`.
fn layer_that_loses_a_device(folder: &Path) -> PathBuf {
    let layer = folder.join("layer");
    std::fs::create_dir(&layer).unwrap();
    std::fs::write(
        layer.join("lose_device.c"),
        include_str!("software_gpu/lose_device.c"),
    )
    .unwrap();
    let compiled = Command::new("cc")
        .args("-shared -fPIC -fvisibility=hidden -Wall -Werror".split(' '))
        .args(["-o", "liblose_device.so", "lose_device.c"])
        .current_dir(&layer)
        .status();
    assert!(compiled.expect("rustc needs cc, too").success());
    let manifest = serde_json::json!({
        "file_format_version": "1.2.0",
        "layer": {
            "name": LAYER,
            "type": "GLOBAL",
            "library_path": "./liblose_device.so",
            "api_version": "1.3.0",
            "implementation_version": "1",
            "description": "loses the device of one process",
        },
    });
    std::fs::write(layer.join("lose_device.json"), manifest.to_string()).unwrap();
    layer
}

const LAYER: &str = "VK_LAYER_EVERBURN_lose_device";

/// When a process loses its device: after the fourth step, and before the last.
const CHECKPOINT: &str = "checkpoints/epoch-0000-batch-000004";

#[test]
#[ignore = "needs the feature webgpu and a software Vulkan driver"]
fn long_a_rank_whose_device_is_lost_comes_back_or_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (flex, _) = trained(folder, "flex", "mlp", &["--ranks", "2"]);
    let layer = layer_that_loses_a_device(folder);
    let loses = |name: &str, flags: &[&str]| {
        let devices = ["--devices", "webgpu:cpu,webgpu:cpu"];
        let flags = [&devices[..], &["--checkpoint-every", "4steps"], flags].concat();
        let ended = train(folder, name, "mlp", &flags)
            .env("VK_ADD_LAYER_PATH", &layer)
            .env("VK_INSTANCE_LAYERS", LAYER)
            .env("LOSE_DEVICE_WHEN", folder.join(name).join(CHECKPOINT))
            .env("LOSE_DEVICE_ONCE", folder.join(format!("{name}-is-lost")))
            .run();
        ended.warns(["the device of this rank has failed"]);
        (Run::new(folder.join(name)), ended)
    };
    let (run, ended) = loses("elastic", &["--elastic", "1:2"]);
    assert_near(&run, &flex, "a device is lost");
    ended.succeeded();

    let (run, ended) = loses("fixed", &[]);
    assert_ne!(ended.code(), 0, "{ended}");
    assert!(run.losses("step").len() < 12, "{ended}");
}

#[test]
#[ignore = "needs the feature webgpu and a software Vulkan driver"]
fn a_decoder_learns_the_same_and_writes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = |name: &str, devices: &str| {
        everburn(
            folder,
            ["train", "gpt-nano", "--data", "embedded", "--steps", "12"],
        )
        .words("--batch-size 4 --log-every 1 --lr-schedule constant")
        // Adam takes a gradient that is nearly zero for one that is not, and has the sign from its rounding.
        .args(["--optimizer", "sgd", "--learning-rate", "0.1"])
        .words("--train-samples 64 --validation-samples 4 --test-samples 4")
        .words("--set gpt.layers=1 --set gpt.context=32 --set gpt.width=32")
        .args(["--set", "gpt.heads=2", "--set", "gpt.dropout=0"])
        .args(["--devices", devices, "--run-dir", name])
        .succeed();
        Run::new(folder.join(name))
    };
    let (flex, gpu) = (train("flex", "flex"), train("gpu", "webgpu:cpu"));
    assert_near(&gpu, &flex, "gpt-nano");
    let arguments = ["generate", "gpu", "--device", "webgpu:cpu", "--tokens", "8"];
    let written = everburn(folder, arguments).succeed();
    assert!(!written.stdout.trim().is_empty(), "{written}");
}
