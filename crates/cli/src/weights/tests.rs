//! Tests of `weights`.

use everburn_train::{TrainError, WeightsMismatch};

use super::{size, with_sizes};
use crate::error::CliError;

#[test]
fn weights_of_another_size_are_told_with_the_flag_that_takes_sizes() {
    let told = |mismatch: WeightsMismatch| {
        let error = with_sizes(CliError::Train(TrainError::Weights {
            path: "a.pt".into(),
            mismatch,
            problems: "shapes differ".to_owned(),
        }));
        assert!(error.to_string().contains("shapes differ"), "{error}");
        match error {
            CliError::Usage { help, .. } => help,
            _ => None,
        }
    };
    let help = told(WeightsMismatch::OtherSize).unwrap();
    assert!(help.contains("--config FILE takes the sizes"), "{help}");
    assert_eq!(told(WeightsMismatch::OtherArchitecture), None);
}

#[test]
fn sizes_have_units_and_are_not_nothing() {
    assert_eq!(size("5GB"), Ok(5_000_000_000));
    assert_eq!(size("20KB"), Ok(20_000));
    assert_eq!(size("7"), Ok(7));
    for wrong in ["", "GB", "-1", "0", "1.5GB", "5 GB", "99999999999GB"] {
        assert!(
            size(wrong).unwrap_err().contains("is not a size"),
            "{wrong}"
        );
    }
}
