//! What a folder of images has beside its images, and is not read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::DatasetError;
use crate::files::names;
use crate::rgb_item::{is_image, left_out};

/// Why something is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    OtherFile,
    FolderInClass,
    OutsideClasses,
    BesideSets,
    DeadLink,
}

impl Reason {
    fn text(self) -> &'static str {
        match self {
            Self::OtherFile => "files that are neither JPEG nor PNG",
            Self::FolderInClass => "folders inside the folder of a class",
            Self::OutsideClasses => "images outside the folders of classes",
            Self::BesideSets => "folders beside train, val and test",
            Self::DeadLink => "links that lead nowhere",
        }
    }
}

/// What is left out: of each reason how much, and the first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LeftOut(BTreeMap<Reason, (usize, PathBuf)>);

impl LeftOut {
    fn note(&mut self, reason: Reason, path: PathBuf) {
        self.0.entry(reason).or_insert((0, path)).0 += 1;
    }

    /// Adds what another part of the same data leaves out.
    pub(crate) fn add(&mut self, other: &Self) {
        for (reason, (count, first)) in &other.0 {
            self.0
                .entry(*reason)
                .or_insert_with(|| (0, first.clone()))
                .0 += count;
        }
    }

    /// The images of a class in its folder, by their names; what else is there is noted.
    pub(super) fn images_of_class(&mut self, folder: &Path) -> Result<Vec<String>, DatasetError> {
        let mut images = Vec::new();
        for name in names(folder, |_| true)? {
            let path = folder.join(&name);
            if path.is_dir() {
                self.note(Reason::FolderInClass, path);
            } else if !path.exists() {
                self.note(Reason::DeadLink, path);
            } else if !is_image(&path) {
                self.note(Reason::OtherFile, path);
            } else if path.is_file() {
                images.push(name);
            }
        }
        Ok(images)
    }

    /// Notes what is beside the folders of classes.
    pub(super) fn beside_classes(&mut self, folder: &Path) -> Result<(), DatasetError> {
        for name in names(folder, |path| !path.is_dir())? {
            let path = folder.join(name);
            if !path.exists() {
                self.note(Reason::DeadLink, path);
            } else if is_image(&path) {
                self.note(Reason::OutsideClasses, path);
            }
        }
        Ok(())
    }

    /// Notes what is beside the folders of sets, of which `sets` are read.
    pub(crate) fn beside_sets(&mut self, folder: &Path, sets: &[&str]) -> Result<(), DatasetError> {
        for name in names(folder, Path::is_dir)? {
            if !sets.contains(&name.as_str()) {
                self.note(Reason::BesideSets, folder.join(name));
            }
        }
        self.beside_classes(folder)
    }

    /// In words, each after a semicolon, with paths as `folder` has them.
    pub(crate) fn describe(&self, folder: &Path) -> String {
        let described = self.0.iter().map(|(reason, (count, first))| {
            let first = first.strip_prefix(folder).unwrap_or(first);
            format!("; {}", left_out(reason.text(), *count, first.display()))
        });
        described.collect()
    }
}
