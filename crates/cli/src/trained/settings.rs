//! Settings that the data decide.

use std::collections::BTreeMap;
use std::path::Path;

use everburn_train::LoadedData;
use toml::Table;

use crate::config::key_of;
use crate::error::CliError;
use crate::legible;

/// The sections of data that Everburn's own tasks read. They compare names and paths by what they stand for.
const COMPARED_BY_TASKS: [&str; 2] = ["data.", "text."];

/// Whether a task parts the data that it is tested on as those that it learns from, for it has no more to say of them than
/// [`Task::data`](everburn_train::Task::data). Everburn's own tasks test all samples of other data.
pub(super) fn parts_alike(
    settings: &BTreeMap<String, String>,
    all: &LoadedData,
    test: &LoadedData,
) -> bool {
    let counts = |data: &LoadedData| (data.train_len, data.validation_len, data.test_len);
    let mut paths = settings.keys();
    let is_own = !paths.any(|path| COMPARED_BY_TASKS.iter().any(|it| path.starts_with(it)));
    is_own && counts(all) == counts(test) && test.for_training().fingerprint.test.is_empty()
}

/// Whether the sections of `now` name the folder or file that a run with the sections of `before` has learnt from, or a folder
/// in it: its `train`, where it has one. Files may have changed since. `has_test_files`: the run's data have a test set in
/// files of its own, which is tested then.
pub(super) fn is_learnt_place(before: &Table, now: &Table, has_test_files: bool) -> bool {
    let place = |sections: &Table| place_of_data(sections)?.canonicalize().ok();
    let (Some(learnt), Some(tested)) = (place(before), place(now)) else {
        return false;
    };
    // Its `train` may be a link to another place.
    let train = learnt.join("train").canonicalize().ok();
    match train.filter(|train| train.is_dir()) {
        Some(train) => tested.starts_with(train),
        None => tested == learnt && !has_test_files,
    }
}

/// Where the data of a task are, by its sections: Everburn's own tasks name them in `[data]`, a project of `everburn new` in
/// the `folder` of its section.
pub(super) fn place_of_data(sections: &Table) -> Option<&Path> {
    let place = match sections.get("data") {
        Some(data) => data.get("name"),
        None => sections.values().find_map(|section| section.get("folder")),
    };
    place?.as_str().map(Path::new)
}

/// What data are called that are others than those with the sections of `before`, by their place, where a task calls all its
/// data alike, as a project of `everburn new` does.
pub(super) fn name_of_other_data(before: &Table, now: &Table) -> Option<String> {
    if now.contains_key("data") {
        return None; // Everburn's own tasks name what they read
    }
    let place = place_of_data(now)?;
    let name = place.file_name()?;
    (place_of_data(before) != Some(place)).then(|| legible(name.display()))
}

/// The settings that the assignments of `set` have changed, but for those of where the data are.
pub(super) fn changed_by(
    set: &[String],
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Vec<String> {
    let is_set = |path: &str| {
        let mut keys = set.iter().map(|assignment| key_of(assignment));
        keys.any(|key| {
            path.strip_prefix(key)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let names_data = |path: &str| ["data.name", "data.folder"].contains(&path);
    let changes = now.iter().filter_map(|(path, value)| {
        let was = before.get(path).map_or("unset", String::as_str);
        let is_changed =
            was != value.as_str() && is_set(path.as_str()) && !names_data(path.as_str());
        is_changed.then(|| format!("{path} = {value} (was {was})"))
    });
    changes.collect()
}

/// Refuses data that decide a setting otherwise than those of the training did, such as which classes there are.
///
/// # Errors
/// [`CliError`] with the first such setting.
pub(crate) fn require_settings_of_run(
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Result<(), CliError> {
    let mut decided = before.iter();
    let found = decided.find_map(|(path, was)| {
        let is = decided_otherwise(path, before, now)?;
        Some((path, was, is))
    });
    let Some((path, was, is)) = found else {
        return Ok(());
    };
    Err(CliError::usage_with_help(
        format!(
            "the data are not those of the run: by them {path} is {is}, and it was {was} in the training"
        ),
        "restore the data, or start a new run",
    ))
}

/// The value that the data have given to the setting at `path`, which had another one before. What was open, and what a
/// task of Everburn's compares itself, is none.
pub(crate) fn decided_otherwise<'a>(
    path: &str,
    before: &BTreeMap<String, String>,
    now: &'a BTreeMap<String, String>,
) -> Option<&'a str> {
    if COMPARED_BY_TASKS.iter().any(|it| path.starts_with(it)) {
        return None;
    }
    let was = before.get(path)?;
    let is = now.get(path).map_or("unset", String::as_str);
    (was != is).then_some(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_an_evaluation_changes_are_named() {
        let settings = |size: &str, name: &str| {
            let settings = [("own.size", size), ("own.sizes", size), ("data.name", name)];
            BTreeMap::from(settings.map(|(path, value)| (path.to_owned(), value.to_owned())))
        };
        let (before, now) = (settings("64", "a"), settings("32", "b"));
        let changed = |set: &[&str]| {
            let set: Vec<String> = set.iter().map(|&assignment| assignment.into()).collect();
            changed_by(&set, &before, &now)
        };
        assert_eq!(
            changed(&["own.size=32", "data.name=b"]),
            ["own.size = 32 (was 64)"]
        );
        assert_eq!(changed(&["own={size=32, sizes=32}"]).len(), 2);
        assert!(changed(&["data.name=b"]).is_empty());
    }

    #[test]
    fn the_folder_that_a_run_has_learnt_from_is_found_whatever_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["parted/train/roses", "parted/test/roses", "whole/roses"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        std::fs::create_dir(path("linked")).unwrap();
        std::os::unix::fs::symlink(path("parted/train"), path("linked/train")).unwrap();
        let sections = |section: &str, key: &str, name: &str| -> Table {
            let text = format!("[{section}]\n{key} = {:?}", path(name));
            text.parse().unwrap()
        };
        let of_image_model = |name: &str| sections("data", "name", name);
        let of_project = |name: &str| sections("flowers", "folder", name);
        for (learnt, tested, expected) in [
            ("parted", "parted/train", true),
            ("parted", "parted/test", false),
            ("parted", "parted", false),
            ("linked", "linked/train", true),
            ("linked", "parted/train/roses", true),
            ("linked", "linked", false),
            ("whole", "whole", true),
            ("whole", "parted", false),
            ("gone", "gone", false),
        ] {
            for (before, now) in [
                (of_image_model(learnt), of_image_model(tested)),
                (of_project(learnt), of_project(tested)),
            ] {
                assert_eq!(
                    is_learnt_place(&before, &now, false),
                    expected,
                    "{learnt}, {tested}"
                );
            }
        }
        let shards = of_image_model("whole");
        assert!(!is_learnt_place(&shards, &shards, true));
        assert!(!is_learnt_place(&Table::new(), &Table::new(), false));
    }

    #[test]
    fn other_data_of_a_project_are_called_as_their_folder() {
        let project = |folder: &str| -> Table {
            let sections = format!("[flowers]\nfolder = {folder:?}");
            sections.parse().unwrap()
        };
        let name = |tested: &str| name_of_other_data(&project("data"), &project(tested));
        assert_eq!(name("../fresh").as_deref(), Some("fresh"));
        assert_eq!(name("data"), None);
        assert_eq!(name(".."), None);
        let own: Table = "[data]\nname = 'fresh'".parse().unwrap();
        assert_eq!(name_of_other_data(&Table::new(), &own), None);
        assert_eq!(name_of_other_data(&Table::new(), &Table::new()), None);
    }

    #[test]
    fn data_that_decide_a_setting_otherwise_are_refused() {
        let settings = |classes: &str| {
            let settings = [("own.width", "8"), ("own.classes", classes)];
            BTreeMap::from(settings.map(|(path, value)| (path.to_owned(), value.to_owned())))
        };
        let before = settings("[\"circle\", \"square\"]");
        require_settings_of_run(&before, &before).unwrap();
        let now = settings("[\"aaa\", \"circle\"]");
        let error = require_settings_of_run(&before, &now).unwrap_err();
        let expected = "by them own.classes is [\"aaa\", \"circle\"], and it was [\"circle\", \"square\"] in the training";
        assert!(error.to_string().contains(expected), "{error}");
        require_settings_of_run(&before, &BTreeMap::new()).unwrap_err();
        let with_name = |name: &str| BTreeMap::from([("data.name".to_owned(), name.to_owned())]);
        let moved = require_settings_of_run(&with_name("a"), &with_name("/data/a"));
        moved.expect("a task compares where its data are");
    }
}
