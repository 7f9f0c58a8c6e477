//! Tests of `error`.

use super::*;

#[test]
fn ranks_of_different_builds_are_not_started_again() {
    let object = DdpError::Object {
        rank: 1,
        reason: "missing field `step`".to_string(),
    };
    assert!(TrainError::Ddp(object).happens_again());
    let backend = DdpError::Backend {
        wanted: "nccl".to_string(),
        reason: "there is no GPU".to_string(),
    };
    assert!(!TrainError::Ddp(backend).happens_again());
}

#[test]
fn a_rank_whose_parameters_are_not_the_giver_s_is_lost() {
    let error = TrainError::RestoredOthers {
        taker: 2,
        giver: 0,
        step: 7,
    };
    let expected = "the parameters that rank 2 has restored are not those of rank 0, whose state after step 7 it was given: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(error.happens_again() && !error.may_be_outlived() && !error.is_secondary());
}

#[test]
fn a_sample_of_the_validation_is_found_in_the_training_data() {
    let error = || TrainError::Data("sample 190 (batch 1 of an evaluation): NaN".to_string());
    let held_out = error().in_validation(Some(180)).to_string();
    let expected = "NaN (in the validation, counted in the training data)";
    assert!(held_out.ends_with(expected), "{held_out}");
    let own = error().in_validation(None).to_string();
    assert!(own.ends_with("NaN (in the validation)"), "{own}");
    let wrong = || {
        TrainError::Label(WrongLabel {
            sample: Some(10),
            of: "an evaluation",
            place: None,
            label: 7,
            scores: 5,
            index: everburn_nn::IndexOf::Class,
        })
    };
    let held_out = wrong().in_validation(Some(180)).to_string();
    let expected = "sample 190 of the training data has the label 7";
    assert!(held_out.starts_with(expected), "{held_out}");
    let own = wrong().in_validation(None).to_string();
    assert!(own.starts_with("sample 10 of the validation has"), "{own}");
}
