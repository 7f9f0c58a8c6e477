//! The images that a model is built for: by the data, the settings and what the model takes.

use std::fmt;

use everburn_datasets::{DataKind, LoadedRgb, RgbItem};
use everburn_models::resnet50::Stem;
use everburn_train::TaskError;
use serde::{Deserialize, Serialize};

use super::architecture::OwnStem;
use super::{ImageFolders, ImageFoldersConfig};
use crate::tasks::images::ImageModel;

/// Images whose sides are at most this need a small stem: a large one would leave one pixel of 32 for the last stage.
const SMALL: usize = 40;

/// The height and width of images before there are data: those of ImageNet's models.
pub(super) const IMAGENET_SIZE: [usize; 2] = [224, 224];

/// The images that a model of [`ImageFolders`] is built for.
///
/// ```
/// use everburn::models::resnet50::Stem;
/// use everburn::tasks::ImageInput;
///
/// let input = ImageInput { classes: 10, channels: 3, size: [32, 32], stem: Stem::Cifar };
/// assert_eq!(input.size.iter().product::<usize>(), 1024);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInput {
    /// How many classes there are.
    pub classes: usize,
    /// 3, or 1 of grey images.
    pub channels: usize,
    /// Height and width.
    pub size: [usize; 2],
    /// The beginning of a residual net that suits them: a small one for CIFAR, or as `data.stem` says.
    pub stem: Stem,
}

/// Height and width; one number is both.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number of pixels, or [height, width]"
)]
pub(super) enum Sides {
    Both(usize),
    HeightAndWidth([usize; 2]),
}

impl Sides {
    pub(super) fn of([height, width]: [usize; 2]) -> Self {
        match height == width {
            true => Self::Both(height),
            false => Self::HeightAndWidth([height, width]),
        }
    }

    pub(super) fn sides(self) -> [usize; 2] {
        match self {
            Self::Both(side) => [side, side],
            Self::HeightAndWidth(sides) => sides,
        }
    }
}

/// How a residual net begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StemChoice {
    /// Small for CIFAR, large for all else.
    #[default]
    Auto,
    /// For images of 32 x 32 pixels.
    Small,
    /// For images of 224 x 224 pixels.
    Large,
}

impl StemChoice {
    /// The choice of a model's stem, where there is one.
    pub(super) fn of(stem: Option<Stem>) -> Self {
        match stem {
            Some(Stem::ImageNet) => Self::Large,
            Some(Stem::Cifar) => Self::Small,
            Some(Stem::Mnist) | None => Self::Auto,
        }
    }

    fn stem(self) -> Stem {
        match self {
            Self::Small => Stem::Cifar,
            Self::Auto | Self::Large => Stem::ImageNet,
        }
    }
}

impl fmt::Display for StemChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl<M: ImageModel> ImageFolders<M> {
    /// Height and width of the images: those of the settings, else the only ones that the model takes, else ImageNet's.
    pub(super) fn size(&self, config: &ImageFoldersConfig) -> [usize; 2] {
        // What cannot be built was refused.
        let only = self.architecture.image_size(&config.models).ok().flatten();
        let sides = config.data.size.or(only.map(Sides::Both));
        sides.map_or(IMAGENET_SIZE, Sides::sides)
    }

    /// The images that the model is built for.
    pub(super) fn input(&self, config: &ImageFoldersConfig) -> ImageInput {
        let own = self.architecture.stem(&config.models);
        ImageInput {
            classes: match config.data.classes.len() {
                0 => self.architecture.classes_without_data(&config.models),
                classes => classes,
            },
            channels: config.data.channels.count(),
            size: self.size(config),
            stem: match own {
                Ok(OwnStem::Only(stem)) => stem,
                _ => config.data.stem.stem(),
            },
        }
    }

    /// Refuses images that the model does not take.
    pub(super) fn check_input(&self, config: &ImageFoldersConfig) -> Result<(), TaskError> {
        let [height, width] = self.size(config);
        let most = RgbItem::MOST_PIXELS_A_SIDE;
        if ![height, width].iter().all(|side| (1..=most).contains(side)) {
            return Err(TaskError::new(format!(
                "data.size is {height} x {width} pixels: expected 1 to {most} a side"
            )));
        }
        if let Some(only) = self.architecture.image_size(&config.models)?
            && [height, width] != [only, only]
        {
            return Err(TaskError::new(format!(
                "images are scaled to {height} x {width} pixels, and the model takes {only} x {only}"
            ))
            .with_help(self.size_help(config, only)));
        }
        let channels = config.data.channels.count();
        if let Some(only) = self.architecture.channels(&config.models)?
            && only != channels
        {
            let named = |channels| match channels {
                1 => "1 channel (grey)".to_string(),
                3 => "3 channels (color)".to_string(),
                other => format!("{other} channels"),
            };
            let (images, model) = (named(channels), named(only));
            return Err(TaskError::new(format!(
                "images have {images}, and the model takes {model}"
            ))
            .with_help(match only {
                1 => "set data.channels=grey".to_string(),
                3 => "set data.channels=rgb, or begin with a model of grey images".to_string(),
                _ => "images have 3 channels, or 1 with data.channels=grey".to_string(),
            }));
        }
        self.check_stem(config)
    }

    /// Which settings make images and a model of one size fit each other.
    fn size_help(&self, config: &ImageFoldersConfig, only: usize) -> String {
        let [height, width] = self.size(config);
        match self.section() {
            Some(section) if height == width => format!(
                "set data.size={only}; or, for a model of new weights, {section}.image_size={height} as well as data.size={height}"
            ),
            _ => format!("set data.size={only}"),
        }
    }

    fn check_stem(&self, config: &ImageFoldersConfig) -> Result<(), TaskError> {
        let choice = config.data.stem;
        if choice == StemChoice::Auto {
            return Ok(());
        }
        match self.architecture.stem(&config.models)? {
            OwnStem::None => Err(TaskError::new(format!(
                "data.stem is {choice}, and this model has no stem: only residual nets have one"
            ))
            .with_help("leave data.stem away")),
            OwnStem::Only(own) if own != choice.stem() => Err(TaskError::new(format!(
                "data.stem is {choice}, and the section of the model has the stem {own:?}"
            ))
            .with_help("leave one of the two away")),
            _ => Ok(()),
        }
    }

    /// Chooses the stem that suits the data, where the model has one and the choice is open.
    pub(super) fn keep_stem(
        &self,
        config: &mut ImageFoldersConfig,
        loaded: &LoadedRgb,
    ) -> Result<(), TaskError> {
        let small = loaded.kind == DataKind::Cifar && loaded.size.iter().all(|side| *side <= SMALL);
        let is_open = self.architecture.stem(&config.models)? == OwnStem::Any;
        if small && is_open && config.data.stem == StemChoice::Auto {
            config.data.stem = StemChoice::Small;
        }
        Ok(())
    }
}
