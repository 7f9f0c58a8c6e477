//! The tasks that come with Everburn: its models, each with the data it learns from.
//!
//! They are tasks like any other. [`Images`] trains your own model on MNIST as well:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use everburn::prelude::*;
//! use everburn::tasks::Images;
//! use everburn::models::mlp::MlpConfig;
//!
//! fn main() -> ExitCode {
//!     let mine = Images::new("a perceptron", |device| MlpConfig::new().init(device));
//!     App::new().task("mine", mine).main()
//! }
//! ```

mod image_folders;
mod images;
mod json_keys;
mod numbers;
mod table;
mod text;

use std::path::PathBuf;

use everburn_datasets::{DataChoice, DatasetDescription, ImageAugmentation, UnknownChoice};
use everburn_models::gpt::GptConfig;
use everburn_models::llama::LlamaConfig;
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_models::mnist::{Mnist, MnistConfig};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_models::resnet18::{ResNet18, ResNet18Config};
use everburn_models::resnet50::{ResNet50, ResNet50Config};
use everburn_models::two_part_resnet::{TwoPartResNet, TwoPartResNetConfig};
use everburn_models::vit::{ViT, ViTConfig};
use everburn_train::{AnyTask, TaskError};
use serde::{Deserialize, Serialize};

pub use self::image_folders::{ImageFolders, ImageFoldersConfig, ImageInput, PretrainedImageModel};
pub use self::images::{ImageModel, Images, ImagesConfig};
pub use self::table::{Table, TableConfig};
pub use self::text::{PretrainedDecoder, Text, TextConfig};
use crate::App;

/// How many different characters tinyshakespeare has: the vocabulary of `gpt-nano` before there are data to
/// decide it.
const TINYSHAKESPEARE_CHARACTERS: usize = 65;

/// Where a machine has its data, and why it took them: others may have other folders.
const LOCAL_SETTINGS: [&str; 2] = ["data.folder", "data.reason"];

/// Refuses a model with this dropout, whose settings are in `section`, where ranks share its layers.
fn check_dropout_over_ranks(dropout: f64, section: &str) -> Result<(), TaskError> {
    match dropout > 0.0 {
        true => Err(TaskError::new(format!(
            "a dropout of {dropout} and layers over several ranks do not go together"
        ))
        .with_help(format!(
            "ranks that share layers would all drop the same places of their parts: set the dropout to 0.0, as in \
             --set {section}.dropout=0.0, or use tensor=1"
        ))),
        false => Ok(()),
    }
}

/// The program `everburn`: all of these tasks.
pub fn app() -> App {
    App::new()
        .task("mnist", mnist())
        .task("mnist-bn", mnist_bn())
        .task("mlp", mlp())
        .task("resnet18", resnet18())
        .task("resnet50", resnet50())
        .task("vit", vit())
        .task("two-part-resnet", two_part_resnet())
        .task("table", table())
        .task("gpt-nano", gpt_nano())
        .task("gpt2", gpt2())
        .task("llama", llama())
}

/// The same tasks without a program.
pub fn all() -> Vec<AnyTask> {
    app().into_tasks()
}

/// The two-convolution net of the PyTorch tutorials.
pub fn mnist() -> Images<Mnist> {
    Images::new("two convolutions and two linear layers", |device| {
        MnistConfig::new().init(device)
    })
    // A rate that rises first and falls to zero may be six times the usual one, over batches twice as large.
    // The warm-up is a share of the run, so that short runs learn as well.
    .with_preset(toml::toml! {
        [training]
        batch_size = 128
        schedule = "cosine"
        [training.schedule_numbers]
        warmup_steps = 0.08
        [training.optimizer]
        learning_rate = 0.006
    })
}

/// The Keras convolution net with batch norm and dropout.
pub fn mnist_bn() -> Images<MnistBn> {
    Images::new("three convolutions with batch norm, dropout", |device| {
        MnistBnConfig::new().init(device)
    })
    .with_pixels_as_bytes()
    // The Keras original decays its learning rate; half a cosine does it without a number.
    .with_preset(toml::toml! {
        [training]
        schedule = "cosine"
        [training.optimizer]
        learning_rate = 0.003
    })
}

/// A multi-layer perceptron.
pub fn mlp() -> Images<Mlp> {
    Images::new("a perceptron with hidden layers of 256 and 128", |device| {
        MlpConfig::new().init(device)
    })
}

/// The residual net of 18 layers, on your own images.
pub fn resnet18() -> ImageFolders<ResNet18> {
    let config = ResNet18Config::new();
    let summary =
        "the residual net of 18 layers, on images: --data FOLDER, tar shards, cifar10 or cifar100";
    ImageFolders::of_config(summary, config).with_preset(resnet_preset())
}

/// The residual net of 50 layers, on your own images.
pub fn resnet50() -> ImageFolders<ResNet50> {
    let config = ResNet50Config::new();
    let summary =
        "the residual net of 50 layers, on images: --data FOLDER, tar shards, cifar10 or cifar100";
    ImageFolders::of_config(summary, config).with_preset(resnet_preset())
}

fn resnet_preset() -> toml::Table {
    toml::toml! {
        [training]
        batch_size = 32
        schedule = "cosine"
        [training.optimizer]
        kind = "adam-w"
        weight_decay = 0.01
    }
}

/// The vision transformer ViT-B/16, or any size of it that `--init-from` names.
pub fn vit() -> ImageFolders<ViT> {
    ImageFolders::of_config(
        "the vision transformer, on images; --init-from FOLDER takes one of Hugging Face's",
        ViTConfig::new(),
    )
    // For fine-tuning. From random weights, a vision transformer needs more images than most people have.
    .with_preset(toml::toml! {
        [training]
        batch_size = 32
        schedule = "cosine"
        [training.optimizer]
        kind = "adam-w"
        learning_rate = 0.00005
        weight_decay = 0.01
        [training.ddp]
        max_gradient_norm = 1.0
    })
}

/// A multi-layer perceptron on the rows of a table.
pub fn table() -> Table {
    Table::new("a perceptron on a table: --data FILE.csv --set table.target=COLUMN")
}

/// The beginning of a residual net.
pub fn two_part_resnet() -> Images<TwoPartResNet> {
    Images::new(
        "the stem of a ResNet and the next block, to be cut in two",
        |device| TwoPartResNetConfig::new().init(device),
    )
}

/// A small decoder of text.
pub fn gpt_nano() -> Text<GptConfig> {
    Text::new(
        "a decoder of text: 4 layers of width 128, context 64",
        GptConfig::nano(TINYSHAKESPEARE_CHARACTERS),
    )
    // Large steps, which a falling rate ends and a limit on gradients keeps from going astray. More
    // samples per step take longer and hardly teach more.
    .with_preset(toml::toml! {
        [training]
        batch_size = 32
        schedule = "cosine"
        [training.optimizer]
        kind = "adam-w"
        learning_rate = 0.003
        beta_2 = 0.99
        weight_decay = 0.1
        [training.ddp]
        max_gradient_norm = 1.0
    })
}

/// The smallest GPT-2 (Radford et al. 2019), or any size of it that `--init-from` names.
pub fn gpt2() -> Text<GptConfig> {
    Text::new(
        "GPT-2: 12 layers of width 768, context 1024; --init-from FOLDER takes one of Hugging Face's",
        GptConfig::gpt2_124m(),
    )
    .with_pretrained()
    // Radford et al. 2019 do not say; these are the rates of Brown et al. 2020, table 2.1, at a
    // batch that a small machine can hold.
    .with_preset(toml::toml! {
        [training]
        batch_size = 8
        schedule = "cosine"
        [training.optimizer]
        kind = "adam-w"
        learning_rate = 0.0006
        beta_2 = 0.95
        weight_decay = 0.1
        [training.ddp]
        max_gradient_norm = 1.0
    })
}

/// A Llama of the size of Llama 3.2 1B, or of any that `--init-from` names.
pub fn llama() -> Text<LlamaConfig> {
    Text::new(
        "Llama, Mistral or Qwen 2: --init-from FOLDER takes one of Hugging Face's",
        LlamaConfig::llama3_1b(),
    )
    .with_pretrained()
    // As Touvron et al. 2023, section 2.3, at a rate for fine-tuning.
    .with_preset(toml::toml! {
        [text]
        window = 1024
        [training]
        batch_size = 8
        schedule = "cosine"
        [training.optimizer]
        kind = "adam-w"
        learning_rate = 0.00002
        beta_2 = 0.95
        weight_decay = 0.1
        [training.ddp]
        max_gradient_norm = 1.0
    })
}

/// Which data a run reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DataConfig {
    /// A [`DataChoice`].
    pub(crate) name: String,
    /// Why this data set was taken where the user left the choice open.
    pub(crate) reason: Option<String>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) train_samples: Option<usize>,
    pub(crate) test_samples: Option<usize>,
    /// Random changes of images to learn from: `shift:0.1,rotate:10`.
    #[serde(skip_serializing_if = "ImageAugmentation::is_none")]
    pub(crate) augment: ImageAugmentation,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            name: "auto".to_string(),
            reason: None,
            folder: None,
            train_samples: None,
            test_samples: None,
            augment: ImageAugmentation::default(),
        }
    }
}

impl DataConfig {
    fn choice(&self) -> Result<DataChoice, UnknownChoice> {
        self.name.parse()
    }

    /// Fixes what was left open, so that every rank and every repetition takes the same: `found` is the name of
    /// the data set and the reason for it.
    fn pin(&mut self, found: &mut DatasetDescription) {
        if let Some(reason) = &self.reason {
            found.reason.clone_from(reason);
        }
        if self.name == "auto" {
            self.name = match found.name.as_str() {
                "synthetic-digits" => "synthetic".to_string(),
                other => other.to_string(),
            };
            self.reason = Some(found.reason.clone());
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> AnyTask {
        let task = all().into_iter().find(|task| task.name() == name);
        task.unwrap()
    }

    fn parameters(name: &str) -> usize {
        let task = find(name).configure(&toml::Table::new()).unwrap();
        task.num_params().unwrap()
    }

    #[test]
    fn every_listed_model_can_be_built() {
        for task in all() {
            assert!(parameters(task.name()) > 0, "{}", task.name());
        }
    }

    #[test]
    fn parameter_counts_match_the_originals() {
        assert_eq!(parameters("mnist"), 21_840);
        let mlp = 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10;
        assert_eq!(parameters("mlp"), mlp);
        // Convolutions, batch norms (gamma, beta, two running statistics), linear layers.
        let expected = (9 * 12)
            + (36 * 12 * 24)
            + (36 * 24 * 32)
            + 4 * (12 + 24 + 32)
            + (32 * 256 + 256)
            + (256 * 10 + 10);
        assert_eq!(parameters("mnist-bn"), expected);
        assert_eq!(parameters("gpt2"), 124_439_808, "as published");
        assert_eq!(parameters("llama"), 1_235_814_400, "as published");
        // With the mean and variance of each channel of its batch norms.
        assert_eq!(
            parameters("resnet18"),
            11_689_512 + 2 * 4_800,
            "as torchvision's"
        );
        let resnet50 = 25_557_032 + 2 * 26_560;
        assert_eq!(parameters("resnet50"), resnet50, "as torchvision's");
        assert_eq!(parameters("vit"), 86_567_656, "as published");
    }

    #[test]
    fn a_dropout_over_ranks_is_refused_with_the_setting_of_its_model() {
        for (name, section) in [("gpt-nano", "gpt"), ("vit", "vit")] {
            let settings = format!("[{section}]\ndropout = 0.1");
            let task = find(name).configure(&settings.parse().unwrap()).unwrap();
            let error = task.shards(2).err().unwrap();
            let help = error.help().unwrap();
            let setting = format!("--set {section}.dropout=0.0, ");
            assert!(help.contains(&setting), "{help}");
        }
    }

    #[test]
    fn settings_that_do_not_fit_together_are_refused() {
        let three = toml::toml! {
            [gpt]
            heads = 3
        };
        let refused = find("gpt-nano").configure(&three);
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("3 heads"), "{error}");
        let unknown = toml::toml! {
            [data]
            sythetic_images = "synthetic"
        };
        let refused = find("mnist").configure(&unknown);
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("sythetic_images"), "{error}");
    }
}
