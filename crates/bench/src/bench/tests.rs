//! Tests of `bench`.

use everburn_tests::AssertContains;

use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

#[test]
fn the_command_lines_are_consistent_and_refuse_what_cannot_be_run() {
    for bench in &BENCHES {
        let command = (bench.command)();
        command.clone().debug_assert();
        let refused = command.try_get_matches_from(["bench", "--run-timeout", "0"]);
        assert!(refused.is_err(), "{}", bench.name);
    }
    assert!(at_least_1("0").unwrap_err().contains("at least 1"));
    assert_eq!(at_least_1("3"), Ok(3));
    let nowhere = check_place("--json", Some(Path::new("/does/not/exist/a.json")));
    assert!(matches!(nowhere, Err(Failure::Usage(what)) if what.starts_with("--json /does")));
    assert_eq!(check_place("--json", Some(Path::new("a.json"))), Ok(()));
}

#[test]
fn folders_of_killed_runs_go() {
    let parent = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let folder = parent.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("stderr"), "").unwrap();
        folder
    };
    let ours = make(&Owner::this_process().unwrap().name("x"));
    let foreign = make("everburn-process-of-mine");
    let left = make("everburn-process-4294967295-1-x");
    remove_leftovers(parent.path());
    assert!(ours.exists() && foreign.exists() && !left.exists());
}

#[test]
fn train_is_meant_where_nothing_is_named_and_an_unknown_name_is_refused() {
    for line in ["", "train", "train --ranks 1", "--ranks 1"] {
        let words = words(line);
        let (bench, rest) = named(&words).unwrap();
        assert_eq!(bench.name, "train");
        assert_eq!(rest.len(), if line.contains("--ranks") { 2 } else { 0 });
    }
    let unknown = named(&words("lunch --ranks 2")).map(|(bench, _)| bench.name);
    let refusal = unknown.unwrap_err().to_string();
    refusal.assert_contains(["no benchmark `lunch`", "\n  train "]);
}
