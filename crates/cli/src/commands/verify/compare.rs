//! Two trainings, step by step.

use serde_json::Value;

/// What of a line is of its step alone. Chains differ too where an earlier line is missing.
const OF_STEP: [&str; 3] = ["step", "loss", "tensors"];

/// Where two trainings part.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::commands) struct Difference {
    pub(in crate::commands) step: u64,
    /// The loss, or the path of a tensor.
    pub(in crate::commands) what: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {}: {}", self.step, self.what)
    }
}

/// The first difference between the lines of `hashes.jsonl` of two trainings.
pub(in crate::commands) fn compare(ours: &[Value], theirs: &[Value]) -> Option<Difference> {
    for (ours, theirs) in ours.iter().zip(theirs) {
        if OF_STEP.iter().any(|key| ours[*key] != theirs[*key]) {
            return Some(Difference {
                step: ours["step"].as_u64().unwrap_or(0),
                what: first_difference(ours, theirs),
            });
        }
    }
    (ours.len() != theirs.len()).then(|| Difference {
        step: ours.len().min(theirs.len()) as u64 + 1,
        what: format!("there are {} steps and {}", ours.len(), theirs.len()),
    })
}

fn first_difference(ours: &Value, theirs: &Value) -> String {
    let tensors = |line: &Value| line["tensors"].as_array().cloned().unwrap_or_default();
    let (our_tensors, their_tensors) = (tensors(ours), tensors(theirs));
    let different = our_tensors
        .iter()
        .zip(&their_tensors)
        .find(|(ours, theirs)| ours != theirs);
    // The loss was there before the parameters changed.
    let loss = ours["loss"] != theirs["loss"];
    match (loss, different) {
        (true, Some((tensor, _))) => format!("the loss, and `{}`", name_of(tensor)),
        (true, None) => "the loss".to_string(),
        (false, Some((tensor, _))) => format!("`{}`", name_of(tensor)),
        (false, None) => "other tensors, or another step".to_string(),
    }
}

fn name_of(tensor: &Value) -> &str {
    tensor[0].as_str().unwrap_or("a tensor without a name")
}

/// A short name of the state in a line, and not a proof of it: FNV-1a (Fowler, Noll and Vo), 64 bits.
pub(in crate::commands) fn name_of_state(line: &Value) -> String {
    let state = OF_STEP.map(|key| line[key].to_string()).concat();
    let hash = state.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(step: u64, loss: &str, weight: &str) -> Value {
        json!({ "step": step, "loss": loss, "tensors": [["fc.bias", "00"], ["fc.weight", weight]] })
    }

    #[test]
    fn the_first_step_and_tensor_that_differ_are_named() {
        let ours = [line(1, "a", "0"), line(2, "b", "1"), line(3, "c", "2")];
        assert_eq!(compare(&ours, &ours), None);
        let theirs = [line(1, "a", "0"), line(2, "b", "9"), line(3, "x", "y")];
        let difference = compare(&ours, &theirs).unwrap();
        assert_eq!(
            (difference.step, difference.what.as_str()),
            (2, "`fc.weight`")
        );
        let shorter = compare(&ours, &ours[..2]).unwrap();
        assert_eq!(shorter.step, 3);
        let loss = compare(&[line(1, "a", "0")], &[line(1, "b", "0")]).unwrap();
        assert_eq!(loss.what, "the loss");
        let mut of_another_chain = line(1, "a", "0");
        of_another_chain["chain"] = json!("00");
        assert_eq!(name_of_state(&of_another_chain), name_of_state(&ours[0]));
        assert_ne!(name_of_state(&ours[1]), name_of_state(&ours[0]));
        assert_eq!(compare(&ours[..1], &[of_another_chain]), None);
    }
}
