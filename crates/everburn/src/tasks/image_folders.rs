//! Models that classify images of any size: in one folder per class, in tar shards, or CIFAR.

mod architecture;
mod folder_config;
mod hugging_face;
mod input;
mod preprocessing;
mod pretrained;

use std::path::Path;
use std::sync::Arc;

use burn::prelude::*;
use everburn_datasets::{
    Channels, DataKind, ImageAugmentation, MixBatcher, MixedClasses, RgbItem, RgbRequest,
    check_image_files, load_rgb,
};
use everburn_distributed::Augment;
use everburn_train::{
    BlocksOf, Classification, DataFingerprint, Loss, Predict, Predictor, PretrainedFormat, Task,
    TaskData, TaskError, TrainingData, block_loss,
};
use serde::{Deserialize, Serialize};
use toml::Table;

use self::architecture::{Architecture, ByInput, ByNumbers, Sections};
use self::folder_config::FolderConfig;
pub use self::hugging_face::PretrainedImageModel;
pub use self::input::ImageInput;
use self::input::Sides;
use super::check_dropout_over_ranks;
use super::images::{ImageModel, PredictedClass, augmented, predicted_classes};

/// The images that all ranks together read at once where no gradients are needed, if they have the size of ImageNet's: the
/// activations of more would fill the memory.
const EVALUATION_IMAGES: usize = 64;

/// Images, classified by a model `[B, C, height, width]` to `[B, K]`.
///
/// They are a folder with `train/<class>/*.jpg` and `test/<class>/*.jpg` (or `val`; `val` beside
/// `test` is validated on), or with the classes alone: then every tenth image of a class is a test image. Or they are tar shards, or `cifar10` and `cifar100`.
///
/// ```
/// use everburn::models::resnet18::ResNet18Config;
/// use everburn::prelude::*;
/// use everburn::tasks::{ImageFolders, ImageInput};
///
/// let init = |input: &ImageInput, device: &everburn::burn::prelude::Device| {
///     ResNet18Config::new().with_classes(input.classes).with_stem(input.stem).init(device)
/// };
/// let app = App::new().task("flowers", ImageFolders::new("flowers in folders", init));
/// ```
pub struct ImageFolders<M> {
    summary: &'static str,
    architecture: Box<dyn Architecture<M>>,
    preset: Table,
}

impl<M: ImageModel> ImageFolders<M> {
    /// A task with this line in `train --list`. `init` builds the model for the images. A thread of each rank decodes
    /// images, unless the preset or the user says otherwise.
    pub fn new(summary: &'static str, init: fn(&ImageInput, &Device) -> M) -> Self {
        Self {
            summary,
            architecture: Box::new(ByInput(init)),
            preset: Table::new(),
        }
        .with_preset(Table::new())
    }

    /// A task with this line in `train --list`, for a model of these numbers. The user may set others in the section of
    /// their kind, and `--init-from FOLDER` takes pretrained models of any size.
    pub fn of_config<C: PretrainedImageModel<Model = M>>(summary: &'static str, config: C) -> Self {
        Self {
            summary,
            architecture: Box::new(ByNumbers(config)),
            preset: Table::new(),
        }
        .with_preset(Table::new())
    }

    /// Adds settings of a run that suit the model.
    #[must_use]
    pub fn with_preset(self, mut preset: Table) -> Self {
        let mut section = &mut preset;
        for name in ["training", "input"] {
            let entry = section.entry(name).or_insert_with(|| Table::new().into());
            let Some(inner) = entry.as_table_mut() else {
                // It is refused when it is read.
                return Self { preset, ..self };
            };
            section = inner;
        }
        section.entry("workers").or_insert(1.into());
        Self { preset, ..self }
    }
}

/// The settings of a task on images.
///
/// ```
/// use everburn::tasks::ImageFoldersConfig;
///
/// // In `config.toml` it is the section `[data]`, and one of the model.
/// let config: ImageFoldersConfig = toml::from_str("[data]\nname = 'flowers'\nsize = [96, 128]").unwrap();
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageFoldersConfig {
    data: FolderConfig,
    /// The numbers of the model that are not the preset's, in the section of its kind.
    #[serde(flatten)]
    models: Sections,
}

impl<M: ImageModel> ImageFolders<M> {
    /// The section of the model's own numbers, if it has some.
    fn section(&self) -> Option<&'static str> {
        let mut sections = self.architecture.sections().iter().copied();
        sections.find(|section| *section != "data")
    }

    fn read_data(
        &self,
        config: &mut ImageFoldersConfig,
        only_test: bool,
    ) -> Result<TaskData<RgbItem, (Tensor<4>, MixedClasses)>, TaskError> {
        let only = self.architecture.image_size(&config.models)?;
        config.data.size = config.data.size.or(only.map(Sides::Both));
        let request = RgbRequest {
            only_test,
            ..config.data.request()?
        };
        let loaded = load_rgb(&request)?;
        self.check_classes(config, &loaded, only_test)?;
        config.data.keep(&loaded)?;
        self.keep_stem(config, &loaded)?;
        let augmentation = config.data.augment.clone();
        let description = loaded.description;
        Ok(TaskData {
            description: format!("{description}{}", augmented(&augmentation)),
            class_names: loaded.classes,
            data: TrainingData {
                fingerprint: DataFingerprint {
                    all: loaded.fingerprint,
                    train: loaded.train_fingerprint,
                    test: loaded.test_fingerprint,
                },
                train: loaded.train,
                test: loaded.test,
                validation: loaded.validation,
                batcher: Arc::new(MixBatcher(config.data.batcher())),
                weigh: None,
                augment: augment(augmentation),
                name: match loaded.kind {
                    DataKind::Cifar => description.name,
                    _ => config.data.short_name(),
                },
                origin: description.origin,
            },
        })
    }
}

impl<M: ImageModel> Task for ImageFolders<M> {
    type Config = ImageFoldersConfig;
    type Model = M;
    type Item = RgbItem;
    type Batch = (Tensor<4>, MixedClasses);

    fn model(&self, config: &ImageFoldersConfig, device: &Device) -> Result<M, TaskError> {
        self.architecture
            .build(&config.models, &self.input(config), device)
    }

    fn check(&self, config: &ImageFoldersConfig) -> Result<(), TaskError> {
        self.architecture.check(&config.models)?;
        if config.data.std.is_some_and(|std| std.contains(&0.0)) {
            return Err(TaskError::new("data.std must not be 0"));
        }
        self.check_input(config)
    }

    fn check_tensor_parallel(&self, config: &ImageFoldersConfig) -> Result<(), TaskError> {
        let dropout = self.architecture.dropout(&config.models)?;
        check_dropout_over_ranks(dropout, self.section().unwrap_or_default())
    }

    fn evaluation_batch(&self, config: &ImageFoldersConfig) -> usize {
        let [height, width] = self.size(config);
        let pixels = height.saturating_mul(width);
        (EVALUATION_IMAGES * 224 * 224 / pixels.max(1)).clamp(1, 1_000)
    }

    fn data_decide_model(&self) -> bool {
        true
    }

    fn data(
        &self,
        config: &mut ImageFoldersConfig,
    ) -> Result<TaskData<RgbItem, Self::Batch>, TaskError> {
        self.read_data(config, false)
    }

    fn test_data(
        &self,
        config: &mut ImageFoldersConfig,
    ) -> Result<TaskData<RgbItem, Self::Batch>, TaskError> {
        self.read_data(config, true)
    }

    fn check_files(&self, config: &ImageFoldersConfig) -> Result<(), TaskError> {
        let request = config.data.request()?;
        match request.file {
            // Not all files may be read.
            Some(folder) if request.train_limit.or(request.test_limit).is_none() => {
                Ok(check_image_files(folder)?)
            }
            _ => Ok(()),
        }
    }

    fn loss(&self, _config: &ImageFoldersConfig, model: &M, batch: Self::Batch) -> Loss {
        block_loss::<M, Classification<4, MixedClasses>>(model, batch)
    }

    fn summary(&self) -> String {
        self.summary.to_string()
    }

    fn input_and_output(&self) -> [String; 2] {
        let input = self.input(&ImageFoldersConfig::default());
        let [height, width] = input.size;
        [
            format!("images {height} x {width}"),
            format!("classes of the data ({})", input.classes),
        ]
    }

    fn sections(&self) -> &'static [&'static str] {
        self.architecture.sections()
    }

    fn local_settings(&self) -> &'static [&'static str] {
        &["data.name", "data.folder"]
    }

    fn preset(&self) -> Table {
        self.preset.clone()
    }

    fn blocks(&self) -> Option<BlocksOf<Self>> {
        Some(BlocksOf::new::<Classification<4, MixedClasses>>(
            |task: &Self, config: &ImageFoldersConfig, samples, device| {
                let ImageInput {
                    channels,
                    size: [height, width],
                    ..
                } = task.input(config);
                Tensor::zeros([samples, channels, height, width], device)
            },
        ))
    }

    fn predictor(&self) -> Option<Predictor<Self>> {
        Some(Predictor::by_task())
    }

    fn pretrained(&self) -> Option<PretrainedFormat<Self>> {
        Some(PretrainedFormat::by_task())
    }
}

fn augment(augmentation: ImageAugmentation) -> Option<Augment<RgbItem>> {
    if augmentation.is_none() {
        return None;
    }
    let mixing = augmentation.mixes().then(|| augmentation.clone());
    let augment = Augment::new(move |image, rng| augmentation.rgb(image, rng));
    Some(match mixing {
        Some(mixing) => augment.mixed_by(move |image, other, rng| mixing.mix(image, &other, rng)),
        None => augment,
    })
}

impl<M: ImageModel> Predict for ImageFolders<M> {
    type Prediction = PredictedClass;

    fn predict(
        &self,
        config: &ImageFoldersConfig,
        model: &M,
        (images, _classes): Self::Batch,
    ) -> Result<Vec<PredictedClass>, TaskError> {
        let logits = model.blocks().forward(model, images);
        predicted_classes(logits, &config.data.classes)
    }

    fn input_data(&self, config: &ImageFoldersConfig) -> Option<TaskData<RgbItem, Self::Batch>> {
        Some(TaskData {
            class_names: config.data.classes.clone(),
            ..TaskData::for_input(MixBatcher(config.data.batcher()))
        })
    }

    fn read(&self, config: &ImageFoldersConfig, file: &Path) -> Result<Vec<RgbItem>, TaskError> {
        let images = RgbItem::read_all(file, self.size(config))?;
        Ok(match config.data.channels {
            Channels::Rgb => images,
            Channels::Grey => images.into_iter().map(RgbItem::to_grey).collect(),
        })
    }

    fn left_out(&self, folder: &Path) -> Option<String> {
        RgbItem::left_out(folder)
    }

    fn sample_name(&self, item: &RgbItem) -> Option<String> {
        Some(item.file.display().to_string())
    }
}
