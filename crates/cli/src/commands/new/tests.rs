//! Tests of `new`.

use super::*;

#[test]
fn a_project_has_the_name_of_its_folder_everywhere() {
    for kind in Kind::value_variants() {
        let template = kind.template();
        let source = Source::Folder("/src/everburn".into());
        let files = files(&template, "flowers", &source);
        let text = |path: &str| {
            let found = files.iter().find(|(file, _)| file == Path::new(path));
            &found.unwrap().1
        };
        let manifest: toml::Table = text("Cargo.toml").parse().unwrap();
        for key in ["name", "default-run"] {
            assert_eq!(manifest["package"][key].as_str(), Some("flowers"));
        }
        let everburn = &manifest["dependencies"]["everburn"]["path"];
        assert_eq!(everburn.as_str(), Some("/src/everburn/crates/everburn"));
        assert!(
            text("src/main.rs").contains("App::new().task(\"flowers\","),
            "{kind:?}"
        );
        assert!(text("src/main.rs").contains("--set flowers."), "{kind:?}");
        // `train --list` has a `-` for a model without it.
        assert!(
            text("src/main.rs").contains("fn input_and_output("),
            "{kind:?}"
        );
        let data = text("src/main.rs").contains("/houses.csv");
        assert_eq!(data, *kind == Kind::Table, "{kind:?}");
        let test = text("tests/ranks.rs");
        assert!(test.contains("CARGO_BIN_EXE_flowers\""), "{kind:?}");
    }
}

#[test]
fn no_identifier_changes_with_the_name() {
    // What is in no text and no comment.
    let code = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let pieces = lines.flat_map(|line| line.split('"').step_by(2));
        pieces.map(str::to_owned).collect()
    };
    for kind in Kind::value_variants() {
        let template = kind.template();
        let renamed = files(&template, "a-b1", &Source::Registry);
        for (path, before) in template.files().filter(|(path, _)| path.ends_with(".rs")) {
            let mut of_path = renamed.iter().filter(|(file, _)| file == Path::new(path));
            let (_, after) = of_path.next().unwrap();
            assert_eq!(code(before), code(after), "{kind:?}: {path}");
            // No setting keeps the name of the example's task.
            for before in ["\"", "--set "] {
                let old = format!("{before}{}.", template.task);
                assert!(!after.contains(&old), "{kind:?}: {path}");
            }
        }
    }
}

#[test]
fn a_project_names_where_it_takes_everburn_from() {
    let dependency = |source: Source| {
        let files = files(&Kind::Table.template(), "houses", &source);
        let (_, text) = files
            .iter()
            .find(|(file, _)| file == Path::new("Cargo.toml"))
            .unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        manifest["dependencies"]["everburn"].clone()
    };
    let version = toml::Value::from(env!("CARGO_PKG_VERSION"));
    assert_eq!(dependency(Source::Registry), version);
    let repository = dependency(Source::Repository);
    assert_eq!(
        repository["git"].as_str(),
        Some(env!("CARGO_PKG_REPOSITORY"))
    );
    // A program of a checkout finds its own sources.
    assert!(matches!(Source::of_this_program(), Source::Folder(_)));
    let versions = Source::of_this_program().versions().unwrap();
    let versions = String::from_utf8(versions).unwrap();
    assert!(versions.contains("name = \"burn\""));
    let words = Source::Repository.in_words().unwrap();
    assert!(words.contains("--everburn DIR"), "{words}");
}

#[test]
fn the_readme_takes_everburn_from_where_a_project_does() {
    let readme = std::fs::read_to_string("../../README.md").unwrap();
    for source in [Source::Folder("../everburn".into()), Source::Repository] {
        let manifest = source.in_manifest();
        let dependency = manifest.lines().last().unwrap();
        assert!(readme.contains(dependency), "{dependency}");
    }
}

#[test]
fn names_that_cargo_or_a_configuration_cannot_have_are_refused() {
    for name in ["", "Flowers", "a b", "7th", "a.b"] {
        assert!(!is_name(name), "{name}");
    }
    assert!(is_name("flowers-2") && taken_as("flowers-2").is_none());
    for (names, meaning) in [
        (&["build", "deps"][..], "Cargo"),
        (&["training", "ranks", "model"], "key"),
        (&["data"], "section"),
        (&["everburn", "core", "std", "test", "serde"], "crate"),
        (&["fn", "self", "crate", "yield"], "keyword"),
    ] {
        for name in names {
            assert!(taken_as(name).unwrap().contains(meaning), "{name}");
        }
    }
}
