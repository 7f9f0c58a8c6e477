//! Patterns of tensors to skip.

use std::path::Path;

use crate::config::parameter_groups::Patterns;
use crate::error::TrainError;

/// Refuses a pattern of tensors to skip that fits no name of the model or the file at `path`.
pub(in crate::checkpoint::state_dict) fn check_patterns<'a, I: Iterator<Item = &'a str>>(
    skip: &Patterns,
    path: &Path,
    names: impl Fn() -> I,
) -> Result<(), TrainError> {
    for pattern in skip.iter() {
        let one = Patterns::from(pattern);
        if names().any(|name| one.fit(name)) {
            continue;
        }
        let layer = format!("{pattern}.");
        let lower = pattern.to_lowercase();
        let in_lower = Patterns::from(lower.as_str());
        let meant = match names().any(|name| name.starts_with(&layer)) {
            true => format!("; did you mean '{layer}*'?"),
            false if names().any(|name| in_lower.fit(name)) => {
                format!("; did you mean '{lower}'?")
            }
            false => String::new(),
        };
        return Err(TrainError::Config(format!(
            "`init_skip = {pattern}` matches no parameter of the model, and no tensor of {}{meant}",
            path.display()
        )));
    }
    Ok(())
}
