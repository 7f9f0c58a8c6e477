//! What a layer of a configuration says of the optimizer.

use everburn_train::OptimizerKind;
use serde::Deserialize;
use toml::{Table, Value};

use crate::error::CliError;

/// The section at the top that is short for `[training.optimizer]`.
pub(super) const SHORT: &str = "optimizer";

/// Puts what is in `[optimizer]` of `layer` into `[training.optimizer]`, where `name` is `kind`.
pub(super) fn lift(layer: &mut Table) -> Result<(), CliError> {
    let short = match layer.remove(SHORT) {
        None => Table::new(),
        Some(Value::Table(short)) => short,
        Some(other) => {
            return Err(CliError::usage_with_help(
                format!("`optimizer = {other}` is no section"),
                "an optimizer is named by --optimizer NAME, or in a section: [optimizer] and name = \"sgd\"",
            ));
        }
    };
    if short.is_empty() && of(layer).is_none() {
        return Ok(());
    }
    let training = layer
        .entry("training")
        .or_insert_with(|| Value::Table(Table::new()));
    // What is no section is refused where the configuration is read.
    let Some(training) = training.as_table_mut() else {
        return Ok(());
    };
    let optimizer = training
        .entry(SHORT)
        .or_insert_with(|| Value::Table(Table::new()));
    let Some(optimizer) = optimizer.as_table_mut() else {
        return Ok(());
    };
    for (key, value) in short {
        optimizer.insert(key, value);
    }
    let Some(name) = optimizer.remove("name") else {
        return Ok(());
    };
    match optimizer.insert("kind".to_string(), name.clone()) {
        Some(kind) if kind != name => Err(CliError::usage_with_help(
            format!("the optimizer is named twice: {name} and {kind}"),
            "`name` and `kind` of [optimizer], and --optimizer, are the same thing: leave one out",
        )),
        _ => Ok(()),
    }
}

/// Takes out of `lower` the settings that the optimizer of `upper` has not: they were another one's.
pub(super) fn leave_out_others(lower: &mut Table, upper: &Table) {
    let kind = |layer: &Table| {
        let kind = of(layer)?.get("kind")?.clone();
        OptimizerKind::deserialize(kind).ok()
    };
    let Some(named) = kind(upper) else { return };
    if kind(lower).unwrap_or_default() == named {
        return;
    }
    let training = lower.get_mut("training").and_then(Value::as_table_mut);
    let optimizer = training.and_then(|it| it.get_mut(SHORT)?.as_table_mut());
    if let Some(optimizer) = optimizer {
        optimizer.retain(|setting, _| named.has(setting));
    }
}

/// What `layer` says of the optimizer.
fn of(layer: &Table) -> Option<&Table> {
    layer.get("training")?.get(SHORT)?.as_table()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifted(text: &str) -> Result<Table, String> {
        let mut layer = text.parse::<Table>().unwrap();
        lift(&mut layer).map_err(|error| error.to_string())?;
        Ok(layer)
    }

    #[test]
    fn a_section_at_the_top_is_short_for_the_one_in_training() {
        let short =
            lifted("[optimizer]\nname = 'sgd'\nmomentum = 0.9\n[training]\nepochs = 2").unwrap();
        let long = "[training]\nepochs = 2\n[training.optimizer]\nkind = 'sgd'\nmomentum = 0.9";
        assert_eq!(short, long.parse::<Table>().unwrap());
        let named = lifted("[training.optimizer]\nname = 'lion'").unwrap();
        let kind = "[training.optimizer]\nkind = 'lion'";
        assert_eq!(named, kind.parse::<Table>().unwrap());
        let none = lifted("[training]\nepochs = 2").unwrap();
        assert_eq!(none, "[training]\nepochs = 2".parse::<Table>().unwrap());
    }

    #[test]
    fn what_names_two_optimizers_or_none_is_refused() {
        let twice = "[optimizer]\nname = 'lion'\n[training.optimizer]\nkind = 'sgd'";
        let error = lifted(twice).unwrap_err();
        assert!(error.contains("named twice"), "{error}");
        let error = lifted("optimizer = 'sgd'").unwrap_err();
        let expected = "`optimizer = \"sgd\"` is no section";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn what_another_optimizer_was_given_does_not_go_to_this_one() {
        let preset = "[training.optimizer]\nkind = 'adam-w'\nbeta_2 = 0.99\nepsilon = 1e-6\nweight_decay = 0.1";
        let left = |upper: &str| {
            let mut lower = preset.parse::<Table>().unwrap();
            leave_out_others(&mut lower, &lifted(upper).unwrap());
            of(&lower)
                .unwrap()
                .keys()
                .cloned()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(left("[optimizer]\nname = 'sgd'"), "kind weight_decay");
        assert_eq!(
            left("[optimizer]\nname = 'lion'"),
            "beta_2 kind weight_decay"
        );
        let all = "beta_2 epsilon kind weight_decay";
        assert_eq!(left("[optimizer]\nname = 'adamw'"), all);
        assert_eq!(left("[optimizer]\nlearning_rate = 0.1"), all);
    }
}
