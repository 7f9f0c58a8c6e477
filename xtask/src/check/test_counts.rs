//! What tests came to: how many passed, and the names of all others.

use std::fmt::Write as _;
use std::path::Path;

/// How many flaky tests CI bears. It only ever gets smaller.
pub(super) const FLAKY_ALLOWED: usize = 2;

/// What tests came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct TestCounts {
    pub(super) passed: usize,
    pub(super) failed: Vec<String>,
    /// They passed, after they had failed.
    pub(super) flaky: Vec<String>,
    /// What was not tried, with the reason.
    pub(super) skipped: Vec<String>,
}

impl TestCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.flaky.extend(other.flaky);
        self.skipped.extend(other.skipped);
    }

    /// Reads one line of what libtest prints.
    pub(super) fn take_line(&mut self, line: &str) {
        if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|line| line.strip_suffix(" ... FAILED"))
        {
            self.failed.push(name.to_owned());
        }
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        let passed = result
            .split([' ', ';'])
            .zip(result.split([' ', ';']).skip(1))
            .find_map(|(number, word)| (word == "passed").then(|| number.parse::<usize>().ok()));
        self.passed += passed.flatten().unwrap_or(0);
    }

    /// Reads the report that nextest has written, in the form of JUnit.
    pub(super) fn of_junit(xml: &str) -> Self {
        let mut counts = Self::default();
        // Text and attributes are escaped, so a tag is a tag.
        for case in xml.split("<testcase ").skip(1) {
            let case = case.split("</testcase>").next().unwrap_or(case);
            let name = || {
                let of = |attribute| attribute_of(case, attribute).unwrap_or("?");
                format!("{} {}", of("classname"), of("name"))
            };
            let has = |tags: [&str; 2]| tags.iter().any(|tag| case.contains(tag));
            if has(["<failure", "<error"]) {
                counts.failed.push(name());
            } else {
                counts.passed += 1;
                if has(["<flakyFailure", "<flakyError"]) {
                    counts.flaky.push(name());
                }
            }
        }
        counts
    }

    /// Adds what tests have noted as skipped in `file`, a line each.
    pub(super) fn take_skips(&mut self, file: &Path) {
        let Ok(text) = std::fs::read_to_string(file) else {
            return;
        };
        self.skipped.extend(text.lines().map(str::to_owned));
        self.skipped.sort();
        // A test that was tried again says it twice.
        self.skipped.dedup();
    }

    /// All names, and the counts as the last line.
    pub(super) fn summary(&self) -> String {
        let mut text = String::new();
        for (kind, names) in [
            ("SKIPPED", &self.skipped),
            ("FLAKY", &self.flaky),
            ("FAILED", &self.failed),
        ] {
            for name in names {
                let _ = writeln!(text, "{kind} {name}");
            }
        }
        if !self.flaky.is_empty() {
            let _ = writeln!(text, "{} flaky (counted as passed)", self.flaky.len());
        }
        let _ = write!(
            text,
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        );
        text
    }
}

/// The value of an attribute of the tag with which `text` begins.
fn attribute_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let tag = text.split('>').next()?;
    let start = tag.find(&format!("{name}=\"")).filter(|at| {
        // `classname` ends with `name`.
        *at == 0 || tag[..*at].ends_with(' ')
    });
    let start = start.or_else(|| tag.find(&format!(" {name}=\"")).map(|at| at + 1))?;
    tag[start + name.len() + 2..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtests_lines_are_counted() {
        let mut counts = TestCounts::default();
        for line in [
            "running 3 tests",
            "test store::one ... ok",
            "test store::two ... FAILED",
            "test three ... ignored, needs torch",
            "test result: FAILED. 12 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            counts.take_line(line);
        }
        assert_eq!(counts.passed, 15);
        assert_eq!(counts.failed, ["store::two"]);
    }

    #[test]
    fn a_report_of_nextest_is_counted_by_name() {
        let xml = r#"<?xml version="1.0"?><testsuites name="r" tests="3" failures="1">
<testsuite name="a::b"><testcase name="m::good" classname="a::b" time="0.1"></testcase>
<testcase name="m::odd" classname="a::b" time="0.1"><flakyFailure type="t"><system-out>&lt;testcase </system-out></flakyFailure></testcase>
<testcase name="m::bad" classname="a::b"><failure type="test failure"/><rerunFailure/></testcase>
</testsuite></testsuites>"#;
        let counts = TestCounts::of_junit(xml);
        assert_eq!(counts.passed, 2);
        assert_eq!(counts.flaky, ["a::b m::odd"]);
        assert_eq!(counts.failed, ["a::b m::bad"]);
    }

    #[test]
    fn the_last_line_has_the_counts_and_all_names_stand_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skips");
        let mut counts = TestCounts {
            passed: 7,
            failed: vec!["one".into()],
            flaky: vec!["odd".into()],
            skipped: Vec::new(),
        };
        counts.take_skips(&file);
        std::fs::write(&file, "a disk: not root\na disk: not root\n").unwrap();
        counts.take_skips(&file);
        let text = counts.summary();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "SKIPPED a disk: not root",
                "FLAKY odd",
                "FAILED one",
                "1 flaky (counted as passed)",
                "7 passed, 1 failed, 1 skipped",
            ]
        );
    }
}
