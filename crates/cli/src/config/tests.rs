//! Tests of what a configuration becomes.

use everburn_tests::AssertContains;
use miette::Diagnostic;

use super::*;

/// The configuration of `train` with these words.
fn resolved(words: &str) -> Result<RunConfig, CliError> {
    RunConfig::resolve(&TrainArguments::of(words), None)
}

/// What `train` with these words is refused with: the message and the help.
fn refused(words: &str) -> (String, String) {
    let error = resolved(words).unwrap_err();
    let help = error.help().map_or(String::new(), |help| help.to_string());
    (error.to_string(), help)
}

#[test]
fn flags_win_over_the_file_and_the_file_over_the_preset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(
        &path,
        "model = \"mnist-bn\"\n[training]\nepochs = 7\nschedule = \"constant\"\n\
         [training.optimizer]\nlearning_rate = 0.5\n",
    )
    .unwrap();
    let arguments = TrainArguments {
        config: Some(path),
        ..TrainArguments::of("--learning-rate 0.25")
    };
    let config = RunConfig::resolve(&arguments, None).unwrap();
    assert_eq!(config.model, "mnist-bn");
    assert_eq!(config.training.epochs, 7, "from the file");
    assert_eq!(
        config.training.schedule,
        everburn_train::LrSchedule::Constant,
        "file over preset"
    );
    assert_eq!(
        config.training.optimizer.learning_rate, 0.25,
        "from the flag"
    );
    assert_eq!(config.training.batch_size, 64, "default");
}

#[test]
fn a_preset_wins_over_the_defaults() {
    let config = resolved("mnist-bn").unwrap();
    assert_eq!(config.training.schedule, everburn_train::LrSchedule::Cosine);
}

#[test]
fn a_learning_rate_that_the_schedule_of_a_preset_does_not_take_is_answered_with_one_that_does() {
    let error = resolved("mnist-bn --learning-rate 2").unwrap_err();
    let expected = "--lr-schedule cosine takes a --learning-rate of at most 1, and this one is 2: --lr-schedule constant takes more";
    assert_eq!(error.to_string(), expected);
    let config = resolved("mnist-bn --learning-rate 2 --lr-schedule constant").unwrap();
    assert_eq!(config.training.optimizer.learning_rate, 2.0);
}

#[test]
fn the_resolved_configuration_repeats_itself() {
    let folder = tempfile::tempdir().unwrap();
    for words in [
        "mnist --early-stopping 3 --ranks 2",
        // The preset has a warm-up.
        "mnist --warmup-steps 0",
    ] {
        let config = resolved(words).unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(RunConfig::resolve(&from_file(path), None).unwrap(), config);
    }
}

/// Nothing but `--config`.
fn from_file(path: PathBuf) -> TrainArguments {
    TrainArguments {
        config: Some(path),
        ..TrainArguments::default()
    }
}

#[test]
fn a_file_that_names_a_schedule_without_numbers_has_none_of_the_preset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let warmup = |training: &str| {
        std::fs::write(&path, format!("model = 'mnist'\n[training]\n{training}")).unwrap();
        let config = RunConfig::resolve(&from_file(path.clone()), None).unwrap();
        config.training.schedule_numbers.warmup_steps
    };
    assert_eq!(warmup("schedule = 'cosine'"), 0.0);
    assert_eq!(warmup("epochs = 2"), 0.08);
    assert_eq!(
        warmup("schedule = 'cosine'\nschedule_numbers.warmup_steps = 5"),
        5.0
    );
}

#[test]
fn an_unknown_model_suggests_the_nearest() {
    let (error, help) = refused("mnits");
    assert_eq!(error, "there is no model called `mnits`");
    assert!(help.starts_with("did you mean `mnist`?"), "{help}");
    let (_, help) = refused("resnet");
    let all = "did you mean `resnet18` or `resnet50`?";
    assert!(help.starts_with(all), "{help}");
    for (name, meant) in [
        ("resnet34", "resnet18 --set resnet18.blocks=[3,4,6,3]"),
        ("ResNet-101", "resnet50 --set resnet50.blocks=[3,4,23,3]"),
        ("resnet152", "resnet50 --set resnet50.blocks=[3,8,36,3]"),
    ] {
        let (_, help) = refused(name);
        assert!(
            help.replace('\'', "").contains(&format!("`{meant}`")),
            "{help}"
        );
        resolved(meant).unwrap();
    }
}

#[test]
fn a_folder_in_the_place_of_a_model_is_named_as_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let (_, help) = refused(&path.to_string());
    let command = format!("train resnet18 --data {path}`");
    assert!(help.contains(&command), "{help}");
}

#[test]
fn a_setting_without_its_section_is_looked_for_in_the_task_first() {
    for (words, meant) in [
        ("table --set hidden=[8]", "`table.hidden`"),
        ("table --set hiddn=[8]", "`table.hidden`"),
        ("resnet18 --set trainng.epochs=3", "`training`"),
        ("resnet18 --set epoch=3", "--epochs"),
        ("resnet18 --set width=16", "`resnet18.width`"),
        ("resnet18 --set data.width=16", "`resnet18.width`"),
        ("resnet18 --set flowers.width=16", "`resnet18.width`"),
        ("resnet18 --set mean=[0.5,0.5,0.5]", "`data.mean`"),
    ] {
        let (told, _) = refused(words);
        assert!(told.ends_with(&format!("did you mean {meant}?")), "{told}");
    }
}

#[test]
fn an_unknown_setting_leads_to_the_list_of_those_of_the_task() {
    let (told, _) = refused("mnist --set width=16");
    let whole = "--set width=16: unknown key `width`; mnist has [data] besides [ranks], [training] and [parallel]";
    assert_eq!(told, whole);
    let (told, _) = refused("mnist --set flowers.petals=5");
    let end = "unknown key `flowers`; mnist has [data] besides [ranks], [training] and [parallel]";
    assert!(told.ends_with(end), "{told}");
    let of_task = |model: &str, listed: &[&str]| {
        let words = format!("{model} --set width=16");
        let (_, help) = refused(&words);
        let begin = format!("the settings of {model} are data.");
        assert!(help.starts_with(&begin), "{help}");
        help.assert_contains(listed);
    };
    of_task("mnist", &["data.train_samples, "]);
    let of_resnet = ["data.mean, ", "resnet18.width", "train --help` shows"];
    of_task("resnet18", &of_resnet);
}

#[test]
fn a_list_is_shown_in_brackets_where_one_value_was_given() {
    for (words, shown) in [
        (
            "table --set table.ignore=id",
            "--set 'table.ignore=[\"id\"]'",
        ),
        (
            "resnet18 --set data.classes=5",
            "--set 'data.classes=[\"5\"]'",
        ),
        (
            "resnet18 --set data.classes=[5,6]",
            "--set 'data.classes=[\"5\", \"6\"]'",
        ),
        ("table --set table.hidden=64", "--set 'table.hidden=[64]'"),
    ] {
        let (error, help) = refused(words);
        assert!(help.ends_with(shown), "{error}; {help}");
        // What it advises is a list of the right type.
        let (task, _) = words.split_once(' ').unwrap();
        let advised = shown.replace('\'', "").replace(", ", ",");
        let refused = resolved(&format!("{task} {advised}")).err();
        let refused = refused.map_or(String::new(), |error| error.to_string());
        assert!(!refused.contains("expected a "), "{refused}");
    }
}

#[test]
fn without_a_model_the_run_directory_or_the_data_say_which_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let told = |words: &str| {
        let (error, help) = refused(words);
        format!("{error}; {help}")
    };
    let here = folder.path().display();
    let flag = format!("--run-dir {here}");
    let nothing = told(&flag);
    assert!(nothing.contains("train mnist"), "{nothing}");
    std::fs::write(folder.path().join("config.toml"), "model = 'mlp'").unwrap();
    let of_run = told(&flag);
    let expected =
        format!("no model was named, and {here} contains a run of mlp; --resume continues it");
    assert!(of_run.starts_with(&expected), "{of_run}");
    std::fs::create_dir(folder.path().join("roses")).unwrap();
    let of_data = told(&format!("--data {here}"));
    let expected = format!(
        "{here} is a folder of images, one folder per class; resnet18, resnet50 and vit learn from it: name one, as in"
    );
    assert!(of_data.contains(&expected), "{of_data}");
    let command = format!("train resnet18 --data {here}`");
    assert!(of_data.contains(&command), "{of_data}");
}

#[test]
fn a_run_whose_configuration_was_emptied_is_not_resumed_with_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let flags = format!("--resume --run-dir {}", folder.path().display());
    for text in ["", "[training]\nepochs = 3\n"] {
        std::fs::write(&config, text).unwrap();
        for words in [flags.clone(), format!("mlp {flags}")] {
            let (error, _) = refused(&words);
            let expected = format!(
                "{} names no model, as that of every run does",
                config.display()
            );
            assert!(error.starts_with(&expected), "{words}: {error}");
        }
    }
}

#[test]
fn an_init_skip_of_a_file_is_for_the_weights_that_it_names_or_for_any() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let skipped = |named: &str| {
        let text = format!("model = 'mlp'\n{named}init_skip = 'layers.2.*'\n");
        std::fs::write(&path, text).unwrap();
        let arguments = TrainArguments {
            config: Some(path.clone()),
            ..TrainArguments::of("--init-from other.safetensors")
        };
        RunConfig::resolve(&arguments, None).unwrap().init_skip
    };
    assert_eq!(
        skipped("init_from = 'a.safetensors'\n"),
        Patterns::default()
    );
    assert_eq!(skipped(""), Patterns::from("layers.2.*"));
}

#[test]
fn a_run_by_a_backend_that_is_gone_is_answered_with_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "model = 'mlp'\n[ranks]\nbackend = 'burn'\n").unwrap();
    let words = format!("--resume --run-dir {}", folder.path().display());
    let (error, _) = refused(&words);
    error.assert_contains([
        "config.toml",
        "`burn`, expected one of `auto`, `host`, `nccl`",
    ]);
}

#[test]
fn of_a_key_that_is_set_twice_the_last_value_counts_and_is_quoted() {
    let set = |last: &str| {
        let words = format!("mnist --set training.epochs=3 --set training.{last}");
        resolved(&words)
    };
    assert_eq!(set("epochs=5").unwrap().training.epochs, 5);
    for (last, words) in [("epochs=many", "epochs"), ("epochz=5", "epochz")] {
        let error = set(last).unwrap_err().to_string();
        let quoted = format!("--set training.{last}: ");
        assert!(
            error.starts_with(&quoted) && error.contains(words),
            "{error}"
        );
    }
}

#[test]
fn gpus_mean_one_rank_each() {
    let config = resolved("mnist --gpus 2").unwrap();
    assert_eq!(config.ranks.ranks, 2);
    assert_eq!(config.ranks.devices, ["cuda:0", "cuda:1"]);
}

#[test]
fn a_number_in_the_place_of_a_name_is_answered_as_another_name_is() {
    let told = |words: &str| {
        let configured = resolved(words).and_then(|config| config.task().map(drop));
        configured.unwrap_err().to_string()
    };
    for (set, names) in [
        ("data.channels", "`rgb`, `gray`, `grey`"),
        ("training.precision", "`f32`, `tf32`, `bf16`, `f16`"),
    ] {
        let of_name = told(&format!("resnet18 --set {set}=blue"));
        assert!(of_name.contains(names), "{of_name}");
        let of_number = told(&format!("resnet18 --set {set}=1"));
        assert_eq!(of_number, of_name.replace("blue", "1"));
    }
}
