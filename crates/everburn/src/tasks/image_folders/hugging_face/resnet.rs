//! ResNets in the folders of Hugging Face's transformers.

use everburn_models::resnet18::ResNet18Config;
use everburn_models::resnet50::{EXPANSION, ResNet50Config, Stem};
use everburn_train::{ShownBy, StateDictLayout, StatedSize, TaskError, TensorSource};
use serde_json::{Value, json};

use super::{PretrainedImageModel, channels, require_classifier};
use crate::tasks::json_keys::Keys;

/// Where the weights of a ResNet show what its `config.json` states.
const SIZES_OF_RESNET: &[StatedSize] = &[
    StatedSize::new(
        "/embedding_size",
        ShownBy::Dimension("embedder.embedder.convolution.weight", 0),
    ),
    StatedSize::new(
        "/num_channels",
        ShownBy::Dimension("embedder.embedder.convolution.weight", 1),
    ),
    StatedSize::new("/depths/0", ShownBy::Parts("stages.0.layers")),
    StatedSize::new("/depths/1", ShownBy::Parts("stages.1.layers")),
    StatedSize::new("/depths/2", ShownBy::Parts("stages.2.layers")),
    StatedSize::new("/depths/3", ShownBy::Parts("stages.3.layers")),
    StatedSize::new("/id2label", ShownBy::Dimension("classifier.1.weight", 0)),
];

/// The numbers of a ResNet of transformers.
struct ResNetKeys {
    blocks: [usize; 4],
    width: usize,
    /// The channels of the images; 3 if absent.
    channels: Option<usize>,
}

impl ResNetKeys {
    /// Those of a model of such layers; `None` if it is of another kind. Blocks yield `expansion` times their width.
    fn of(config_json: &Value, layer: &str, expansion: usize) -> Result<Option<Self>, TaskError> {
        let keys = Keys::of_config(config_json);
        let layers = config_json["layer_type"].as_str().unwrap_or("bottleneck");
        if keys.kind() != "resnet" || layers != layer {
            return Ok(None);
        }
        require_classifier(keys)?;
        keys.require(&[
            ("hidden_act", json!("relu")),
            ("downsample_in_first_stage", json!(false)),
            ("downsample_in_bottleneck", json!(false)),
        ])?;
        let four = |key: &str, default: [usize; 4]| {
            let list = match &config_json[key] {
                Value::Null => return Ok(default),
                list => list.as_array(),
            };
            let sizes = list.and_then(|list| {
                let sizes = list.iter().map(|size| {
                    let size = size.as_u64().filter(|size| *size <= 1 << 28)?;
                    usize::try_from(size).ok()
                });
                sizes.collect::<Option<Vec<_>>>()
            });
            let sizes = sizes.and_then(|sizes| <[usize; 4]>::try_from(sizes).ok());
            sizes.ok_or_else(|| keys.wrong(key, "a size for each of four stages"))
        };
        let width = keys.size("embedding_size", Some(64))?;
        let blocks = four("depths", [3, 4, 6, 3])?;
        let hidden = four("hidden_sizes", [256, 512, 1024, 2048])?;
        let expected = [1, 2, 4, 8].map(|stage| stage * expansion * width);
        if hidden != expected {
            return Err(keys.unsupported("hidden_sizes", &format!("{expected:?}")));
        }
        let channels = Some(channels(keys)?).filter(|channels| *channels != 3);
        Ok(Some(Self {
            blocks,
            width,
            channels,
        }))
    }

    fn to_json(&self, stem: Stem, layer: &str, expansion: usize) -> Result<Value, TaskError> {
        if stem != Stem::ImageNet {
            let of_setting = match stem {
                Stem::Cifar => " (data.stem=small, the default for CIFAR)",
                Stem::ImageNet | Stem::Mnist => "",
            };
            return Err(TaskError::new(format!(
                "a ResNet of Hugging Face's begins with a convolution of 7 x 7, and this one with one of 3 x 3{of_setting}"
            ))
            .with_help(
                "`--to safetensors` writes its weights by torchvision's names; a model that is trained with data.stem=large \
                 can be exported",
            ));
        }
        let hidden_sizes = [1, 2, 4, 8].map(|stage| stage * expansion * self.width);
        Ok(json!({
            "architectures": ["ResNetForImageClassification"],
            "model_type": "resnet",
            "num_channels": self.channels.unwrap_or(3),
            "embedding_size": self.width,
            "hidden_sizes": hidden_sizes,
            "depths": self.blocks,
            "layer_type": layer,
            "hidden_act": "relu",
            "downsample_in_first_stage": false,
            "downsample_in_bottleneck": false,
            "torch_dtype": "float32",
        }))
    }

    /// Torchvision's names, and transformers' for the same tensors.
    fn layout(&self, convolutions: usize, expansion: usize) -> StateDictLayout {
        let mut tensors = Vec::new();
        let mut add = |name: String, source: String, ends: &[&str]| {
            tensors.extend(ends.iter().map(|end| TensorSource {
                name: format!("{name}.{end}"),
                source: format!("{source}.{end}"),
                transposed: false,
                part: None,
            }));
        };
        let norm = [
            "weight",
            "bias",
            "running_mean",
            "running_var",
            "num_batches_tracked",
        ];
        let mut add_pair = |[convolution, own_norm]: [String; 2], source: &str| {
            add(convolution, format!("{source}.convolution"), &["weight"]);
            add(own_norm, format!("{source}.normalization"), &norm);
        };
        let stem = ["conv1", "bn1"].map(str::to_string);
        add_pair(stem, "resnet.embedder.embedder");
        for (stage, blocks) in self.blocks.into_iter().enumerate() {
            for block in 0..blocks {
                let own = format!("layer{}.{block}", stage + 1);
                let theirs = format!("resnet.encoder.stages.{stage}.layers.{block}");
                for layer in 0..convolutions {
                    let number = layer + 1;
                    let pair = [format!("{own}.conv{number}"), format!("{own}.bn{number}")];
                    add_pair(pair, &format!("{theirs}.layer.{layer}"));
                }
                if block == 0 && (stage > 0 || expansion > 1) {
                    let pair = [0, 1].map(|number| format!("{own}.downsample.{number}"));
                    add_pair(pair, &format!("{theirs}.shortcut"));
                }
            }
        }
        let (head, theirs) = ("fc".to_string(), "classifier.1".to_string());
        add(head, theirs, &["weight", "bias"]);
        StateDictLayout {
            prefix: "resnet.".to_string(),
            tensors,
            sizes: SIZES_OF_RESNET,
            ..StateDictLayout::default()
        }
    }

    /// The largest product of each block, with 3 x 3 numbers for each pair of channels.
    fn fewest_parameters(&self) -> u64 {
        let stages = self.blocks.into_iter().enumerate();
        let stages = stages.map(|(stage, blocks)| {
            let width = (self.width as u64) << stage;
            let block = width.saturating_mul(width).saturating_mul(9);
            block.saturating_mul(blocks as u64)
        });
        stages.fold(0, u64::saturating_add)
    }
}

/// A residual net whose blocks have `$convolutions` convolutions and yield `$expansion` times their width.
macro_rules! pretrained_resnet {
    ($config:ident, $layer:literal, $convolutions:literal, $expansion:expr) => {
        impl PretrainedImageModel for $config {
            const HEAD: &'static str = "fc";

            fn adopt(config_json: &Value) -> Result<Option<Self>, TaskError> {
                let found = ResNetKeys::of(config_json, $layer, $expansion)?;
                Ok(found.map(|found| {
                    let config = Self::new().with_blocks(found.blocks);
                    let config = config.with_channels(found.channels);
                    config.with_width(found.width)
                }))
            }

            fn config_json(&self) -> Result<Value, TaskError> {
                ResNetKeys::from(self).to_json(self.stem, $layer, $expansion)
            }

            fn layout(&self) -> StateDictLayout {
                ResNetKeys::from(self).layout($convolutions, $expansion)
            }

            fn fewest_parameters(&self) -> u64 {
                ResNetKeys::from(self).fewest_parameters()
            }
        }

        impl From<&$config> for ResNetKeys {
            fn from(config: &$config) -> Self {
                Self {
                    blocks: config.blocks,
                    width: config.width,
                    channels: config.channels,
                }
            }
        }
    };
}

pretrained_resnet!(ResNet18Config, "basic", 2, 1);
pretrained_resnet!(ResNet50Config, "bottleneck", 3, EXPANSION);
