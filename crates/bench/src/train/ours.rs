//! Our side: `everburn train` as its user runs it, measured by its own report.

use std::path::{Path, PathBuf};
use std::process::Command;

use everburn::launch::keep_freed_memory;
use everburn_record::TrainingReport;

use super::options::Case;
use crate::failure::Failure;

/// Little validation and testing: neither is part of what is measured, and both take time.
const VALIDATION_IMAGES: usize = 1000;
const VALIDATION_TEXTS: usize = 16;
const TEST_SAMPLES: &str = "100";

/// Fewer training samples than any data set has; epochs are counted by it so that they suffice.
const IMAGES_OF_AN_EPOCH: usize = 20_000;
const TEXTS_OF_AN_EPOCH: usize = 100;

/// The files that training reads, packed or not.
const IMAGES: [&str; 2] = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];

/// Which data to train on, as the flags of `everburn train` name it.
#[derive(Debug, Clone)]
pub(super) struct Data {
    pub(super) name: String,
    pub(super) folder: Option<PathBuf>,
}

/// The command line that trains `case` for `steps` steps and reports in `run_dir`.
pub(super) fn command(
    program: &Path,
    case: &Case,
    steps: usize,
    data: &Data,
    run_dir: &Path,
) -> Command {
    let (validation, of_an_epoch) = match case.tokens() {
        None => (VALIDATION_IMAGES, IMAGES_OF_AN_EPOCH),
        Some(_) => (VALIDATION_TEXTS, TEXTS_OF_AN_EPOCH),
    };
    let epochs = (steps * case.batch).div_ceil(of_an_epoch);
    let mut command = Command::new(program);
    keep_freed_memory(&mut command);
    command.arg("train").arg(&case.model).arg("--no-dashboard");
    for (flag, number) in [
        ("--ranks", case.ranks),
        ("--threads-per-rank", case.threads),
        ("--batch-size", case.batch),
        ("--steps", steps),
        ("--epochs", epochs),
        ("--validation-samples", validation),
    ] {
        command.arg(flag).arg(number.to_string());
    }
    command
        .args(["--test-samples", TEST_SAMPLES])
        .arg("--run-dir")
        .arg(run_dir)
        .args(["--data", &data.name]);
    if let Some(folder) = &data.folder {
        command.arg("--data-dir").arg(folder);
    }
    command
}

/// Refuses the report of a run of `case` that did something else than `steps` steps: it is no measurement.
pub(super) fn check(report: &TrainingReport, case: &Case, steps: usize) -> Result<(), Failure> {
    let broken = |what: String| Err(Failure::new(format!("report.json of {case}: {what}")));
    for (field, found, wanted) in [
        ("steps", report.steps, steps),
        ("world_size", report.world_size, case.ranks),
        ("batch_size", report.batch_size, case.batch),
    ] {
        if found != wanted {
            return broken(format!("`{field}` is {found}, {wanted} was wanted"));
        }
    }
    match report.samples_per_second > 0.0 {
        true => Ok(()),
        false => broken("no positive `samples_per_second`".into()),
    }
}

/// The file of text or the folder of the image files, where the data came from there: their origin
/// begins with it.
pub(super) fn data_path(report: &TrainingReport) -> Option<PathBuf> {
    let path = PathBuf::from(report.dataset_origin.split(": ").next()?);
    let holds_images = |folder: &Path| {
        IMAGES
            .iter()
            .all(|name| folder.join(name).exists() || folder.join(format!("{name}.gz")).exists())
    };
    Some(path).filter(|path| path.is_absolute() && (path.is_file() || holds_images(path)))
}

#[cfg(test)]
mod tests {
    use everburn_tests::{AssertContains, words_of};

    use super::*;
    use crate::train::options::tests::case;

    fn report(origin: &str) -> TrainingReport {
        TrainingReport {
            dataset: "mnist".into(),
            dataset_origin: origin.into(),
            samples_per_second: 2803.5,
            world_size: 2,
            batch_size: 64,
            steps: 100,
            ..TrainingReport::default()
        }
    }

    fn path(origin: &str) -> Option<PathBuf> {
        let report = report(origin);
        check(&report, &case(), 100).unwrap();
        data_path(&report)
    }

    #[test]
    fn data_come_from_a_folder_that_holds_images_or_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let origin = format!("{}: found", folder.path().display());
        assert_eq!(path(&origin), None);
        std::fs::write(folder.path().join(format!("{}.gz", IMAGES[0])), "").unwrap();
        std::fs::write(folder.path().join(IMAGES[1]), "").unwrap();
        assert_eq!(path(&origin), Some(folder.path().into()));
        let file = folder.path().join(IMAGES[1]);
        assert_eq!(path(&format!("{}: found", file.display())), Some(file));
        assert_eq!(path("drawn from seed 1: no file"), None);
    }

    #[test]
    fn a_report_of_something_else_is_no_measurement() {
        let complaint = |report: TrainingReport| {
            let failure = check(&report, &case(), 100).unwrap_err();
            failure.to_string()
        };
        let (mut longer, mut silent) = (report("/: found"), report("/: found"));
        (longer.steps, silent.samples_per_second) = (200, 0.0);
        let short = complaint(longer);
        assert!(
            short.starts_with("report.json of mnist, 2 ranks x 1 thread"),
            "{short}"
        );
        assert!(complaint(silent).contains("`samples_per_second`"));
    }

    #[test]
    fn there_are_epochs_enough_for_the_steps() {
        let data = Data {
            name: "auto".into(),
            folder: Some("/data".into()),
        };
        let command = command(Path::new("e"), &case(), 1000, &data, Path::new("/run"));
        let line = words_of(&command);
        assert!(
            line.starts_with("train mnist --no-dashboard --ranks 2"),
            "{line}"
        );
        line.assert_contains(["--batch-size 64 --steps 1000 --epochs 4 --validation-samples 1000"]);
        assert!(
            line.ends_with("--run-dir /run --data auto --data-dir /data"),
            "{line}"
        );
    }
}
