//! Tests of what flags become, and of what they are refused with.

use clap::Parser;
use everburn_tests::AssertContains;
use miette::Diagnostic;

use super::*;
use crate::arguments::Arguments;

fn configured(line: &str) -> Result<RunConfig, CliError> {
    RunConfig::resolve(&TrainArguments::of(line), None)
}

fn resolved(line: &str) -> Result<Parallelism, CliError> {
    let config = configured(line)?;
    check(&config)?;
    resolve(&config)
}

/// What `line` is refused with: the message, then the help.
fn refused(line: &str) -> String {
    let error = match resolved(line) {
        Err(error) => error,
        Ok(parallelism) => panic!("{line}: {parallelism:?}"),
    };
    assert!(error.is_usage(), "{error}");
    let help = error.help().map(|help| help.to_string());
    format!("{error}\n{}", help.unwrap_or_default())
}

#[test]
fn pipeline_is_short_for_a_mesh() {
    let one = resolved("gpt-nano --ranks 4 --pipeline 2").unwrap();
    let other = resolved("gpt-nano --ranks 4 --mesh data=2,pipeline=2").unwrap();
    assert_eq!(one, other);
    assert_eq!(one.mesh.to_string(), "data=2,pipeline=2,tensor=1");
    let alone = resolved("mnist --ranks 3").unwrap();
    assert_eq!(alone.mesh, Mesh::of_replicas(3));
}

#[test]
fn schedules_of_both_kinds_go_by_one_flag() {
    let line = "mnist --ranks 2 --pipeline 2 --pipeline-schedule gpipe --lr-schedule linear";
    let config = configured(line).unwrap();
    assert_eq!(config.training.schedule, everburn_train::LrSchedule::Linear);
    assert_eq!(resolve(&config).unwrap().schedule.name(), "gpipe");
    let twice = refused("mnist --ranks 2 --pipeline 2 --schedule gpipe --pipeline-schedule 1f1b");
    twice.assert_contains(["--pipeline-schedule is given twice"]);
    let words = ["everburn", "train", "mnist", "--schedule", "2f2b"];
    let error = Arguments::try_parse_from(words).unwrap_err().to_string();
    error.assert_contains(["2f2b", "cosine", "zb-h1"]);
}

#[test]
fn the_mesh_is_written_and_read_back() {
    let line =
        "mnist --ranks 4 --pipeline 2 --micro-batches 8 --pipeline-schedule zb-h1 --stages fc1";
    let config = configured(line).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let text = toml::to_string(&config).unwrap();
    text.assert_contains(["[parallel]", "\"data=2,pipeline=2,tensor=1\"", "\"zb-h1\""]);
    std::fs::write(&path, text).unwrap();
    let again = format!("--config {}", path.display());
    assert_eq!(configured(&again).unwrap(), config);

    // What was cut into two may continue in another cut, or whole.
    let cut = format!("{again} --pipeline 4 --stages auto");
    assert_eq!(resolved(&cut).unwrap().mesh.pipeline, 4);
    let whole = format!("{again} --ranks 1 --mesh data=1");
    assert!(resolved(&whole).unwrap().mesh.is_data_only());
}

#[test]
fn meshes_that_do_not_fit_the_ranks_are_refused() {
    let text = refused("mnist --ranks 3 --mesh data=2,pipeline=2");
    text.assert_contains(["4 places", "3 ranks", "--ranks 4"]);
    let text = refused("mnist --ranks 3 --pipeline 2");
    text.assert_contains(["--pipeline 2 does not divide the 3 ranks", "--ranks 2"]);
    refused("mnist --pipeline 0").assert_contains(["--pipeline must be at least 1"]);
    for (strategy, devices) in [
        ("data-parallel", "flex,flex"),
        ("model-parallel", "flex,flex,flex,flex"),
    ] {
        let line =
            format!("mnist --ranks 2 --pipeline 2 --strategy {strategy} --devices {devices}");
        refused(&line).assert_contains([strategy, "do not go together"]);
    }
    let both = "everburn train mnist --mesh data=1 --pipeline 1".split(' ');
    let error = Arguments::try_parse_from(both).unwrap_err().to_string();
    error.assert_contains(["--mesh", "--pipeline", "cannot be used with"]);
}

#[test]
fn stages_that_do_not_fit_the_model_are_refused() {
    let text = refused("mnist --ranks 5 --pipeline 5 --batch-size 60");
    text.assert_contains(["mnist: a model of 4 blocks", "5 stages", "4 ranks or fewer"]);
    let text = refused("mnist --ranks 3 --pipeline 3 --pipeline-schedule interleaved");
    text.assert_contains(["4 blocks", "6 stages", "chunks 2"]);
    let text = refused("mnist --ranks 2 --pipeline 2 --stages fc9");
    text.assert_contains(["`fc9`", "no block", "the blocks are conv1, conv2, fc1, fc2"]);
    let text = refused("mnist --ranks 2 --pipeline 2 --stages conv2,fc1");
    text.assert_contains(["names 2", "2 stages need 1"]);
}

#[test]
fn micro_batches_that_do_not_divide_the_batch_are_refused() {
    let text = refused("mnist --ranks 4 --pipeline 2 --batch-size 64 --micro-batches 7");
    text.assert_contains(["7 micro-batches", "32 samples", "--micro-batches 4"]);
    let text = refused("mnist --ranks 6 --pipeline 2 --batch-size 64");
    text.assert_contains(["64 samples", "3 replicas", "--batch-size 66"]);
    let text = refused("mnist --ranks 2 --pipeline 2 --micro-batches 0");
    text.assert_contains(["0 micro-batches", "1 or more"]);
}

#[test]
fn flags_that_say_nothing_here_are_refused() {
    let text = refused("mnist --micro-batches 4");
    text.assert_contains(["--micro-batches 4 is for pipelines", "--accumulate 4"]);
    refused("mnist --pipeline-schedule gpipe")
        .assert_contains(["--pipeline-schedule gpipe is for pipelines"]);
    refused("mnist --chunks 2").assert_contains(["--chunks 2 is for pipelines"]);
    refused("mnist --stages even").assert_contains(["--stages even is for pipelines"]);
    let text = refused("mnist --ranks 2 --pipeline 2 --accumulate 2");
    text.assert_contains(["--accumulate 2", "--micro-batches"]);
    let text = refused("mnist --ranks 2 --pipeline 2 --chunks 2 --pipeline-schedule gpipe");
    text.assert_contains(["--chunks 2", "interleaved only", "gpipe"]);
}
