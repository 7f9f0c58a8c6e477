//! Tests of `export`.

use super::{CliError, pretrained_files, size};
use crate::tasks;

#[test]
fn a_model_that_transformers_have_not_leads_to_those_that_they_have() {
    for model in ["mlp", "table"] {
        let task = tasks::find(model).unwrap();
        let task = task.configure(&toml::Table::new()).unwrap();
        let error = pretrained_files(&*task).unwrap_err();
        let CliError::Usage { message, help } = error else {
            panic!("{error}")
        };
        assert!(message.contains(&format!("no model like `{model}`")));
        let help = help.unwrap();
        assert!(help.contains("--to safetensors and --to pytorch"), "{help}");
        let have = "transformers have resnet18, resnet50, vit, gpt2, llama";
        assert!(help.ends_with(have), "{help}");
    }
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
