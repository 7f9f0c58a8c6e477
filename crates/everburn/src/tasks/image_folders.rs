//! Models that classify color images of any size, in one folder per class.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::prelude::*;
use everburn_datasets::{ImageAugmentation, ImageFolder, RgbBatcher, RgbItem};
use everburn_distributed::Augment;
use everburn_train::{
    BlocksOf, Classification, LabeledBatch, Loss, Predict, Predictor, Task, TaskData, TaskError,
    TrainingData, block_loss,
};
use serde::{Deserialize, Serialize};
use toml::Table;

use super::images::{ImageModel, PredictedClass, predicted_classes};

/// The number of classes before there are data: ImageNet's.
const IMAGENET_CLASSES: usize = 1000;

/// The share of test images, one of this many, where a folder has no test set.
const TEST_SHARE: usize = 10;

/// A folder of images, classified by a model `[B, 3, size, size]` to `[B, K]`.
///
/// The folder has `train/<class>/*.jpg` and `test/<class>/*.jpg` (or `val`), or the classes alone: then every tenth
/// image of a class is a test image.
///
/// ```
/// use everburn::models::resnet18::ResNet18Config;
/// use everburn::prelude::*;
/// use everburn::tasks::ImageFolders;
///
/// let init = |classes, device: &everburn::burn::prelude::Device| {
///     ResNet18Config::new().with_classes(classes).init(device)
/// };
/// let app = App::new().task("flowers", ImageFolders::new("flowers in folders", init));
/// ```
pub struct ImageFolders<M> {
    summary: &'static str,
    /// Builds the model for this many classes.
    init: fn(usize, &Device) -> M,
    preset: Table,
}

impl<M: ImageModel> ImageFolders<M> {
    /// A task with this line in `train --list`. `init` builds the model for a number of classes.
    pub fn new(summary: &'static str, init: fn(usize, &Device) -> M) -> Self {
        Self {
            summary,
            init,
            preset: Table::new(),
        }
    }

    /// Adds settings of a run that suit the model.
    #[must_use]
    pub fn with_preset(self, preset: Table) -> Self {
        Self { preset, ..self }
    }
}

/// The settings of a task on folders of images.
///
/// ```
/// use everburn::tasks::ImageFoldersConfig;
///
/// // In `config.toml` it is the section `[data]`.
/// let config: ImageFoldersConfig = toml::from_str("[data]\nname = 'flowers'\nsize = 128").unwrap();
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageFoldersConfig {
    data: FolderConfig,
}

/// Which images a run reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FolderConfig {
    /// The folder, as `--data` gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<PathBuf>,
    /// The folder, as `--data-dir` gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<PathBuf>,
    /// The height and width to which images are scaled, in pixels.
    size: usize,
    /// Random changes of the images to learn from: `crop,flip,color`.
    #[serde(skip_serializing_if = "ImageAugmentation::is_none")]
    augment: ImageAugmentation,
    /// The names of the classes; the data decide them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<String>,
}

impl Default for FolderConfig {
    fn default() -> Self {
        Self {
            name: None,
            folder: None,
            size: 224,
            augment: ImageAugmentation::default(),
            classes: Vec::new(),
        }
    }
}

impl FolderConfig {
    fn size(&self) -> [usize; 2] {
        [self.size, self.size]
    }

    fn folder(&self) -> Result<&Path, TaskError> {
        match (&self.name, &self.folder) {
            (Some(folder), None) | (None, Some(folder)) => Ok(folder),
            (None, None) => Err(TaskError::new("no folder of images is given").with_help(
                "name one with --data: it has a folder for each class, or train and test with these",
            )),
            (Some(_), Some(_)) => Err(TaskError::new(
                "--data and --data-dir both name the folder of images",
            )
            .with_help("leave one away")),
        }
    }

    /// The training and test set.
    fn open(&self) -> Result<(ImageFolder, ImageFolder), TaskError> {
        let folder = self.folder()?;
        let train = folder.join("train");
        if !train.is_dir() {
            return Ok(ImageFolder::open(folder, self.size())?.split(TEST_SHARE)?);
        }
        let test = ["test", "val"].map(|name| folder.join(name));
        let test = test.iter().find(|folder| folder.is_dir()).ok_or_else(|| {
            TaskError::new(format!(
                "{} has train, and neither test nor val",
                folder.display()
            ))
            .with_help("add a test set, or name the folder with the classes alone")
        })?;
        let train = ImageFolder::open(train, self.size())?;
        let test = ImageFolder::with_classes(test, self.size(), train.classes())?;
        Ok((train, test))
    }
}

impl<M: ImageModel> Task for ImageFolders<M> {
    type Config = ImageFoldersConfig;
    type Model = M;
    type Item = RgbItem;
    type Batch = LabeledBatch<4>;

    fn model(&self, config: &ImageFoldersConfig, device: &Device) -> Result<M, TaskError> {
        let classes = match config.data.classes.len() {
            0 => IMAGENET_CLASSES,
            classes => classes,
        };
        Ok((self.init)(classes, device))
    }

    fn data_decide_model(&self) -> bool {
        true
    }

    fn data(
        &self,
        config: &mut ImageFoldersConfig,
    ) -> Result<TaskData<RgbItem, Self::Batch>, TaskError> {
        let (train, test) = config.data.open()?;
        let folder = config.data.folder()?.display().to_string();
        // The run finds it from any working directory.
        for path in [&mut config.data.name, &mut config.data.folder] {
            *path = path.take().map(std::path::absolute).transpose()?;
        }
        let classes = train.classes().to_vec();
        if !config.data.classes.is_empty() && config.data.classes != classes {
            return Err(TaskError::new(format!(
                "{folder} has the classes {}, and the model was trained on {}",
                classes.join(", "),
                config.data.classes.join(", ")
            )));
        }
        config.data.classes.clone_from(&classes);
        let size = config.data.size;
        let augmentation = config.data.augment.clone();
        Ok(TaskData {
            description: format!(
                "data: {folder}, {} training and {} test images of {} classes, scaled to {size}x{size}{}",
                train.len(),
                test.len(),
                classes.len(),
                match augmentation.is_none() {
                    true => String::new(),
                    false => format!(", augmented by {augmentation}"),
                }
            ),
            class_names: classes,
            data: TrainingData {
                fingerprint: format!("{} {}", train.fingerprint(), test.fingerprint()),
                train: Arc::new(train),
                test: Arc::new(test),
                validation: None,
                batcher: Arc::new(RgbBatcher::imagenet()),
                weigh: None,
                augment: (!augmentation.is_none()).then(|| -> Augment<RgbItem> {
                    Arc::new(move |image, rng| augmentation.rgb(image, rng))
                }),
                name: "images".to_owned(),
                origin: folder,
            },
        })
    }

    fn loss(&self, _config: &ImageFoldersConfig, model: &M, batch: Self::Batch) -> Loss {
        block_loss::<M, Classification<4>>(model, batch)
    }

    fn summary(&self) -> String {
        self.summary.to_string()
    }

    fn sections(&self) -> &'static [&'static str] {
        &["data"]
    }

    fn local_settings(&self) -> &'static [&'static str] {
        &["data.name", "data.folder"]
    }

    fn preset(&self) -> Table {
        self.preset.clone()
    }

    fn blocks(&self) -> Option<BlocksOf<Self>> {
        Some(BlocksOf::new::<Classification<4>>(
            |_task, config: &ImageFoldersConfig, samples, device| {
                let [height, width] = config.data.size();
                Tensor::zeros([samples, 3, height, width], device)
            },
        ))
    }

    fn predictor(&self) -> Option<Predictor<Self>> {
        Some(Predictor::by_task())
    }
}

impl<M: ImageModel> Predict for ImageFolders<M> {
    type Prediction = PredictedClass;

    fn predict(
        &self,
        config: &ImageFoldersConfig,
        model: &M,
        (images, _classes): LabeledBatch<4>,
    ) -> Result<Vec<PredictedClass>, TaskError> {
        let logits = model.blocks().forward(model, images);
        predicted_classes(logits, &config.data.classes)
    }

    fn read(&self, config: &ImageFoldersConfig, file: &Path) -> Result<Vec<RgbItem>, TaskError> {
        Ok(RgbItem::read_all(file, config.data.size())?)
    }

    fn sample_name(&self, item: &RgbItem) -> Option<String> {
        Some(item.file.display().to_string())
    }
}
