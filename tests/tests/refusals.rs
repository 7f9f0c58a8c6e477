//! What cannot work is refused before anything is started, and the message says what to do.

use everburn_tests::{Ended, Everburn, ORPHAN_DEADLINE, Run};
use rustix::process::Signal;

/// Runs a small training with more flags in a folder of its own; nothing may be left in it.
fn refused(model: &str, flags: &[&str], code: i32, messages: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let ended = Everburn::train(folder.path(), model).args(flags).run();
    ended.failed_with(code, messages);
    nothing_was_started(&ended);
    assert!(!folder.path().join("runs").exists(), "{ended}");
}

fn nothing_was_started(ended: &Ended) {
    assert!(!ended.stdout.contains("epoch"), "{ended}");
    assert!(!ended.stderr.contains("[rank "), "{ended}");
    assert!(!ended.stderr.contains("panicked"), "{ended}");
}

#[test]
fn an_unknown_model_suggests_the_nearest() {
    let messages = ["no model called `mnits`", "did you mean `mnist`?", "--list"];
    refused("mnits", &[], 2, &messages);
}

#[test]
fn no_ranks_at_all() {
    refused("mlp", &["--ranks", "0"], 2, &["--ranks 0", "--ranks 1"]);
}

#[test]
fn nccl_without_gpus_is_refused_before_a_rank_is_started() {
    let messages = [
        "--backend nccl cannot be used",
        "--devices names flex",
        "--gpus N",
    ];
    refused("mlp", &["--ranks", "2", "--backend", "nccl"], 2, &messages);
}

#[test]
fn gpus_that_are_not_there_offer_ranks_on_the_processor() {
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        everburn_tests::skip("--gpus 2 without a GPU", "there is one");
        return;
    }
    let messages = ["cuda:0 cannot be used", "no driver: ", "--ranks 2"];
    refused("mlp", &["--gpus", "2"], 2, &messages);
}

#[test]
fn a_batch_smaller_than_the_ranks() {
    let flags = ["--batch-size", "3", "--ranks", "4"];
    let messages = ["3 samples cannot be shared by 4 ranks", "--batch-size 4"];
    refused("mlp", &flags, 2, &messages);
}

#[test]
fn more_validation_samples_than_there_are() {
    for ranks in ["1", "2"] {
        let flags = ["--validation-samples", "600", "--ranks", ranks];
        let messages = ["--validation-samples 600 leaves none of the 600"];
        refused("mlp", &flags, 2, &messages);
    }
}

#[test]
fn an_unwritable_run_directory() {
    // A path below a regular file: not even root may write there.
    for ranks in ["1", "2"] {
        let flags = ["--run-dir", "/dev/null/run", "--ranks", ranks];
        refused("mlp", &flags, 2, &["/dev/null/run", "Not a directory"]);
    }
    let messages = ["choose another --run-dir"];
    refused("mlp", &["--run-dir", "/dev/null/run"], 2, &messages);
    refused("mlp", &["--run-dir", "/proc/run"], 2, &["/proc/run"]);
}

#[test]
fn an_unknown_optimizer_lists_the_known_ones() {
    let messages = ["adamm", "adam", "adam-w", "sgd"];
    refused("mlp", &["--optimizer", "adamm"], 2, &messages);
}

#[test]
fn a_learning_rate_that_is_not_positive() {
    let messages = ["the learning rate must be a positive number"];
    for flags in [
        &["--learning-rate", "-1"][..],
        &["--learning-rate=-0.1"],
        &["--learning-rate", "0"],
        &["--learning-rate", "nan"],
    ] {
        refused("mlp", flags, 2, &messages);
    }
}

#[test]
fn numbers_of_nothing() {
    for (flag, message) in [
        ("--epochs", "--epochs must be at least 1"),
        ("--steps", "--steps must be at least 1"),
        ("--batch-size", "--batch-size"),
        ("--nodes", "--nodes must be at least 1"),
        ("--timeout", "--timeout must be at least 1"),
        (
            "--threads-per-rank",
            "--threads-per-rank must be at least 1",
        ),
        ("--log-every", "--log-every must be at least 1"),
        ("--train-samples", "0 training samples were asked for"),
        ("--test-samples", "0 test samples were asked for"),
    ] {
        refused("mlp", &[flag, "0"], 2, &[message]);
    }
}

#[test]
fn a_rendezvous_that_is_none() {
    let flags = ["--nodes", "2", "--node-rank", "0", "--rendezvous", "here"];
    refused(
        "mlp",
        &flags,
        2,
        &["`here` is no rendezvous address", "HOST:PORT"],
    );
    let flags = ["--nodes", "2", "--node-rank", "0"];
    refused("mlp", &flags, 2, &["--rendezvous HOST:PORT"]);
    let flags = ["--nodes", "2", "--rendezvous", "h:1"];
    let messages = [
        "--nodes 2 without --node-rank",
        "--node-rank 1 for the last",
    ];
    refused("mlp", &flags, 2, &messages);
    let flags = ["--nodes", "2", "--node-rank", "2", "--rendezvous", "h:1"];
    let messages = ["machine 2 of 2 does not exist", "0 to 1"];
    refused("mlp", &flags, 2, &messages);
}

/// Trains by a configuration file with this text.
fn by_configuration(text: &str) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("my.toml"), text).unwrap();
    Everburn::new(folder.path(), ["train", "--config", "my.toml"]).run()
}

#[test]
fn a_configuration_that_is_no_toml_is_shown_where() {
    let ended = by_configuration("model = \"mlp\"\n[training\nepochs = 3\n");
    ended.failed_with(2, &["my.toml cannot be used as a configuration", "line 2"]);
    nothing_was_started(&ended);
}

#[test]
fn a_key_that_nobody_knows_is_named_with_those_that_are_known() {
    let ended = by_configuration("model = \"mlp\"\n[training]\nepoch = 3\n");
    ended.failed_with(
        2,
        &[
            "my.toml",
            "unknown key `training.epoch`; did you mean `training.epochs`?",
        ],
    );
}

#[test]
fn a_key_in_the_wrong_place_gets_the_right_one_and_its_flag_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (set, told) in [
        (
            "epochs=3",
            "--set epochs=3: unknown key `epochs`; did you mean --epochs?",
        ),
        (
            "training.lr=3",
            "unknown key `training.lr`; did you mean --learning-rate?",
        ),
        (
            "optimizer.lr=3",
            "unknown key `training.optimizer.lr`; did you mean --learning-rate?",
        ),
        (
            "zzzz.x=3",
            "unknown key `zzzz`; mlp has [data] besides [ranks], [training] and [parallel]",
        ),
        (
            "data.name=nan",
            "quotation marks make it a text: --set 'data.name=\"nan\"'",
        ),
    ] {
        let ended = Everburn::train(folder.path(), "mlp")
            .args(["--set", set])
            .refused(&[told]);
        nothing_was_started(&ended);
    }
}

#[test]
fn a_value_of_the_wrong_type_is_named() {
    let ended = by_configuration("model = \"mlp\"\n[training]\nepochs = \"three\"\n");
    ended.failed_with(2, &["my.toml", "three", "epochs"]);
}

#[test]
fn a_configuration_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    Everburn::new(folder.path(), ["train", "--config", "none.toml"])
        .refused(&["none.toml", "No such file"]);
}

#[test]
fn no_model_at_all() {
    let folder = tempfile::tempdir().unwrap();
    Everburn::new(folder.path(), ["train"]).refused(&["no model was named", "--list"]);
}

#[test]
fn an_evaluation_of_a_folder_without_a_run() {
    let folder = tempfile::tempdir().unwrap();
    for (name, messages) in [
        (
            ".",
            &[
                "there is no config.toml in it",
                "the --run-dir of a training",
            ][..],
        ),
        ("nowhere", &["there is no such folder"]),
    ] {
        Everburn::new(folder.path(), ["eval", name]).refused(messages);
    }
}

#[test]
fn an_evaluation_of_a_run_that_left_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--steps", "1", "--run-dir", "run"];
    Everburn::train(folder.path(), "mlp").args(flags).succeed();
    let model = folder.path().join("run/model.safetensors");
    std::fs::remove_file(&model).unwrap();
    Everburn::new(folder.path(), ["eval", "run"])
        .refused(&["run/model.safetensors", "there is none"]);

    std::fs::write(&model, "no tensors").unwrap();
    let ended = Everburn::new(folder.path(), ["eval", "run"]).refused(&["run/model.safetensors"]);
    assert!(!ended.stderr.contains("panicked"), "{ended}");
}

#[test]
fn early_stopping_that_can_never_be_decided() {
    let messages = ["--early-stopping must be at least 1"];
    refused("mlp", &["--early-stopping", "0"], 2, &messages);
    let flags = ["--early-stopping", "2", "--validation-samples", "0"];
    let messages = ["--early-stopping", "give --validation-samples"];
    refused("mlp", &flags, 2, &messages);
    let flags = ["--best-by", "accuracy", "--validation-samples", "0"];
    refused(
        "mlp",
        &flags,
        2,
        &["--best-by", "give --validation-samples"],
    );
    refused(
        "mlp",
        &["--best-by", "mae"],
        2,
        &["--best-by", "min:NAME or max:NAME"],
    );
}

#[test]
fn a_learning_rate_that_the_schedule_does_not_take() {
    let flags = ["--lr-schedule", "cosine", "--learning-rate", "2"];
    refused("mlp", &flags, 2, &["--learning-rate", "at most 1"]);
}

#[test]
fn threads_of_one_process_on_several_machines() {
    let flags = ["--strategy", "data-parallel", "--nodes", "2"];
    let more = ["--node-rank", "0", "--rendezvous", "127.0.0.1:1"];
    let messages = [
        "--strategy data-parallel is for one machine",
        "--strategy ddp",
    ];
    refused("mlp", &[&flags[..], &more].concat(), 2, &messages);
}

#[test]
fn a_run_directory_that_holds_something_else_is_left_as_it_was() {
    for ranks in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("thesis.txt"), "three years").unwrap();
        let ended = Everburn::train(folder.path(), "mlp")
            .args(["--run-dir", "mine", "--ranks", ranks])
            .run();
        let messages = ["mine", "it is not empty and holds no run", "--run-dir"];
        ended.failed_with(2, &messages);
        nothing_was_started(&ended);

        let text = std::fs::read_to_string(path.join("thesis.txt")).unwrap();
        assert_eq!(text, "three years");
        let names: Vec<_> = path.read_dir().unwrap().map(Result::unwrap).collect();
        assert_eq!(names.len(), 1, "something was added: {names:?}");
        assert!(!folder.path().join("mine~1").exists(), "moved aside");
    }
}

#[test]
fn a_run_directory_that_a_running_job_uses() {
    for ranks in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--run-dir", "run", "--ranks", ranks];
        let first = Everburn::train_for_long(folder.path(), "mlp").args(flags);
        let mut first = first.start();
        let run = Run::new(folder.path().join("run"));
        first.wait_for("an epoch", || run.epochs() >= 1);

        let again = ["train", "--resume", "--run-dir", "run"];
        for second in [
            Everburn::train(folder.path(), "mlp").args(flags),
            Everburn::new(folder.path(), again),
        ] {
            let ended = second.run();
            let owner = format!("process {} has it", first.process_id());
            let messages = ["run", "another run is using it", "--run-dir", &*owner];
            ended.failed_with(2, &messages);
            nothing_was_started(&ended);
        }
        assert!(!folder.path().join("run~1").exists(), "moved aside");

        let epochs = run.epochs();
        first.wait_for("two more epochs", || run.epochs() >= epochs + 2);
        first.signal(Signal::INT);
        let ended = first.wait_until_gone(ORPHAN_DEADLINE);
        assert_eq!(ended.code(), 130, "{ended}");
        assert!(run.number("epochs") >= 3.0);
    }
}

#[test]
fn meshes_that_do_not_fit_the_ranks_the_model_or_the_batch() {
    let mesh = ["--ranks", "3", "--mesh", "data=2,pipeline=2"];
    refused("mnist", &mesh, 2, &["4 places", "3 ranks", "--ranks 4"]);
    let axis = ["--ranks", "2", "--mesh", "depth=2"];
    refused("mnist", &axis, 2, &["no axis `depth`"]);
    let stages = ["--ranks", "5", "--pipeline", "5", "--batch-size", "60"];
    let messages = ["a model of 4 blocks cannot be cut into 5 stages"];
    refused("mnist", &stages, 2, &messages);
    let name = ["--ranks", "2", "--pipeline", "2", "--stages", "fc9"];
    refused(
        "mnist",
        &name,
        2,
        &["`fc9` of --stages", "conv1, conv2, fc1, fc2"],
    );
    let batch = ["--ranks", "2", "--pipeline", "2", "--micro-batches", "7"];
    let messages = [
        "7 micro-batches do not divide",
        "64 samples",
        "--micro-batches 4",
    ];
    refused("mnist", &batch, 2, &messages);
    let device = ["--pipeline", "2", "--devices", "flex,gpu:1"];
    refused("mnist", &device, 2, &["no device called `gpu:1`"]);
}
