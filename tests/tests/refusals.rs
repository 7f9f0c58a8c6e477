//! What cannot work is refused before anything is started, and the message says what to do.

use everburn_tests::{Everburn, ORPHAN_DEADLINE, Run, assert_refused};
use rustix::process::Signal;

#[test]
fn flags_that_cannot_be_are_named_with_what_to_do() {
    assert_refused(
        "mlp",
        "
        --ranks 0 | --ranks 0 | --ranks 1
        --ranks 2 --backend nccl | --backend nccl cannot be used | --devices names flex | --gpus N
        --batch-size 3 --ranks 4 | 3 samples cannot be shared by 4 ranks | --batch-size 4
        --optimizer adamm | adamm | adam | adam-w | sgd
        --learning-rate -1 | the learning rate must be a positive number
        --learning-rate=-0.1 | the learning rate must be a positive number
        --learning-rate 0 | the learning rate must be a positive number
        --learning-rate nan | the learning rate must be a positive number
        --lr-schedule cosine --learning-rate 2 | --learning-rate | at most 1
        --epochs 0 | --epochs must be at least 1
        --steps 0 | --steps must be at least 1
        --batch-size 0 | --batch-size
        --nodes 0 | --nodes must be at least 1
        --timeout 0 | --timeout must be at least 1
        --threads-per-rank 0 | --threads-per-rank must be at least 1
        --log-every 0 | --log-every must be at least 1
        --train-samples 0 | 0 training samples were asked for
        --test-samples 0 | 0 test samples were asked for
        --early-stopping 0 | --early-stopping must be at least 1
        --early-stopping 2 --validation-samples 0 | --early-stopping | give --validation-samples
        --best-by accuracy --validation-samples 0 | --best-by | give --validation-samples
        --best-by mae | --best-by | min:NAME or max:NAME
        --strategy data-parallel --nodes 2 --node-rank 0 --rendezvous 127.0.0.1:1 | --strategy data-parallel is for one machine | --strategy ddp
        --nodes 2 --node-rank 0 --rendezvous here | `here` is no rendezvous address | HOST:PORT
        --nodes 2 --node-rank 0 | --rendezvous HOST:PORT
        --nodes 2 --rendezvous h:1 | --nodes 2 without --node-rank | --node-rank 1 for the last
        --nodes 2 --node-rank 2 --rendezvous h:1 | machine 2 of 2 does not exist | 0 to 1
        --run-dir /dev/null/run | /dev/null/run | Not a directory | choose another --run-dir
        --run-dir /dev/null/run --ranks 2 | /dev/null/run | Not a directory
        --run-dir /proc/run | /proc/run
        ",
    );
}

#[test]
fn what_the_named_optimizer_has_not_is_refused_before_anything_is_started() {
    assert_refused(
        "mlp",
        r#"
        --optimizer adam --momentum 0.9 | `momentum` is no setting of adam | sgd, muon and rmsprop
        --optimizer lion --set optimizer.epsilon=1e-6 | `epsilon` is no setting of lion
        --set optimizer.momentums=0.9 | momentums
        --optimizer muon --shard optimizer --ranks 2 | --optimizer muon and --shard optimizer do not go together
        --optimizer lamb --mesh tensor=2 --ranks 2 | --optimizer lamb and layers that several ranks share
        --ranks 2 --set optimizer.groups=[{match="layers.3.*",frozen=true}] | match = "layers.3.*" | matches no parameter | the nearest is
        "#,
    );
}

#[test]
fn a_window_beyond_the_context_of_a_model_leads_to_the_longest() {
    let refusal = "--set text.window=256 | text.window is 256, and the model sees 1 to 64 tokens at once | set at most 64";
    assert_refused("gpt-nano", refusal);
}

#[test]
fn gpus_that_are_not_there_offer_ranks_on_the_processor() {
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        everburn_tests::skip("--gpus 2 without a GPU", "there is one");
        return;
    }
    let none = "--gpus 2 | cuda:0 cannot be used | no driver: | ";
    assert_refused("mlp", &format!("{none}--ranks 2"));
    let parallel = format!("--strategy model-parallel {none}--devices flex,flex");
    assert_refused("mnist", &parallel);
}

#[test]
fn more_validation_samples_than_there_are() {
    let leaves = "--validation-samples 600 leaves none of the 600";
    assert_refused("mlp", &format!("--validation-samples 600 | {leaves}"));
    assert_refused(
        "mlp",
        &format!("--validation-samples 600 --ranks 2 | {leaves}"),
    );
}

#[test]
fn a_configuration_that_cannot_be_used_is_shown_where() {
    for (text, messages) in [
        (
            "model = \"mlp\"\n[training\nepochs = 3\n",
            &["my.toml cannot be used as a configuration", "line 2"][..],
        ),
        (
            "model = \"mlp\"\n[training]\nepoch = 3\n",
            &[
                "my.toml",
                "unknown key `training.epoch`; did you mean `training.epochs`?",
            ],
        ),
        (
            "model = \"mlp\"\n[training]\nepochs = \"three\"\n",
            &["my.toml", "three", "epochs"],
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("my.toml"), text).unwrap();
        let ended = Everburn::line(folder.path(), "train --config my.toml").refused(messages);
        ended.started_nothing();
    }
}

#[test]
fn a_key_in_the_wrong_place_gets_the_right_one_and_its_flag_is_named() {
    assert_refused(
        "mlp",
        r#"
        --set epochs=3 | --set epochs=3: unknown key `epochs`; did you mean --epochs?
        --set training.lr=3 | unknown key `training.lr`; did you mean --learning-rate?
        --set optimizer.lr=3 | unknown key `training.optimizer.lr`; did you mean --learning-rate?
        --set zzzz.x=3 | unknown key `zzzz`; mlp has [data] besides [ranks], [training] and [parallel]
        --set data.name=nan | quotation marks make it a text: --set 'data.name="nan"'
        "#,
    );
}

#[test]
fn commands_without_what_they_need_say_what_that_is() {
    let folder = tempfile::tempdir().unwrap();
    for (words, messages) in [
        ("train", &["no model was named", "--list"][..]),
        ("train --config none.toml", &["none.toml", "No such file"]),
        (
            "eval .",
            &[
                "there is no config.toml in it",
                "the --run-dir of a training",
            ],
        ),
        ("eval nowhere", &["there is no such folder"]),
    ] {
        Everburn::line(folder.path(), words).refused(messages);
    }
}

#[test]
fn a_run_that_is_not_there_is_answered_with_the_one_that_may_be_meant() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("runs/resnet18-1");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("config.toml"), "model = 'resnet18'\n").unwrap();
    for (words, help) in [
        ("eval runs/resnet18-9", "did you mean `runs/resnet18-1`?"),
        ("eval resnet18-1", "did you mean `runs/resnet18-1`?"),
        (
            "predict runs/other --input a",
            "there are runs in runs/resnet18-1",
        ),
        (
            "export resnet18-2 --to pytorch",
            "did you mean `runs/resnet18-1`?",
        ),
    ] {
        Everburn::line(folder.path(), words).refused(&["there is no such folder", help]);
    }
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
        ended.started_nothing();

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

        for second in [
            Everburn::train(folder.path(), "mlp").args(flags),
            Everburn::line(folder.path(), "train --resume --run-dir run"),
        ] {
            let ended = second.run();
            let owner = format!("process {} has it", first.process_id());
            let messages = ["run", "another run is using it", "--run-dir", &*owner];
            ended.failed_with(2, &messages);
            ended.started_nothing();
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
