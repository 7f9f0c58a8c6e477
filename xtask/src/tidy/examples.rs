//! Rules about rustdoc: each public type of the façade has an example.

use super::TextFile;

/// The crates that `everburn` re-exports.
pub(super) const FACADE: [&str; 13] = [
    "crates/cli/src/",
    "crates/collectives/src/",
    "crates/distributed/src/",
    "crates/everburn/src/",
    "crates/launch/src/",
    "crates/nccl/src/",
    "crates/nn/src/",
    "crates/pipeline/src/",
    "crates/profile/src/",
    "crates/schedules/src/",
    "crates/train/src/",
    "datasets/src/",
    "models/src/",
];

/// The names of these crates, which readers of the documentation do not depend on: `everburn::train` is
/// `everburn_train`.
const INTERNAL: [&str; 11] = [
    "everburn_collectives",
    "everburn_datasets",
    "everburn_distributed",
    "everburn_launch",
    "everburn_models",
    "everburn_nccl",
    "everburn_nn",
    "everburn_pipeline",
    "everburn_profile",
    "everburn_schedules",
    "everburn_train",
];

const TYPES: [&str; 4] = ["pub struct ", "pub enum ", "pub trait ", "pub type "];

pub(super) fn check(file: &TextFile) -> Vec<String> {
    let is_test = file.path.ends_with("tests.rs") || file.path.contains("/tests/");
    if !file.is_rust() || !file.is_under(&FACADE) || is_test {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    // The lines since the item before: the item's documentation and attributes.
    let mut above: Vec<&str> = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if let Some(name) = internal_name(line) {
            let what = format!(
                "`{name}` in documentation: write `{}`",
                name.replacen('_', "::", 1)
            );
            complaints.push(file.complain(index, &what));
        }
        // Types within a function or a module of tests are indented.
        if let Some(rest) = TYPES.iter().find_map(|start| line.strip_prefix(start)) {
            let is_shown = !above.iter().any(|line| is_hidden(line));
            if is_shown && !above.iter().any(|line| has_example(line)) {
                let name = rest.split(|c: char| !c.is_alphanumeric()).next();
                let name = name.unwrap_or(rest);
                let what = format!("`{name}` has no example in its documentation");
                complaints.push(file.complain(index, &what));
            }
        }
        match line {
            "" => above.clear(),
            line => above.push(line),
        }
    }
    complaints
}

/// The name of a crate of the façade in a line of documentation that readers see: not in a hidden line of an example, nor
/// as the target of a link.
fn internal_name(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let text = line
        .strip_prefix("///")
        .or_else(|| line.strip_prefix("//!"))?
        .trim_start();
    if text.starts_with("# ") {
        return None;
    }
    INTERNAL.into_iter().find(|name| {
        text.match_indices(&format!("{name}::")).any(|(at, _)| {
            let before = &text[..at];
            !before.ends_with("](") && !before.ends_with("]: ")
        })
    })
}

fn has_example(line: &str) -> bool {
    line.starts_with("/// ```")
}

fn is_hidden(line: &str) -> bool {
    line == "#[doc(hidden)]" || line == "#[cfg(doctest)]"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> String {
        check(&TextFile::sample(path, text)).join("\n")
    }

    #[test]
    fn public_types_have_examples() {
        let train = |text| complaints("crates/train/src/a.rs", text);
        let found = train("/// A run.\n#[derive(Debug)]\npub struct Run<'a> {");
        let expected = "crates/train/src/a.rs:3: `Run` has no example in its documentation";
        assert_eq!(found, expected);
        let elsewhere = "/// A run; see the [crate's example](crate).\npub struct Run;";
        assert!(train(elsewhere).ends_with(":2: `Run` has no example in its documentation"));
        for text in [
            "/// A run.\n///\n/// ```\n/// let _ = 1;\n/// ```\npub struct Run;",
            "#[doc(hidden)]\npub struct Run;",
            "/// A run.\npub(crate) struct Run;",
            "/// A run.\n    pub struct Run;",
        ] {
            assert_eq!(train(text), "", "{text}");
        }
        assert_eq!(complaints("crates/record/src/a.rs", "pub struct Run;"), "");
    }

    #[test]
    fn documentation_has_the_names_of_the_facade() {
        let train = |text| complaints("crates/train/src/a.rs", text);
        let found = train("/// use everburn_train::Task;");
        assert!(found.ends_with(":1: `everburn_train` in documentation: write `everburn::train`"));
        for text in [
            "/// # use everburn_train::Task;",
            "/// See [`everburn::train::Task`](everburn_train::Task).",
            "use everburn_train::Task;",
        ] {
            assert_eq!(train(text), "", "{text}");
        }
    }
}
