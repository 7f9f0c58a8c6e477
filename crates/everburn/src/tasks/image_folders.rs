//! Models that classify images of any size: in one folder per class, in tar shards, or CIFAR.

mod architecture;
mod hugging_face;
mod input;
mod preprocessing;
mod pretrained;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::prelude::*;
use everburn_datasets::{
    Channels, DataChoice, DataKind, ImageAugmentation, LoadedRgb, MixBatcher, MixedClasses,
    RgbItem, RgbRequest, UnknownChoice, is_url, load_rgb,
};
use everburn_distributed::Augment;
use everburn_train::{
    BlocksOf, Classification, Loss, Predict, Predictor, PretrainedFormat, Task, TaskData,
    TaskError, TrainingData, block_loss,
};
use serde::{Deserialize, Serialize};
use toml::Table;

use self::architecture::{Architecture, ByInput, ByNumbers, Sections};
pub use self::hugging_face::PretrainedImageModel;
pub use self::input::ImageInput;
use self::input::{Sides, StemChoice};
use super::check_dropout_over_ranks;
use super::images::{ImageModel, PredictedClass, predicted_classes};

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

/// Which images a run reads.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FolderConfig {
    /// A folder, tar shards, or the name of a set, as `--data` gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// As `--data-dir` gives it: the folder of images, or where a named set is.
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train_samples: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    test_samples: Option<usize>,
    /// The height and width to which images are scaled, in pixels; the model or the data decide them if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<Sides>,
    /// Color or grey.
    #[serde(skip_serializing_if = "is_default")]
    channels: Channels,
    /// How a residual net begins.
    #[serde(skip_serializing_if = "is_default")]
    stem: StemChoice,
    /// The mean of red, green and blue, from 0 to 1; ImageNet's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean: Option<[f64; 3]>,
    /// Their standard deviations.
    #[serde(skip_serializing_if = "Option::is_none")]
    std: Option<[f64; 3]>,
    /// Random changes of the images to learn from: `crop,flip,color`.
    #[serde(skip_serializing_if = "ImageAugmentation::is_none")]
    augment: ImageAugmentation,
    /// The names of the classes; the data decide them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl FolderConfig {
    /// What the flags ask for.
    fn request(&self) -> Result<RgbRequest, TaskError> {
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

    /// Keeps what the data decide, and paths that a run finds from any working directory.
    fn keep(&mut self, loaded: &LoadedRgb) -> Result<(), TaskError> {
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

impl<M: ImageModel> ImageFolders<M> {
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
        let augmented = match augmentation.is_none() {
            true => String::new(),
            false => format!(", augmented by {augmentation}"),
        };
        let description = loaded.description;
        Ok(TaskData {
            description: format!("{description}{augmented}"),
            class_names: loaded.classes,
            data: TrainingData {
                fingerprint: loaded.fingerprint,
                test_fingerprint: loaded.test_fingerprint,
                train: loaded.train,
                test: loaded.test,
                validation: loaded.validation,
                batcher: Arc::new(MixBatcher(config.data.batcher())),
                weigh: None,
                augment: augment(augmentation),
                name: match loaded.kind {
                    DataKind::Cifar => description.name,
                    _ => "images".to_owned(),
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
        check_dropout_over_ranks(self.architecture.dropout(&config.models)?)
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

    fn loss(&self, _config: &ImageFoldersConfig, model: &M, batch: Self::Batch) -> Loss {
        block_loss::<M, Classification<4, MixedClasses>>(model, batch)
    }

    fn summary(&self) -> String {
        self.summary.to_string()
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

/// A path that leads to the same place from any working directory. An address does so anyway.
fn from_anywhere(path: &Path) -> std::io::Result<PathBuf> {
    match is_url(path) {
        true => Ok(path.to_owned()),
        false => std::path::absolute(path),
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
}
