//! Folders of images for a pretrained model: its classes and statistics, and how it comes and goes.

use std::collections::BTreeMap;
use std::path::Path;

use everburn_datasets::{Channels, LoadedRgb, RgbBatcher};
use everburn_train::{OtherClasses, Patterns, Pretrained, StateDictLayout, TaskError};
use serde_json::Value;

use super::input::{IMAGENET_SIZE, Sides, StemChoice};
use super::preprocessing::Preprocessing;
use super::{FolderConfig, ImageFolders, ImageFoldersConfig};
use crate::tasks::images::ImageModel;

/// The most classes of a model that a file of weights decides: ImageNet has 21,841 in all.
const MOST_CLASSES: usize = 100_000;

/// The most classes or files that are named in an error.
const MOST_NAMED: usize = 10;

impl FolderConfig {
    fn is_named(&self) -> bool {
        self.name.is_some() || self.folder.is_some()
    }

    /// The names of the classes in their order, which data may not change: none if they have numbers.
    pub(super) fn named_classes(&self) -> Vec<String> {
        match are_numbered(&self.classes) {
            true => Vec::new(),
            false => self.classes.clone(),
        }
    }

    /// The statistics by which pixels are normalised.
    pub(super) fn batcher(&self) -> RgbBatcher {
        let of = |own: Option<[f64; 3]>, other: [f32; 3]| {
            own.map_or(other, |own| own.map(|number| number as f32))
        };
        let RgbBatcher { mean, std } = RgbBatcher::imagenet();
        RgbBatcher {
            mean: of(self.mean, mean),
            std: of(self.std, std),
        }
    }

    /// The mean of red, green and blue, and their standard deviations, as they are set or ImageNet's.
    fn statistics(&self) -> [[f64; 3]; 2] {
        // Of an f32, the digits that a person would write.
        let digits =
            |numbers: [f32; 3]| numbers.map(|number| number.to_string().parse().unwrap_or(0.0));
        let RgbBatcher { mean, std } = RgbBatcher::imagenet();
        [
            self.mean.unwrap_or_else(|| digits(mean)),
            self.std.unwrap_or_else(|| digits(std)),
        ]
    }
}

/// These classes after what they are, or nothing where there are none.
fn listed(what: &str, classes: &str) -> String {
    match classes {
        "" => String::new(),
        classes => format!("; {what}: {classes}"),
    }
}

/// How many classes the layer `head` of a file scores.
fn rows_of(head: &str, shapes: &BTreeMap<String, Vec<usize>>) -> Result<Option<usize>, TaskError> {
    let of = |part: &str| {
        let (name, nested) = (format!("{head}.{part}"), format!(".{head}.{part}"));
        let mut found = shapes.iter();
        let found = found.find(|(it, _)| **it == name || it.ends_with(&nested));
        found.map(|(_, shape)| &**shape)
    };
    let classes = match (of("weight"), of("bias")) {
        // It is transposed, and refused with the others.
        (Some([_, columns]), Some([biases])) if columns == biases => *columns,
        (Some([rows, _]), _) => *rows,
        _ => return Ok(None),
    };
    match classes {
        1..=MOST_CLASSES => Ok(Some(classes)),
        _ => Err(TaskError::new(format!(
            "{head}.weight of the file has {classes} rows, and a model 1 to {MOST_CLASSES} classes"
        ))),
    }
}

/// Whether classes have numbers in place of names, as those of a file of weights.
fn are_numbered(classes: &[String]) -> bool {
    let mut numbered = classes.iter().enumerate();
    numbered.all(|(number, name)| *name == number.to_string())
}

/// Some names, and the number of the others.
pub(super) fn named(classes: &[String]) -> String {
    match classes.len().checked_sub(MOST_NAMED) {
        None | Some(0) => classes.join(", "),
        Some(more) => format!("{} and {more} more", classes[..MOST_NAMED].join(", ")),
    }
}

impl<M: ImageModel> ImageFolders<M> {
    /// How images become numbers, which no tensor shows: by their keys, with the values that are used.
    fn unshown_of_images(&self, config: &ImageFoldersConfig) -> Vec<(String, String)> {
        let [mean, std] = config.data.statistics();
        let mut unshown = vec![
            ("data.mean".to_owned(), format!("{mean:?}")),
            ("data.std".to_owned(), format!("{std:?}")),
        ];
        // Some models take one size alone.
        if let Ok(None) = self.architecture.image_size(&config.models) {
            let size = match self.size(config) {
                [height, width] if height == width => height.to_string(),
                sides => format!("{sides:?}"),
            };
            unshown.push(("data.size".to_owned(), size));
        }
        unshown
    }

    /// Refuses data with other classes than the model has.
    pub(super) fn check_classes(
        &self,
        config: &ImageFoldersConfig,
        loaded: &LoadedRgb,
        only_test: bool,
    ) -> Result<(), TaskError> {
        let (folder, found) = (&loaded.description.name, &loaded.classes);
        let known = &config.data.classes;
        if are_numbered(known) && known.len() == found.len() {
            return Ok(()); // the data name them
        }
        let set = known.is_empty();
        let reason = match self.architecture.classes(&config.models) {
            _ if !known.is_empty() && known != found => format!(
                "{folder} has the classes {}, and the model was trained on {}",
                named(found),
                named(known)
            ),
            Some(count) if count != found.len() => format!(
                "{folder} has {} classes, and the model {count}",
                found.len()
            ),
            _ => return Ok(()),
        };
        let error = TaskError::new(reason);
        let without = |all: &[String], others: &[String]| {
            let missing = all.iter().filter(|class| !others.contains(class));
            named(&missing.cloned().collect::<Vec<_>>())
        };
        let head = self.architecture.head();
        let differing = [
            ("missing", known, found),
            ("not of the model", found, known),
        ]
        .map(|(what, all, others)| listed(what, &without(all, others)))
        .concat();
        let other = OtherClasses {
            needed: format!("a folder for each class of the model and no other{differing}"),
            head: head.map(|head| format!("{head}.*")),
        };
        let help = match head {
            _ if only_test => Some(other.help_of_test()),
            None => None,
            Some(head) => {
                // Nobody can know whether a pretrained model or a flag has said it.
                let leave_out = match self.section().filter(|_| set) {
                    Some(section) => {
                        format!("leave {section}.classes out if it was set: the data decide it; ")
                    }
                    None => String::new(),
                };
                Some(format!(
                    "{leave_out}a training from pretrained weights gets a new head for them by --init-skip '{head}.*'{}",
                    if set { "" } else { &*differing }
                ))
            }
        };
        let error = error.with_other_classes(other);
        Err(match help {
            None => error,
            Some(help) => error.with_help(help),
        })
    }
}

impl<M: ImageModel> Pretrained for ImageFolders<M> {
    fn adopt(
        &self,
        folder: &Path,
        config_json: &Value,
        skip: &Patterns,
    ) -> Result<Option<ImageFoldersConfig>, TaskError> {
        let Some(adopted) = self.architecture.adopt(folder, config_json, skip)? else {
            return Ok(None);
        };
        let Preprocessing { size, mean, std } = Preprocessing::read(folder, adopted.channels)?;
        let only = adopted.image_size.map(|side| [side, side]);
        let own = size.or(only).unwrap_or(IMAGENET_SIZE);
        if let Some([only, _]) = only.filter(|only| *only != own) {
            let [height, width] = own;
            return Err(TaskError::new(format!(
                "preprocessor_config.json: size is {height} x {width}, and the model of config.json takes images of {only} x \
                 {only} pixels"
            )));
        }
        Ok(Some(ImageFoldersConfig {
            data: FolderConfig {
                size: Some(Sides::of(own)),
                channels: match adopted.channels {
                    1 => Channels::Grey,
                    _ => Channels::Rgb,
                },
                stem: StemChoice::of(adopted.stem),
                mean,
                std,
                classes: adopted.classes,
                ..FolderConfig::default()
            },
            models: adopted.sections,
        }))
    }

    fn config_json(&self, config: &ImageFoldersConfig) -> Result<Value, TaskError> {
        let classes = &config.data.classes;
        let input = self.input(config);
        self.architecture
            .config_json(&config.models, &input, classes)
    }

    fn files_beside(
        &self,
        config: &ImageFoldersConfig,
    ) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
        let statistics = config.data.statistics();
        let channels = config.data.channels.count();
        let json = Preprocessing::to_json(self.size(config), channels, statistics);
        let json = format!("{json:#}\n").into_bytes();
        Ok(vec![("preprocessor_config.json".to_string(), json)])
    }

    fn adopt_shapes(
        &self,
        config: &mut ImageFoldersConfig,
        shapes: &BTreeMap<String, Vec<usize>>,
    ) -> Result<bool, TaskError> {
        if config.data.classes.is_empty() {
            // Classes have names where data are named.
            let Some(head) = self.architecture.head().filter(|_| !config.data.is_named()) else {
                return Ok(false);
            };
            // A file without the head is refused with all that it lacks.
            let classes = rows_of(head, shapes)?.unwrap_or(0);
            config.data.classes = (0..classes).map(|class| class.to_string()).collect();
        }
        config.data.size = Some(Sides::of(self.size(config)));
        Ok(true)
    }

    fn layout(&self, config: &ImageFoldersConfig) -> StateDictLayout {
        let mut layout = self.architecture.layout(&config.models);
        layout.unshown.extend(self.unshown_of_images(config));
        layout
    }
}
