//! What tests came to: how many passed, and the names of all others.

use std::fmt::Write as _;
use std::path::Path;

use super::package::Package;

/// How many flaky tests CI bears. It only ever gets smaller.
pub(super) const FLAKY_ALLOWED: usize = 2;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct TestCounts {
    pub(super) passed: usize,
    pub(super) failed: Vec<String>,
    /// They passed, after they had failed.
    pub(super) flaky: Vec<String>,
    /// What was not tried.
    pub(super) skipped: Vec<Skip>,
}

/// A test, a part of one, or a step that was not tried.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Skip {
    /// With the reason.
    pub(super) what: String,
    /// With which it could have been tried, if that is all that it lacks.
    pub(super) package: Option<Package>,
}

impl Skip {
    /// Reads the line that a test has written: what and why, and after a tab the package, if there is one.
    fn read(line: &str) -> Self {
        let (what, package) = line.split_once('\t').unwrap_or((line, ""));
        Self {
            what: what.to_owned(),
            package: Package::read(package),
        }
    }
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
        self.skipped.extend(text.lines().map(Skip::read));
        self.skipped.sort();
        // A test that was tried again says it twice.
        self.skipped.dedup();
    }

    /// The skips whose package is `offered`, which is asked once a package.
    pub(super) fn needless_skips(
        &self,
        offered: impl Fn(&Package) -> bool,
    ) -> Vec<(&Package, &str)> {
        let mut skips: Vec<_> = self
            .skipped
            .iter()
            .filter_map(|skip| Some((skip.package.as_ref()?, skip.what.as_str())))
            .collect();
        skips.sort();
        let groups = skips.chunk_by(|(one, _), (other, _)| one == other);
        let offered = groups.filter(|skips| offered(skips[0].0));
        offered.flatten().copied().collect()
    }

    /// All names, and the counts as the last line.
    pub(super) fn summary(&self) -> String {
        let mut text = String::new();
        for skip in &self.skipped {
            let _ = writeln!(text, "SKIPPED {}", skip.what);
        }
        for (kind, names) in [("FLAKY", &self.flaky), ("FAILED", &self.failed)] {
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

    const CHILD: &str = "check::test_counts::tests::skips_three_things";

    #[test]
    #[ignore = "the process that the other test starts"]
    fn skips_three_things() {
        everburn_tests::skip("a GPU", "there is none");
        everburn_tests::skip_missing("a screen", "there is\tno tmux", "tmux");
        assert!(everburn_tests::data_folder("no-such-data", "data").is_none());
    }

    #[test]
    fn what_tests_write_is_what_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skips");
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD, "--ignored"])
            .env("EVERBURN_TEST_SKIPS", &file)
            .env_remove("EVERBURN_DATA_DIR")
            .stdout(std::process::Stdio::null())
            // Else the skips would be taken for this test's.
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        let mut counts = TestCounts::default();
        counts.take_skips(&file);
        let skip = |what: &str, package| Skip {
            what: what.to_owned(),
            package,
        };
        assert_eq!(
            counts.skipped,
            [
                skip("a GPU: there is none", None),
                skip(
                    "a screen: there is no tmux",
                    Some(Package::Apt("tmux".to_owned()))
                ),
                skip("data: EVERBURN_DATA_DIR is not set", Some(Package::Data)),
            ]
        );
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
        let lines =
            "a disk: not root\na disk: not root\na screen: there is no tmux\tapt-get tmux\n";
        std::fs::write(&file, lines).unwrap();
        counts.take_skips(&file);
        let text = counts.summary();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "SKIPPED a disk: not root",
                "SKIPPED a screen: there is no tmux",
                "FLAKY odd",
                "FAILED one",
                "1 flaky (counted as passed)",
                "7 passed, 1 failed, 2 skipped",
            ]
        );
        let tmux = Package::Apt("tmux".to_owned());
        assert_eq!(
            counts.needless_skips(|_| true),
            [(&tmux, "a screen: there is no tmux")]
        );
        assert!(counts.needless_skips(|_| false).is_empty());
    }
}
