//! Models that classify grey images of 28 x 28 pixels.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::Path;

use burn::prelude::*;
use burn::tensor::activation::softmax;
use everburn_datasets::{
    DataChoice, DataKind, DataRequest, DatasetError, ImageAugmentation, ImageBatcher, ImageItem,
    LoadedData, SyntheticDigits, detect_for, is_url,
};
use everburn_distributed::Augment;
use everburn_nn::TensorParallel;
use everburn_train::{
    BlocksOf, Classification, DataFingerprint, LabeledBatch, Loss, OnDevice, Predict, Predictor,
    Task, TaskData, TaskError, TrainingData, block_loss,
};
use serde::{Deserialize, Serialize, Serializer};
use toml::Table;

use super::{DataConfig, LOCAL_SETTINGS};

/// The classes of Fashion-MNIST, as its authors name them.
const FASHION: [&str; 10] = [
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
];

/// A model of images `[B, C, H, W]` with logits `[B, K]`.
///
/// ```
/// use everburn::models::mnist::MnistConfig;
/// use everburn::tasks::{ImageModel, Images};
/// use everburn::burn::prelude::Device;
///
/// fn task<M: ImageModel>(init: fn(&Device) -> M) -> Images<M> {
///     Images::new("a model of my own", init)
/// }
///
/// let _task = task(|device| MnistConfig::new().init(device));
/// ```
pub trait ImageModel:
    TensorParallel<Input = Tensor<4>, Output = Tensor<2>> + Display + Sync + 'static
{
}

impl<M> ImageModel for M where
    M: TensorParallel<Input = Tensor<4>, Output = Tensor<2>> + Display + Sync + 'static
{
}

/// MNIST, Fashion-MNIST or synthetic digits, classified by a model.
///
/// ```
/// use everburn::models::mlp::MlpConfig;
/// use everburn::prelude::*;
/// use everburn::tasks::Images;
///
/// let wide = Images::new("a wide MLP", |device| {
///     MlpConfig::new().with_hidden(vec![512, 512]).init(device)
/// });
/// let app = App::new().task("wide", wide);
/// ```
pub struct Images<M> {
    summary: &'static str,
    init: fn(&Device) -> M,
    preset: Table,
    /// Pixels are 0.0 to 255.0 as in the file, and not 0.0 to 1.0.
    pixels_as_bytes: bool,
}

impl<M: ImageModel> Images<M> {
    /// A task with this line in `train --list`, whose model `init` builds.
    pub fn new(summary: &'static str, init: fn(&Device) -> M) -> Self {
        Self {
            summary,
            init,
            preset: Table::new(),
            pixels_as_bytes: false,
        }
    }

    /// The same with settings of a run that suit the model.
    #[must_use]
    pub fn with_preset(self, preset: Table) -> Self {
        Self { preset, ..self }
    }

    /// The same for a model that takes pixels of 0.0 to 255.0, as in the file, and not of 0.0 to 1.0.
    #[must_use]
    pub fn with_pixels_as_bytes(self) -> Self {
        Self {
            pixels_as_bytes: true,
            ..self
        }
    }
}

/// The settings of a model of images.
///
/// ```
/// use everburn::tasks::ImagesConfig;
///
/// // In `config.toml` it is the section `[data]`.
/// let config: ImagesConfig = toml::from_str("[data]\nname = 'fashion-mnist'").unwrap();
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImagesConfig {
    data: DataConfig,
}

impl<M: ImageModel> Task for Images<M> {
    type Config = ImagesConfig;
    type Model = M;
    type Item = ImageItem;
    type Batch = LabeledBatch<4>;

    fn model(&self, _config: &ImagesConfig, device: &Device) -> Result<M, TaskError> {
        Ok((self.init)(device))
    }

    fn data(
        &self,
        config: &mut ImagesConfig,
    ) -> Result<TaskData<ImageItem, Self::Batch>, TaskError> {
        check_augmentation(&config.data.augment)?;
        let (train, test) = (config.data.train_samples, config.data.test_samples);
        // Asked for here, and not cut off afterwards: digits that nobody reads are not drawn.
        let limits = (train.is_some() || test.is_some()).then(|| {
            (
                train.unwrap_or(SyntheticDigits::TRAIN_COUNT),
                test.unwrap_or(SyntheticDigits::TEST_COUNT),
            )
        });
        let mut loaded = load(&config.data, limits)?;
        config.data.pin(&mut loaded.description);
        let description = loaded.description;
        let class_names = class_names(&description.name);
        let batcher = match self.pixels_as_bytes {
            true => ImageBatcher::bytes(),
            false => ImageBatcher::unit(),
        };
        let (train, test) = (loaded.train, loaded.test);
        let [of_train, of_test] = [train.fingerprint(), test.fingerprint()];
        let augmentation = config.data.augment.clone();
        Ok(TaskData {
            description: format!("{description}{}", augmented(&augmentation)),
            class_names: class_names.iter().map(ToString::to_string).collect(),
            data: TrainingData {
                fingerprint: DataFingerprint {
                    all: format!("{of_train} {of_test}"),
                    train: of_train,
                    test: of_test,
                },
                augment: (!augmentation.is_none())
                    .then(|| Augment::new(move |image, rng| augmentation.grey(image, rng))),
                origin: format!("{}: {}", description.origin, description.reason),
                ..TrainingData::new(description.name, train, test, batcher)
            },
        })
    }

    fn loss(&self, _config: &ImagesConfig, model: &M, batch: Self::Batch) -> Loss {
        block_loss::<M, Classification<4>>(model, batch)
    }

    fn summary(&self) -> String {
        self.summary.to_string()
    }

    fn input_and_output(&self) -> [String; 2] {
        ["grey images 28 x 28", "10 classes"].map(str::to_owned)
    }

    fn sections(&self) -> &'static [&'static str] {
        &["data"]
    }

    fn local_settings(&self) -> &'static [&'static str] {
        &LOCAL_SETTINGS
    }

    fn preset(&self) -> Table {
        self.preset.clone()
    }

    fn blocks(&self) -> Option<BlocksOf<Self>> {
        Some(BlocksOf::new::<Classification<4>>(
            |_task, _config, samples, device| Tensor::zeros([samples, 1, 28, 28], device),
        ))
    }

    fn on_device(&self) -> Option<OnDevice<Self>> {
        Some(OnDevice::by_rows())
    }

    fn fixed_input(&self) -> Option<&'static str> {
        Some(match self.pixels_as_bytes {
            true => "pixels from 0 to 255, as they are in the file",
            false => {
                "pixels from 0 to 1: those of the file divided by 255, with no mean subtracted"
            }
        })
    }

    fn predictor(&self) -> Option<Predictor<Self>> {
        Some(Predictor::by_task())
    }
}

/// What these models learn from.
const WANTED: &str = "grey images of 28 x 28 pixels: mnist, fashion-mnist, synthetic, or a folder with the IDX files of one of these";

/// What to do with other images.
const OWN_IMAGES: &str = "resnet18 and vit learn from images of your own, in one folder per class";

/// Refuses changes that no digit survives, and those of colors.
fn check_augmentation(augmentation: &ImageAugmentation) -> Result<(), TaskError> {
    let text = augmentation.to_string();
    let names = text
        .split(',')
        .filter_map(|change| change.split(':').next());
    let others: Vec<&str> = names
        .filter(|name| !["none", "shift", "rotate"].contains(name))
        .collect();
    match others.is_empty() {
        true => Ok(()),
        false => Err(TaskError::new(format!(
            "data.augment = {text}: grey images of 28 x 28 pixels do not take {}",
            others.join(", ")
        ))
        .with_help("they take shift and rotate; resnet18, resnet50 and vit take all changes")),
    }
}

/// The set that the name says, or the one in the folder that it names.
fn load(data: &DataConfig, limits: Option<(usize, usize)>) -> Result<LoadedData, TaskError> {
    let request = DataRequest {
        data_dir: data.folder.clone(),
        limits,
        ..DataRequest::default()
    };
    let unknown = match data.choice() {
        Ok(choice) => return Ok(everburn_datasets::load(&DataRequest { choice, ..request })?),
        Err(unknown) => unknown,
    };
    let path = Path::new(&data.name);
    if !path.exists() && !is_url(path) {
        let help = format!("this model learns from {WANTED}; {OWN_IMAGES}");
        return Err(TaskError::from(unknown).with_help(help));
    }
    if detect_for(path, &[DataKind::Idx], WANTED)?.is_none() {
        return Err(TaskError::new(format!(
            "{} is not a known kind of data; this model learns from {WANTED}",
            data.name
        )));
    }
    let folder = if path.is_dir() {
        Some(path)
    } else {
        path.parent()
    };
    let of = |choice| {
        everburn_datasets::load(&DataRequest {
            choice,
            data_dir: folder.map(Path::to_owned),
            download: false,
            ..request.clone()
        })
    };
    // Both have the same names; the contents decide.
    let mnist = of(DataChoice::Mnist);
    match mnist {
        Err(DatasetError::Altered { .. }) => Ok(of(DataChoice::FashionMnist).or(mnist)?),
        Err(error @ DatasetError::Idx { .. }) => Err(TaskError::from(error).with_help(format!(
            "this model learns from the published IDX files of MNIST and Fashion-MNIST alone; {OWN_IMAGES}"
        ))),
        mnist => Ok(mnist?),
    }
}

/// The prediction of a classifier for an image.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedClass {
    /// The likeliest class: its name, or its number where it has none.
    pub class: String,
    /// How likely each class is, by its name, in the order of their numbers; written as an object.
    #[serde(serialize_with = "by_name")]
    pub probabilities: Vec<(String, f32)>,
}

fn by_name<S: Serializer>(probabilities: &[(String, f32)], json: S) -> Result<S::Ok, S::Error> {
    json.collect_map(
        probabilities
            .iter()
            .map(|(name, of_class)| (name, of_class)),
    )
}

impl<M: ImageModel> Predict for Images<M> {
    type Prediction = PredictedClass;

    fn predict(
        &self,
        config: &ImagesConfig,
        model: &M,
        (images, _classes): LabeledBatch<4>,
    ) -> Result<Vec<PredictedClass>, TaskError> {
        let logits = model.blocks().forward(model, images);
        predicted_classes(logits, class_names(&config.data.name))
    }

    fn read(&self, _config: &ImagesConfig, file: &Path) -> Result<Vec<ImageItem>, TaskError> {
        let reason = format!(
            "{}: this model reads no image files, only the data that it learns from: {WANTED}",
            file.display()
        );
        let help = "--input test, train or validation predicts samples of these; resnet18 and vit learn from image files, and \
                    predict them";
        Err(TaskError::new(reason).with_help(help))
    }
}

/// The predictions of logits `[B, K]`; a class without a name has its number, and one with the name of an earlier class both:
/// two classes of ImageNet are a `crane`.
pub(super) fn predicted_classes<S: ToString>(
    logits: Tensor<2>,
    names: &[S],
) -> Result<Vec<PredictedClass>, TaskError> {
    let [_, classes] = logits.dims();
    let mut seen = HashSet::new();
    let names = (0..classes).map(|class| {
        let name = names.get(class).map_or(class.to_string(), S::to_string);
        match seen.insert(name.clone()) {
            true => name,
            false => format!("{name} ({class})"),
        }
    });
    let names: Vec<String> = names.collect();
    let probabilities = softmax(logits, 1).try_into_data()?;
    let probabilities = probabilities.iter::<f32>().collect::<Vec<_>>();
    let rows = probabilities.chunks_exact(classes).map(|row| {
        let likeliest = (0..classes).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a)));
        PredictedClass {
            class: names[likeliest.unwrap_or_default()].clone(),
            probabilities: names.iter().cloned().zip(row.iter().copied()).collect(),
        }
    });
    Ok(rows.collect())
}

/// How images are changed, behind the description of their data.
pub(super) fn augmented(augmentation: &ImageAugmentation) -> String {
    match augmentation.is_none() {
        true => String::new(),
        false => format!(", augmented by {augmentation}"),
    }
}

/// The names of the classes of a data set; none where they are digits.
fn class_names(dataset: &str) -> &'static [&'static str] {
    match dataset {
        "fashion-mnist" => &FASHION,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_probability_beside_its_name() {
        let logits = Tensor::<2>::from_floats([[0.0, 2.0, 0.0, 0.0]], &Device::flex());
        let predicted = predicted_classes(logits, &["crane", "cat", "crane"]).unwrap();
        let json = serde_json::to_string(&predicted[0]).unwrap();
        assert!(
            json.starts_with(r#"{"class":"cat","probabilities":{"crane":0."#),
            "{json}"
        );
        for of_class in [r#","cat":0.7"#, r#","crane (2)":0.0"#, r#","3":0.0"#] {
            assert!(json.contains(of_class), "{json}");
        }
    }
}
