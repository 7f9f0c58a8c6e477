//! The section `[data]` of a task on images.

use std::path::{Path, PathBuf};

use everburn_datasets::{
    Channels, DataChoice, ImageAugmentation, LoadedRgb, RgbRequest, UnknownChoice, is_url,
};
use everburn_train::TaskError;
use serde::{Deserialize, Serialize};

use super::input::{Sides, StemChoice};

/// Which images a run reads.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FolderConfig {
    /// A folder, tar shards, or the name of a set, as `--data` gives it.
    pub(super) name: Option<String>,
    /// As `--data-dir` gives it: the folder of images, or where a named set is.
    pub(super) folder: Option<PathBuf>,
    pub(super) train_samples: Option<usize>,
    pub(super) test_samples: Option<usize>,
    /// The height and width to which images are scaled, in pixels; the model or the data decide them if absent.
    pub(super) size: Option<Sides>,
    /// Color or grey.
    #[serde(skip_serializing_if = "crate::tasks::is_default")]
    pub(super) channels: Channels,
    /// How a residual net begins.
    #[serde(skip_serializing_if = "crate::tasks::is_default")]
    pub(super) stem: StemChoice,
    /// The mean of red, green and blue, from 0 to 1; ImageNet's if absent.
    pub(super) mean: Option<[f64; 3]>,
    /// Their standard deviations.
    pub(super) std: Option<[f64; 3]>,
    /// Random changes of the images to learn from: `crop,flip,color`.
    #[serde(skip_serializing_if = "ImageAugmentation::is_none")]
    pub(super) augment: ImageAugmentation,
    /// The names of the classes; the data decide them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) classes: Vec<String>,
}

impl FolderConfig {
    /// What the flags ask for.
    pub(super) fn request(&self) -> Result<RgbRequest, TaskError> {
        let request = RgbRequest {
            size: self.size.map(Sides::sides),
            channels: self.channels,
            train_limit: self.train_samples,
            test_limit: self.test_samples,
            classes: self.named_classes(),
            ..RgbRequest::default()
        };
        let named = self
            .name
            .as_ref()
            .map(|name| (name, name.parse::<DataChoice>()));
        match (named, &self.folder) {
            (Some((_, Ok(choice))), folder) => Ok(RgbRequest {
                choice,
                data_dir: folder.clone(),
                ..request
            }),
            (Some((name, Err(UnknownChoice { nearest: Some(meant), .. }))), None)
                if [DataChoice::Cifar10, DataChoice::Cifar100].contains(&meant)
                    && !Path::new(name).exists() =>
            {
                let error = format!("there is no set of images called {name}, and no file or folder {name}");
                Err(TaskError::new(error).with_help(format!("did you mean --data {meant}?")))
            }
            (Some((path, Err(_))), None) => Ok(RgbRequest {
                file: Some(path.into()),
                ..request
            }),
            (None, Some(folder)) => Ok(RgbRequest {
                file: Some(folder.clone()),
                ..request
            }),
            (None, None) => Err(TaskError::new("no folder of images is given").with_help(
                "name one with --data: it has a folder for each class, or train and test with these; or tar shards; or \
                 cifar10 or cifar100",
            )),
            (Some(_), Some(_)) => Err(TaskError::new(
                "--data and --data-dir both name the folder of images",
            )
            .with_help("leave one away")),
        }
    }

    /// What the data are called where a run is named: the last part of their path.
    pub(super) fn short_name(&self) -> String {
        let path = self.name.as_deref().map(Path::new);
        let last = path.or(self.folder.as_deref()).and_then(Path::file_name);
        last.map_or("images".to_owned(), |last| last.display().to_string())
    }

    /// Keeps what the data decide, and paths that a run finds from any working directory.
    pub(super) fn keep(&mut self, loaded: &LoadedRgb) -> Result<(), TaskError> {
        self.classes.clone_from(&loaded.classes);
        if let Some(name) = &mut self.name
            && name.parse::<DataChoice>().is_err()
        {
            *name = from_anywhere(Path::new(name))?.display().to_string();
        }
        let folder = self.folder.as_deref();
        self.folder = folder.map(from_anywhere).transpose()?;
        self.size = Some(Sides::of(loaded.size));
        Ok(())
    }
}

/// A path that leads to the same place from any working directory. An address does so anyway.
fn from_anywhere(path: &Path) -> std::io::Result<PathBuf> {
    match is_url(path) {
        true => Ok(path.to_owned()),
        false => std::path::absolute(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_a_sets_name_leads_to_it() {
        let named = |name: &str| FolderConfig {
            name: Some(name.to_owned()),
            ..FolderConfig::default()
        };
        let error = named("cifar").request().unwrap_err();
        let expected = "there is no set of images called cifar, and no file or folder cifar";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.help(), Some("did you mean --data cifar10?"));
        assert!(
            named("photos").request().is_ok(),
            "a folder that may be anywhere"
        );
    }

    #[test]
    fn the_folder_names_the_data_by_its_last_part() {
        let data = |name: Option<&str>, folder: Option<&str>| FolderConfig {
            name: name.map(str::to_owned),
            folder: folder.map(PathBuf::from),
            ..FolderConfig::default()
        };
        assert_eq!(
            data(Some("/home/me/flowers/"), None).short_name(),
            "flowers"
        );
        assert_eq!(data(None, Some("/data/birds")).short_name(), "birds");
        let shards = "https://host.org/cats/shards-{000..003}.tar";
        assert_eq!(
            data(Some(shards), None).short_name(),
            "shards-{000..003}.tar"
        );
        assert_eq!(data(None, Some("/")).short_name(), "images");
    }
}
