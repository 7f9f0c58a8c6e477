//! Classifiers of images in the folders of Hugging Face's transformers.

mod resnet;

use everburn_models::gpt::Activation;
use everburn_models::image_model::ImageModelConfig;
use everburn_models::vit::ViTConfig;
use everburn_train::{ShownBy, StateDictLayout, StatedSize, TaskError};
use serde_json::{Value, json};

use crate::tasks::json_keys::Keys;
use crate::tasks::numbers;

/// Numbers of a classifier that are in a `config.json` too, for [`ImageFolders`](super::ImageFolders). A model that no
/// other library has needs none of the methods.
///
/// ```
/// use everburn::models::vit::ViTConfig;
/// use everburn::tasks::PretrainedImageModel;
///
/// // What `export --to hugging-face` writes as `config.json`, but for the classes.
/// let config = ViTConfig::new().config_json().unwrap();
/// assert_eq!(config["hidden_size"], 768);
/// ```
pub trait PretrainedImageModel: ImageModelConfig {
    /// The sections of a configuration file for such a model and its images.
    const IMAGE_SECTIONS: &'static [&'static str] = &["data", Self::SECTION];

    /// The path of the last layer, which scores the classes: pretrained models get another for other classes.
    const HEAD: &'static str;

    /// The numbers of the model that `config_json` describes, but for the classes; `None` if it is of another kind.
    ///
    /// # Errors
    /// The key that is missing, or says what the model cannot do.
    fn adopt(config_json: &Value) -> Result<Option<Self>, TaskError> {
        let _ = config_json;
        Ok(None)
    }

    /// The `config.json` of a model of these numbers, but for the classes.
    ///
    /// # Errors
    /// If no model of transformers is like it.
    fn config_json(&self) -> Result<Value, TaskError> {
        let section = Self::SECTION;
        Err(TaskError::new(format!(
            "Hugging Face's transformers have no model like `{section}`"
        )))
    }

    /// How the tensors of such a model are called and stored.
    fn layout(&self) -> StateDictLayout {
        StateDictLayout::default()
    }

    /// A number of parameters that the model has, or fewer: a folder with smaller files of weights is not of this model.
    fn fewest_parameters(&self) -> u64 {
        0
    }
}

/// The number of classes in a `config.json`, and their names; none if they have numbers only.
pub(super) fn labels(config_json: &Value) -> Result<(usize, Vec<String>), TaskError> {
    let keys = Keys::of_config(config_json);
    if config_json["id2label"].is_null() {
        return Ok((keys.size("num_labels", Some(2))?, Vec::new()));
    }
    let wrong = || keys.wrong("id2label", "a name for each class, numbered from 0 on");
    let by_number = config_json["id2label"].as_object().ok_or_else(wrong)?;
    let names = (0..by_number.len()).map(|number| {
        let name = by_number.get(&number.to_string()).and_then(Value::as_str);
        name.map(str::to_owned).ok_or_else(wrong)
    });
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let unnamed = |(number, name): (usize, &String)| *name == format!("LABEL_{number}");
    match names.iter().enumerate().all(unnamed) {
        true => Ok((names.len(), Vec::new())),
        false => Ok((names.len(), names)),
    }
}

/// Refuses what no classifier here does.
fn require_classifier(keys: Keys<'_>) -> Result<(), TaskError> {
    keys.require(&[
        ("problem_type", json!("single_label_classification")),
        ("quantization_config", Value::Null),
    ])
}

/// 3 channels, or 1 of grey images.
fn channels(keys: Keys<'_>) -> Result<usize, TaskError> {
    match keys.size("num_channels", Some(3))? {
        channels @ (1 | 3) => Ok(channels),
        _ => Err(keys.unsupported("num_channels", "3, or 1 for grey images")),
    }
}

/// Where the weights of a ViT show what its `config.json` states.
const SIZES_OF_VIT: &[StatedSize] = &[
    StatedSize::new(
        "/hidden_size",
        ShownBy::Dimension("embeddings.cls_token", 2),
    ),
    StatedSize::new(
        "/intermediate_size",
        ShownBy::Dimension("intermediate.dense.weight", 0),
    ),
    StatedSize::new("/num_hidden_layers", ShownBy::Parts("encoder.layer")),
    StatedSize::new(
        "/num_channels",
        ShownBy::Dimension("patch_embeddings.projection.weight", 1),
    ),
    StatedSize::new(
        "/patch_size",
        ShownBy::Dimension("patch_embeddings.projection.weight", 2),
    ),
    StatedSize::new("/id2label", ShownBy::Dimension("classifier.weight", 0)),
];

/// A name in each file of torchvision's ViT, and why it is not read.
const OF_TORCHVISION: (&str, &str) = (
    "*encoder.layers.encoder_layer_0.*",
    "it is a ViT of torchvision, and only the names of Hugging Face's ViTForImageClassification are read: take the same weights \
     from a folder of transformers",
);

/// Names of a ViT's parts in `state_dict()` of transformers since version 5, and before: what `save_pretrained` writes still.
const SINCE_VERSION_5: [(&str, &str); 7] = [
    (".layers.", ".encoder.layer."),
    (".attention.q_proj.", ".attention.attention.query."),
    (".attention.k_proj.", ".attention.attention.key."),
    (".attention.v_proj.", ".attention.attention.value."),
    (".attention.o_proj.", ".attention.output.dense."),
    (".mlp.fc1.", ".intermediate.dense."),
    (".mlp.fc2.", ".output.dense."),
];

impl PretrainedImageModel for ViTConfig {
    const HEAD: &'static str = "classifier";

    fn adopt(config_json: &Value) -> Result<Option<Self>, TaskError> {
        let keys = Keys::of_config(config_json);
        if keys.kind() != "vit" {
            return Ok(None);
        }
        require_classifier(keys)?;
        let activation = match config_json["hidden_act"].as_str() {
            Some("gelu") => Activation::Gelu,
            Some("gelu_new" | "gelu_pytorch_tanh") => Activation::GeluTanh,
            None if config_json["hidden_act"].is_null() => Activation::Gelu,
            _ => return Err(keys.unsupported("hidden_act", "gelu or gelu_new")),
        };
        let (width, heads) = (
            keys.size("hidden_size", Some(768))?,
            keys.size("num_attention_heads", Some(12))?,
        );
        keys.require(&[("head_dim", json!(width / heads.max(1)))])?;
        let config = Self::new()
            .with_image_size(keys.size("image_size", Some(224))?)
            .with_patch_size(keys.size("patch_size", Some(16))?)
            .with_channels(channels(keys)?)
            .with_width(width)
            .with_layers(keys.size("num_hidden_layers", Some(12))?)
            .with_heads(heads)
            .with_feed_forward(keys.size("intermediate_size", Some(3072))?)
            .with_activation(activation)
            .with_epsilon(keys.number("layer_norm_eps", 1e-12)?)
            .with_biases(keys.flag("qkv_bias", true)?)
            .with_dropout(keys.number("hidden_dropout_prob", 0.0)?)
            .with_attention_dropout(keys.number("attention_probs_dropout_prob", 0.0)?)
            .with_deviation(keys.number("initializer_range", 0.02)?);
        Ok(Some(config))
    }

    fn config_json(&self) -> Result<Value, TaskError> {
        Ok(json!({
            "architectures": ["ViTForImageClassification"],
            "model_type": "vit",
            "image_size": self.image_size,
            "patch_size": self.patch_size,
            "num_channels": self.channels,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feed_forward,
            "hidden_act": match self.activation {
                Activation::Gelu => "gelu",
                Activation::GeluTanh => "gelu_new",
            },
            "layer_norm_eps": self.epsilon,
            "qkv_bias": self.biases,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.attention_dropout,
            "initializer_range": self.deviation,
            "torch_dtype": "float32",
        }))
    }

    fn layout(&self) -> StateDictLayout {
        StateDictLayout {
            prefix: "vit.".to_string(),
            ignored: ["*pooler.dense.*", "*embeddings.mask_token"]
                .map(str::to_string)
                .to_vec(),
            renamed: SINCE_VERSION_5
                .map(|(theirs, ours)| (theirs.to_string(), ours.to_string()))
                .to_vec(),
            other_libraries: &[OF_TORCHVISION],
            sizes: SIZES_OF_VIT,
            unshown: numbers::unshown(Self::SECTION, self, &["heads", "activation", "epsilon"]),
            ..StateDictLayout::default()
        }
    }

    fn fewest_parameters(&self) -> u64 {
        let sizes = [self.width, self.feed_forward, self.layers, self.channels];
        let [width, wide, layers, channels] = sizes.map(|size| size as u64);
        let [image, patch] = [self.image_size, self.patch_size].map(|size| size as u64);
        let patches = image.checked_div(patch).unwrap_or(0).saturating_pow(2);
        let pixels = patch.saturating_pow(2).saturating_mul(channels);
        let embeddings = width.saturating_mul(patches.saturating_add(pixels));
        let layer = width.saturating_mul(width.saturating_mul(4).saturating_add(2 * wide));
        layer.saturating_mul(layers).saturating_add(embeddings)
    }
}

#[cfg(test)]
mod tests;
