//! Tests of `keys`.

use super::*;

fn given(words: &str) -> Result<Given<OfTraining>, Error> {
    let command = Given::<OfTraining>::augment_args(Command::new("train").no_binary_name(true));
    Given::from_arg_matches(&command.try_get_matches_from(words.split_whitespace())?)
}

#[test]
fn flags_become_keys_of_their_fields_types() {
    let words = "--epochs 3 --learning-rate 0.5 --no-overlap --bucket-mib 2 --devices flex,flex --lr-schedule step";
    let expected = "[training]\nepochs = 3\noverlap = false\nschedule = 'step'\n\
                    [training.optimizer]\nlearning_rate = 0.5\n[training.ddp]\nbucket_bytes = 2097152\n\
                    [ranks]\ndevices = ['flex', 'flex']";
    let given = given(words).unwrap();
    assert_eq!(given.table, expected.parse::<Table>().unwrap());
    assert!(given.has("training.ddp.bucket_bytes") && !given.has("training.ddp.shard"));
    assert_eq!(
        given.quoted("ranks.devices").as_deref(),
        Some("--devices flex,flex")
    );
}

#[test]
fn a_value_of_another_type_is_refused_by_the_flags_name() {
    let error = given("--epochs many").unwrap_err().to_string();
    assert!(error.contains("--epochs"), "{error}");
    let error = given("--seed 18446744073709551615")
        .unwrap_err()
        .to_string();
    assert!(error.contains("--seed: a number above"), "{error}");
    let error = given("--shard all").unwrap_err().to_string();
    assert!(error.contains("use none, optimizer"), "{error}");
}

#[test]
fn texts_of_libraries_name_flags_here() {
    let text = "`training.ddp.shard = gradients` and `training.overlap = false` do not go together; see `epochs`";
    let told = "--shard gradients and --no-overlap do not go together; see `epochs`";
    assert_eq!(with_flags(text), told);
    assert_eq!(
        with_flags("`training.epochs` must be at least 1"),
        "--epochs must be at least 1"
    );
    assert_eq!(
        with_flags("`init_skip = 'fc.*'` leaves it out; start without `Trainer::resume`"),
        "--init-skip 'fc.*' leaves it out; start without --resume"
    );
    assert_eq!(
        with_flags(
            "`LaunchConfig::elastic = 0:4`; raise `GroupOptions::timeout`, or `training.sync = 8`"
        ),
        "--elastic 0:4; raise --timeout, or --local-steps 8"
    );
    assert_eq!(
        with_flags("an odd ` and `training.ema.sharded`"),
        "an odd ` and `training.ema.sharded`"
    );
}
