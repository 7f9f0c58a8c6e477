//! The training and the test set of each kind of color images.

use std::path::Path;
use std::sync::Arc;

use burn_dataset::Dataset;

use super::view::{Grey, Renumbered, limited, mapped, mixed, numbers_in_order};
use super::{Channels, LoadedRgb, RgbRequest, SIZE, TEST_SHARE};
use crate::cifar::{CIFAR_10, CIFAR_100, CifarSet};
use crate::collection::check_hash;
use crate::download::{self, FetchError};
use crate::error::{damaged, refused};
use crate::files::{names, sha256_of};
use crate::image_folder::LeftOut;
use crate::locate::{self, SearchedFolder};
use crate::source::fetch;
use crate::tar_shards::TarFiles;
use crate::{
    Cifar, DataKind, DatasetDescription, DatasetError, ImageFolder, RgbItem, Surroundings,
    TarImages, TarShards, detect_for,
};

/// What others name the folder of validation images.
const OTHER_NAMES: [&str; 4] = ["valid", "validation", "dev", "eval"];

/// Two sets before they are limited.
pub(super) struct Parts {
    sets: [Arc<dyn Dataset<RgbItem>>; 2],
    validation: Option<Arc<dyn Dataset<RgbItem>>>,
    classes: Vec<String>,
    size: [usize; 2],
    kind: DataKind,
    name: String,
    origin: String,
    reason: String,
    fingerprint: String,
    train_fingerprint: String,
    test_fingerprint: String,
}

impl Parts {
    pub(super) fn finish(mut self, request: &RgbRequest) -> Result<LoadedRgb, DatasetError> {
        let [train, test] = self.sets;
        let test_alone = Arc::ptr_eq(&train, &test);
        let limits = [
            (request.train_limit, train.len()),
            (request.test_limit, test.len()),
        ];
        if self.kind == DataKind::Cifar
            && limits
                .iter()
                .any(|(limit, all)| limit.is_some_and(|limit| limit < *all))
        {
            // Earlier versions took them evenly from all. Other kinds have their order in the fingerprint.
            self.fingerprint += " the first ones";
        }
        let train = limited(train, request.train_limit, "training")?;
        let test = limited(test, request.test_limit, "test")?;
        let numbers = numbers_in_order(&self.classes, &request.classes);
        let numbers: Option<Arc<[usize]>> = numbers.map(Into::into);
        if numbers.is_some() {
            self.classes.clone_from(&request.classes);
        }
        let viewed = |set: Arc<dyn Dataset<RgbItem>>| -> Arc<dyn Dataset<RgbItem>> {
            let set = match request.channels {
                Channels::Rgb => set,
                Channels::Grey => mapped(set, Grey),
            };
            match &numbers {
                None => set,
                Some(numbers) => mapped(set, Renumbered(Arc::clone(numbers))),
            }
        };
        let [train, test] = [train, test].map(viewed);
        let [height, width] = self.size;
        let grey = match request.channels {
            Channels::Rgb => "",
            Channels::Grey => ", in grey",
        };
        Ok(LoadedRgb {
            description: DatasetDescription {
                name: self.name,
                origin: self.origin,
                reason: self.reason,
                train: match test_alone {
                    true => 0,
                    false => train.len(),
                },
                test: test.len(),
                unit: format!(
                    "images of {} classes, scaled to {height}x{width}{grey}",
                    self.classes.len()
                ),
            },
            train,
            validation: self.validation.map(viewed),
            test,
            classes: self.classes,
            size: self.size,
            kind: self.kind,
            fingerprint: self.fingerprint,
            train_fingerprint: self.train_fingerprint,
            test_fingerprint: self.test_fingerprint,
        })
    }
}

pub(super) fn from_path(path: &Path, request: &RgbRequest) -> Result<Parts, DatasetError> {
    let kinds = [DataKind::ImageFolder, DataKind::TarShards, DataKind::Cifar];
    let wanted = "images: a folder for each class, tar shards, or CIFAR";
    let kind = detect_for(path, &kinds, wanted)?;
    let parts = match kind {
        Some(DataKind::Cifar) => of_cifar(path, request, format!("taken for {}", DataKind::Cifar)),
        Some(DataKind::TarShards) => of_shards(path, request),
        _ => of_folder(path, request),
    }?;
    Ok(Parts {
        name: path.display().to_string(),
        ..parts
    })
}

fn of_folder(folder: &Path, request: &RgbRequest) -> Result<Parts, DatasetError> {
    let size = request.size.unwrap_or(SIZE);
    let train = Some(folder.join("train")).filter(|folder| folder.is_dir());
    let mut test = ["test", "val"].iter().map(|name| folder.join(name));
    let test = match &train {
        Some(_) => test.find(|folder| folder.is_dir()),
        // Without train, a folder with images is a class of this name.
        None => test.find(|folder| folder.is_dir() && has_folders(folder)),
    };
    let mut left_out = LeftOut::default();
    if train.is_some() || test.is_some() {
        left_out.beside_sets(folder, &["train", "val", "test"])?;
    }
    let mut validation = None;
    let is_split = train.is_none() && test.is_none() && !request.only_test;
    let (train, test) = match (train, test) {
        (None, None) if request.only_test => only_test(ImageFolder::open(folder, size)?),
        (None, None) => {
            let all = more_than_one_class(folder, ImageFolder::open(folder, size)?)?;
            left_out.add(all.left_out());
            let (train, test) = all.split(TEST_SHARE)?;
            (Arc::new(train), Arc::new(test))
        }
        (None, Some(test)) if request.only_test => only_test(ImageFolder::open(test, size)?),
        (Some(train), Some(test)) => {
            let train = more_than_one_class(folder, ImageFolder::open(train, size)?)?;
            let of_classes = |folder| ImageFolder::with_classes(folder, size, train.classes());
            let val = folder.join("val");
            if val != test && val.is_dir() && !request.only_test {
                validation = Some(Arc::new(of_classes(val)?));
            }
            let test = of_classes(test)?;
            (Arc::new(train), Arc::new(test))
        }
        (None, Some(test)) => {
            let problem = format!(
                "it has {} and no folder named train, for the training images",
                test.file_name().unwrap_or_default().display()
            );
            return Err(refused(folder, problem));
        }
        (Some(_), None) => return Err(no_test_set(folder)),
    };
    left_out.add(train.left_out());
    if !Arc::ptr_eq(&train, &test) {
        left_out.add(test.left_out());
        search_together(&train, &test, validation.as_deref());
    }
    let mut fingerprint = format!("{} {}", train.fingerprint(), test.fingerprint());
    let test_fingerprint = match is_split {
        true => String::new(),
        false => test.fingerprint().to_owned(),
    };
    let mut validated = String::new();
    if let Some(set) = &validation {
        left_out.add(set.left_out());
        fingerprint += &format!(" {}", set.fingerprint());
        validated = format!("; validation: the {} images of val", set.len());
    }
    Ok(Parts {
        classes: train.classes().to_vec(),
        fingerprint,
        train_fingerprint: train.fingerprint().to_owned(),
        test_fingerprint,
        sets: [train, test],
        validation: validation.map(|set| -> Arc<dyn Dataset<RgbItem>> { set }),
        size,
        kind: DataKind::ImageFolder,
        name: String::new(),
        origin: folder.display().to_string(),
        reason: format!(
            "taken for {}{validated}{}",
            DataKind::ImageFolder,
            left_out.describe(folder)
        ),
    })
}

/// A folder with train alone, or with a validation set under another name.
fn no_test_set(folder: &Path) -> DatasetError {
    let help = match OTHER_NAMES.iter().find(|name| folder.join(name).is_dir()) {
        Some(name) => format!("rename `{name}` to val"),
        None => "add a test set, or name the folder with the classes alone".to_owned(),
    };
    refused(
        folder,
        format!("it has train, and neither test nor val: {help}"),
    )
}

/// A damaged image of one set leads to those of all.
fn search_together(train: &ImageFolder, test: &ImageFolder, validation: Option<&ImageFolder>) {
    let sets = [Some(train), Some(test), validation];
    for (own, set) in sets.iter().enumerate() {
        let others = sets.iter().enumerate().filter(|(other, _)| *other != own);
        let others: Vec<_> = others.filter_map(|(_, set)| *set).collect();
        if let Some(set) = set {
            set.search_with(&others);
        }
    }
}

/// Refuses to learn of images that are all of one class: any model would be right.
fn more_than_one_class(folder: &Path, set: ImageFolder) -> Result<ImageFolder, DatasetError> {
    match set.classes() {
        [only] => {
            let problem = format!(
                "`{only}` is its only class, and there is nothing to learn of one: give each of two or more classes a folder"
            );
            Err(refused(folder, problem))
        }
        _ => Ok(set),
    }
}

fn has_folders(folder: &Path) -> bool {
    names(folder, Path::is_dir).is_ok_and(|folders| !folders.is_empty())
}

/// All images of a set, to test on and in place of training images.
fn only_test(all: ImageFolder) -> (Arc<ImageFolder>, Arc<ImageFolder>) {
    let all = Arc::new(all);
    (Arc::clone(&all), all)
}

fn of_shards(path: &Path, request: &RgbRequest) -> Result<Parts, DatasetError> {
    let size = request.size.unwrap_or(SIZE);
    let files = TarFiles::find(path)?;
    let train = TarImages::open(TarShards::open(&files.train)?, size, None)?;
    let classes = train.classes().to_vec();
    let numbers = train.class_numbers();
    let of_all = train.shards().fingerprint().to_owned();
    let mut fingerprint = format!("{of_all} in proportion");
    let (mut train_fingerprint, mut test_fingerprint) = (of_all.clone(), String::new());
    let count = files.train.len() + files.held_out.len();
    let all: Vec<usize> = (0..train.len()).collect();
    if files.held_out.is_empty() && !request.only_test && all.len() < TEST_SHARE {
        let problem = format!(
            "{} samples are fewer than {TEST_SHARE}, of which one becomes a test image",
            all.len()
        );
        return Err(damaged(path, "samples", problem));
    }
    let train: Arc<dyn Dataset<RgbItem>> = Arc::new(train);
    let sets: [Arc<dyn Dataset<RgbItem>>; 2] = match files.held_out.is_empty() {
        false => {
            let test = TarShards::open(&files.held_out)?;
            let test = TarImages::open(test, size, Some(&classes))?;
            test_fingerprint = test.shards().fingerprint().to_owned();
            fingerprint = format!("{fingerprint} {test_fingerprint}");
            let of_test = test.class_numbers();
            let all_of_test: Vec<usize> = (0..test.len()).collect();
            let test: Arc<dyn Dataset<RgbItem>> = Arc::new(test);
            [
                mixed(&train, &numbers, &all),
                mixed(&test, &of_test, &all_of_test),
            ]
        }
        true if request.only_test => {
            fingerprint = format!("{fingerprint} {of_all}");
            test_fingerprint = of_all.clone();
            let set = mixed(&train, &numbers, &all);
            [Arc::clone(&set), set]
        }
        true => {
            let is_test = |index: &usize| index % TEST_SHARE == TEST_SHARE - 1;
            let (of_test, of_train): (Vec<_>, Vec<_>) = all.into_iter().partition(is_test);
            // A run on all of them learns from more.
            train_fingerprint.clone_from(&fingerprint);
            [of_train, of_test].map(|chosen| mixed(&train, &numbers, &chosen))
        }
    };
    Ok(Parts {
        sets,
        validation: None,
        classes,
        size,
        kind: DataKind::TarShards,
        name: String::new(),
        origin: path.display().to_string(),
        reason: format!("taken for {}, {count} of them", DataKind::TarShards),
        fingerprint,
        train_fingerprint,
        test_fingerprint,
    })
}

fn of_cifar(path: &Path, request: &RgbRequest, reason: String) -> Result<Parts, DatasetError> {
    let archive = [CIFAR_10.archive, CIFAR_100.archive];
    let mut archive = archive.iter().map(|name| path.join(name));
    let file = archive.find(|file| file.is_file());
    let size = request.size.unwrap_or([32, 32]);
    let [train, test] = Cifar::open(file.as_deref().unwrap_or(path), size)?;
    let [of_train, of_test] = [train.fingerprint(), test.fingerprint()];
    Ok(Parts {
        classes: train.classes().to_vec(),
        name: train.name().to_owned(),
        fingerprint: format!("{of_train} {of_test}"),
        train_fingerprint: of_train,
        test_fingerprint: of_test,
        sets: [Arc::new(train), Arc::new(test)],
        validation: None,
        size,
        kind: DataKind::Cifar,
        origin: path.display().to_string(),
        reason,
    })
}

/// The archive from a data folder, or from a mirror.
pub(super) fn from_archive(
    set: &'static CifarSet,
    request: &RgbRequest,
    surroundings: &Surroundings,
) -> Result<Parts, DatasetError> {
    let mut places = Vec::new();
    for (folder, named_by) in locate::folders(set.name, request.data_dir.as_deref(), surroundings)?
    {
        let file = folder.join(set.archive);
        if file.is_file() {
            let found = sha256_of(&file)?;
            check_hash(&file, set.title, "the archive", set.sha256, &found)?;
            return of_cifar(&file, request, format!("found by {named_by}"));
        }
        places.push(SearchedFolder {
            folder,
            named_by,
            missing: vec![set.archive],
        });
    }
    let fetched = fetch(
        set.name,
        (request.download, request.data_dir.as_deref()),
        surroundings,
        set.mirrors,
        |mirrors, folder| download::fetch_archive(set.archive, set.sha256, mirrors, folder),
    );
    match fetched {
        Ok((folder, mirror)) => {
            let file = folder.join(set.archive);
            of_cifar(&file, request, format!("downloaded from {mirror}"))
        }
        Err(FetchError::Found(error)) => Err(error),
        Err(error) => {
            let reason = format!("{} was not found and could not be fetched", set.title);
            let problem = format!(
                "{reason}\n{}  download: {error}\nName a folder that holds {} with --data-dir or in EVERBURN_DATA_DIR \
                 (sub-folder '{}'), or the file with --data",
                locate::listed(&places),
                set.archive,
                set.name
            );
            Err(DatasetError::NotFound { problem, reason })
        }
    }
}
