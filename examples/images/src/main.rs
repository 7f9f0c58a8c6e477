//! Classifies images of any size, in a folder for each class: `train/roses/1.jpg`, `test/tulips/7.png`, or `roses/1.jpg`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

// `everburn::burn` is Burn itself; its derives look for it under the name `burn`.
use everburn::burn;
use everburn::burn::prelude::*;
use everburn::burn::tensor::activation::softmax;
use everburn::datasets::{LoadedRgb, MixBatcher, MixedClasses, RgbRequest, check_image_files, load_rgb};
use everburn::nn::conv::{Conv2d, Conv2dConfig};
use everburn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use everburn::nn::{Linear, LinearConfig, Relu};
use everburn::prelude::*;
use everburn::train::{ClassTargets, DataFingerprint};
use serde::{Deserialize, Serialize};

// Every command of Everburn works on the tasks that are named here: `train`, `eval`, `monitor`, ...
fn main() -> ExitCode {
    App::new().task("images", ImageFolders).main()
}

/// What is trained.
struct ImageFolders;

/// The settings, in `[images]` of a configuration file; `--set images.size=128` sets one.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ImagesConfig {
    /// Has the folders `train` and `test`, and these one for each class; or one for each class alone, and every tenth image
    /// of a class becomes a test image.
    folder: PathBuf,
    /// The width and height to which images are scaled, in pixels.
    size: usize,
    /// Random changes of images to learn from: `--set images.augment=crop,flip`.
    augment: ImageAugmentation,
    /// The names of the classes; the data decide them.
    classes: Vec<String>,
}

impl Default for ImagesConfig {
    fn default() -> Self {
        Self { folder: "data".into(), size: 32, augment: ImageAugmentation::default(), classes: Vec::new() }
    }
}

/// Images `[B, 3, size, size]` and their classes `[B]`; of images that mixup or cutmix has mixed, both classes.
type Images = (Tensor<4>, MixedClasses);

/// The model, an ordinary Burn module: images `[B, 3, H, W]` to scores of classes `[B, K]`.
#[derive(Module, Debug)]
struct Net {
    first: Conv2d,
    second: Conv2d,
    pool: AdaptiveAvgPool2d,
    output: Linear,
    relu: Relu,
}

impl Net {
    /// A model with random parameters, for images of this many classes.
    fn new(classes: usize, device: &Device) -> Self {
        Self {
            first: Conv2dConfig::new([3, 16], [3, 3]).with_stride([2, 2]).init(device),
            second: Conv2dConfig::new([16, 32], [3, 3]).with_stride([2, 2]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
            output: LinearConfig::new(32 * 2 * 2, classes).init(device),
            relu: Relu::new(),
        }
    }

    /// The scores of the classes, `[B, K]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = self.relu.forward(self.first.forward(images));
        let hidden = self.relu.forward(self.second.forward(hidden));
        self.output.forward(self.pool.forward(hidden).flatten::<2>(1, 3))
    }
}

/// The images of the folder: to train and to test on, or all of them to test on.
fn read_images(config: &mut ImagesConfig, only_test: bool) -> Result<TaskData<RgbItem, Images>, TaskError> {
    let request = RgbRequest {
        file: Some(config.folder.clone()),
        size: Some([config.size, config.size]),
        only_test,
        ..RgbRequest::default()
    };
    let loaded = load_rgb(&request)?;
    let fingerprint =
        DataFingerprint { all: loaded.fingerprint, train: loaded.train_fingerprint, test: loaded.test_fingerprint };
    let LoadedRgb { train, validation, test, classes, description, .. } = loaded;
    config.classes.clone_from(&classes);
    let (change, mixture) = (config.augment.clone(), config.augment.clone());
    let data = TrainingData::new("images", train, test, MixBatcher(RgbBatcher::default()))
        .with_origin(&description.origin)
        .augmented_by(move |image, rng| change.rgb(image, rng));
    // With mixup or cutmix, each image to learn from is mixed with another one.
    let data = match config.augment.mixes() {
        true => data.mixed_by(move |image, other, rng| mixture.mix(image, &other, rng)),
        false => data,
    };
    // A folder with train, val and test has images to validate on; of any other, training images are held out.
    let data = TrainingData { validation, fingerprint, ..data };
    // The first line of a training says where the images are, how many, and which files were left out.
    Ok(TaskData { description: description.to_string(), class_names: classes, data })
}

impl Task for ImageFolders {
    type Config = ImagesConfig;
    type Model = Net;
    type Item = RgbItem;
    type Batch = Images;

    fn model(&self, config: &ImagesConfig, device: &Device) -> Result<Net, TaskError> {
        Ok(Net::new(config.classes.len().max(2), device))
    }

    // Two convolutions of 3 x 3 with a stride of 2 leave a pixel of 7 x 7: another model has another smallest size. If a linear
    // layer reads all pixels, the model takes one size only, and all others belong here.
    fn check(&self, config: &ImagesConfig) -> Result<(), TaskError> {
        match config.size {
            ..7 => Err(TaskError::new(format!("images.size={} leaves the model no pixel", config.size))
                .with_help("set images.size=7 or more")),
            _ => Ok(()),
        }
    }

    // Machines may have the images in other folders; all else must be the same on all ranks.
    fn local_settings(&self) -> &'static [&'static str] {
        &["folder"]
    }

    // The model is built after the data are loaded, for as many classes as there are folders.
    fn data_decide_model(&self) -> bool {
        true
    }

    fn data(&self, config: &mut ImagesConfig) -> Result<TaskData<RgbItem, Images>, TaskError> {
        read_images(config, false)
    }

    // `eval RUN --set images.folder=OTHER` tests all images of another folder.
    fn test_data(&self, config: &mut ImagesConfig) -> Result<TaskData<RgbItem, Images>, TaskError> {
        read_images(config, true)
    }

    // Before a training starts: an image that is cut off ends no training after hours.
    fn check_files(&self, config: &ImagesConfig) -> Result<(), TaskError> {
        Ok(check_image_files(&config.folder)?)
    }

    fn loss(&self, _config: &ImagesConfig, model: &Net, (images, classes): Images) -> Loss {
        // The mean cross entropy, with the accuracy and a confusion matrix. `with_metric` adds other metrics; a loss of
        // another kind is `Loss::new(mean, samples)`.
        classes.loss(model.forward(images))
    }

    fn summary(&self) -> String {
        "images in a folder for each class".to_string()
    }

    // What `train --list` shows of the model, with the number of classes of `model` without data.
    fn input_and_output(&self) -> [String; 2] {
        let ImagesConfig { size, .. } = ImagesConfig::default();
        [format!("color images {size} x {size}"), "classes of the data (2)".to_string()]
    }

    fn predictor(&self) -> Option<Predictor<Self>> {
        Some(Predictor::by_task())
    }
}

/// What `predict` writes of each image, after the name of its file.
#[derive(Serialize)]
struct Prediction {
    class: String,
    /// Of all classes, by their names.
    probabilities: BTreeMap<String, f32>,
}

impl Predict for ImageFolders {
    type Prediction = Prediction;

    fn predict(
        &self,
        config: &ImagesConfig,
        model: &Net,
        (images, _classes): Images,
    ) -> Result<Vec<Prediction>, TaskError> {
        let probabilities = softmax(model.forward(images), 1);
        let [_, classes] = probabilities.dims();
        let class = probabilities.clone().argmax(1).try_into_data()?;
        let probabilities: Vec<f32> = probabilities.try_into_data()?.iter::<f32>().collect();
        let predictions = probabilities.chunks_exact(classes).zip(class.iter::<i64>());
        let predictions = predictions.map(|(probabilities, class)| Prediction {
            class: config.classes[class as usize].clone(),
            probabilities: config.classes.iter().cloned().zip(probabilities.iter().copied()).collect(),
        });
        Ok(predictions.collect())
    }

    // `predict RUN --input FILE` needs none of the data.
    fn input_data(&self, config: &ImagesConfig) -> Option<TaskData<RgbItem, Images>> {
        let classes = config.classes.clone();
        Some(TaskData { class_names: classes, ..TaskData::for_input(MixBatcher(RgbBatcher::default())) })
    }

    // `predict RUN --input new-images` is for images that have no class yet.
    fn read(&self, config: &ImagesConfig, path: &Path) -> Result<Vec<RgbItem>, TaskError> {
        Ok(RgbItem::read_all(path, [config.size, config.size])?)
    }

    // The files of a folder that are no images are named before its predictions.
    fn left_out(&self, folder: &Path) -> Option<String> {
        RgbItem::left_out(folder)
    }

    fn sample_name(&self, image: &RgbItem) -> Option<String> {
        Some(image.file.display().to_string())
    }
}
