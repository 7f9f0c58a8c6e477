//! Decoders in the folders of Hugging Face's transformers: their `config.json`, and how their tensors are called.

use everburn_models::decoder::{DecoderConfig, RotaryScaling};
use everburn_models::gpt::{Activation, GptConfig, Positions};
use everburn_models::llama::LlamaConfig;
use everburn_train::{ShownBy, StateDictLayout, StatedSize, TaskError, TensorSource};
use serde_json::{Value, json};

use crate::tasks::json_keys::Keys;
use crate::tasks::numbers;

/// Numbers of a decoder that are in a `config.json` too, for [`Text`](super::Text). A decoder that no other library has
/// needs none of the methods.
///
/// ```
/// use everburn::models::llama::LlamaConfig;
/// use everburn::tasks::PretrainedDecoder;
///
/// // What `export --to hugging-face` writes as `config.json`.
/// let config = LlamaConfig::new(32_000).config_json().unwrap();
/// assert_eq!(config["vocab_size"], 32_000);
/// ```
pub trait PretrainedDecoder: DecoderConfig {
    /// The sections of a configuration file for such a model and its text.
    const TEXT_SECTIONS: &'static [&'static str] = &["data", "text", Self::SECTION];

    /// The numbers of the model that `config_json` describes; `None` if it is of another kind.
    ///
    /// # Errors
    /// The key that is missing, or says what the decoder cannot do.
    fn adopt(config_json: &Value) -> Result<Option<Self>, TaskError> {
        let _ = config_json;
        Ok(None)
    }

    /// The `config.json` of a model of these numbers.
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
}

/// Where the weights of a GPT-2 show what its `config.json` states.
const SIZES_OF_GPT: &[StatedSize] = &[
    StatedSize::new("/vocab_size", ShownBy::Dimension("wte.weight", 0)),
    StatedSize::new("/n_positions", ShownBy::Dimension("wpe.weight", 0)),
    StatedSize::new("/n_embd", ShownBy::Dimension("wte.weight", 1)),
    StatedSize::new("/n_layer", ShownBy::Parts("h")),
    // In files with the names here.
    StatedSize::new("/n_layer", ShownBy::Parts("layers")),
];

/// Where the weights of a Llama show what its `config.json` states.
const SIZES_OF_LLAMA: &[StatedSize] = &[
    StatedSize::new("/vocab_size", ShownBy::Dimension("embed_tokens.weight", 0)),
    StatedSize::new("/hidden_size", ShownBy::Dimension("embed_tokens.weight", 1)),
    StatedSize::new(
        "/intermediate_size",
        ShownBy::Dimension("mlp.up_proj.weight", 0),
    ),
    StatedSize::new("/num_hidden_layers", ShownBy::Parts("layers")),
    StatedSize::new("/num_attention_heads", ShownBy::Heads("q_proj.weight")),
    StatedSize::new("/num_key_value_heads", ShownBy::Heads("k_proj.weight")),
];

/// What no tensor of a Llama shows.
const UNSHOWN_OF_LLAMA: [&str; 5] = [
    "heads",
    "kv_heads",
    "epsilon",
    "rotary_base",
    "rotary_scaling",
];

impl PretrainedDecoder for GptConfig {
    fn adopt(config_json: &Value) -> Result<Option<Self>, TaskError> {
        let keys = Keys::of_config(config_json);
        if keys.kind() != "gpt2" {
            return Ok(None);
        }
        let width = keys.size("n_embd", None)?;
        let dropout = keys.number("resid_pdrop", 0.1)?;
        keys.require(&[
            ("n_inner", json!(width.saturating_mul(4))),
            ("embd_pdrop", json!(dropout)),
            ("attn_pdrop", json!(dropout)),
            ("layer_norm_epsilon", json!(1e-5)),
            ("scale_attn_weights", json!(true)),
            ("scale_attn_by_inverse_layer_idx", json!(false)),
            ("add_cross_attention", json!(false)),
            ("tie_word_embeddings", json!(true)),
        ])?;
        let activation = match config_json["activation_function"].as_str() {
            None | Some("gelu_new" | "gelu_pytorch_tanh") => Activation::GeluTanh,
            Some("gelu") => Activation::Gelu,
            Some(_) => {
                return Err(keys.unsupported("activation_function", "gelu_new or gelu"));
            }
        };
        let config = Self::new(keys.size("vocab_size", None)?)
            .with_context(keys.size("n_positions", None)?)
            .with_width(width)
            .with_layers(keys.size("n_layer", None)?)
            .with_heads(keys.size("n_head", None)?)
            .with_dropout(dropout)
            .with_deviation(keys.number("initializer_range", 0.02)?)
            .with_activation(activation);
        Ok(Some(config))
    }

    fn config_json(&self) -> Result<Value, TaskError> {
        if self.positions != Positions::Learned {
            return Err(TaskError::new(
                "a GPT-2 of Hugging Face's has learned positions, and this model rotary ones",
            )
            .with_help(
                "`--to safetensors` writes its weights by the model's own names; a `llama` has rotary positions there",
            ));
        }
        Ok(json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self.vocabulary,
            "n_positions": self.context,
            "n_embd": self.width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": null,
            "activation_function": match self.activation {
                Activation::Gelu => "gelu",
                Activation::GeluTanh => "gelu_new",
            },
            "resid_pdrop": self.dropout,
            "embd_pdrop": self.dropout,
            "attn_pdrop": self.dropout,
            "layer_norm_epsilon": 1e-5,
            "initializer_range": self.deviation,
            "tie_word_embeddings": true,
            "torch_dtype": "float32",
        }))
    }

    fn layout(&self) -> StateDictLayout {
        let source = |name: String, source: String, transposed, part| TensorSource {
            name,
            source: format!("transformer.{source}"),
            transposed,
            part,
        };
        let whole = |name: &str, of: &str| source(name.to_string(), of.to_string(), false, None);
        let both = ["weight", "bias"];
        let mut tensors = vec![whole("wte.weight", "wte.weight")];
        if self.positions == Positions::Learned {
            tensors.push(whole("wpe.weight", "wpe.weight"));
        }
        for layer in 0..self.layers {
            let (ours, theirs) = (format!("layers.{layer}"), format!("h.{layer}"));
            for (own, their) in [("norm1", "ln_1"), ("norm2", "ln_2")] {
                let norm = both.map(|end| {
                    whole(
                        &format!("{ours}.{own}.{end}"),
                        &format!("{theirs}.{their}.{end}"),
                    )
                });
                tensors.extend(norm);
            }
            // Their linear layers are [in, out], and queries, keys and values are one.
            for end in both {
                let parts = ["q", "k", "v"].into_iter().enumerate();
                tensors.extend(parts.map(|(index, name)| {
                    let name = format!("{ours}.attention.{name}.{end}");
                    let from = format!("{theirs}.attn.c_attn.{end}");
                    source(name, from, end == "weight", Some((index, 3)))
                }));
            }
            for (own, their) in [
                ("attention.out", "attn.c_proj"),
                ("feed_forward.up", "mlp.c_fc"),
                ("feed_forward.down", "mlp.c_proj"),
            ] {
                let linear = both.map(|end| {
                    let (name, from) = (
                        format!("{ours}.{own}.{end}"),
                        format!("{theirs}.{their}.{end}"),
                    );
                    source(name, from, end == "weight", None)
                });
                tensors.extend(linear);
            }
        }
        tensors.extend(both.map(|end| whole(&format!("norm.{end}"), &format!("ln_f.{end}"))));
        StateDictLayout {
            prefix: "transformer.".to_string(),
            tensors,
            ignored: ["*.attn.bias", "*.attn.masked_bias", "*lm_head.weight"]
                .map(str::to_string)
                .to_vec(),
            copies: &[("lm_head.weight", "wte.weight")],
            sizes: SIZES_OF_GPT,
            unshown: numbers::unshown(Self::SECTION, self, &["heads", "activation"]),
            ..StateDictLayout::default()
        }
    }
}

impl PretrainedDecoder for LlamaConfig {
    fn adopt(config_json: &Value) -> Result<Option<Self>, TaskError> {
        let keys = Keys::of_config(config_json);
        let kind = keys.kind();
        if !["llama", "mistral", "qwen2"].contains(&kind) {
            return Ok(None);
        }
        keys.require(&[
            ("hidden_act", json!("silu")),
            ("attention_bias", json!(false)),
            ("mlp_bias", json!(false)),
            ("attention_dropout", json!(0.0)),
            ("use_sliding_window", json!(false)),
            ("partial_rotary_factor", json!(1.0)),
            ("quantization_config", Value::Null),
        ])?;
        let heads = keys.size("num_attention_heads", None)?;
        let mut context = keys.size("max_position_embeddings", None)?;
        if kind == "mistral" {
            // Up to the window of its attention, all tokens see all before them.
            context = context.min(keys.size("sliding_window", Some(context))?);
        }
        let width = keys.size("hidden_size", None)?;
        let head_width = keys.size("head_dim", Some(width / heads.max(1)))?;
        let (rotary_base, rotary_scaling) = rotary(config_json)?;
        let config = Self::new(keys.size("vocab_size", None)?)
            .with_context(context)
            .with_width(width)
            .with_layers(keys.size("num_hidden_layers", None)?)
            .with_heads(heads)
            .with_kv_heads(keys.size("num_key_value_heads", Some(heads))?)
            .with_head_width(Some(head_width))
            .with_feed_forward(keys.size("intermediate_size", None)?)
            .with_epsilon(keys.number("rms_norm_eps", 1e-6)?)
            .with_rotary_base(rotary_base)
            .with_rotary_scaling(rotary_scaling)
            .with_biases(kind == "qwen2")
            .with_tied(keys.flag("tie_word_embeddings", false)?);
        Ok(Some(config))
    }

    fn config_json(&self) -> Result<Value, TaskError> {
        let (kind, architecture) = match self.biases {
            true => ("qwen2", "Qwen2ForCausalLM"),
            false => ("llama", "LlamaForCausalLM"),
        };
        let scaling = match self.rotary_scaling {
            RotaryScaling::None => Value::Null,
            RotaryScaling::Linear { factor } => json!({
                "rope_type": "linear",
                "factor": factor,
            }),
            RotaryScaling::Llama3 {
                factor,
                low_frequency,
                high_frequency,
                original_context,
            } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_frequency,
                "high_freq_factor": high_frequency,
                "original_max_position_embeddings": original_context,
            }),
        };
        Ok(json!({
            "architectures": [architecture],
            "model_type": kind,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.width_of_head(),
            "hidden_act": "silu",
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.epsilon,
            // Up to version 4 of transformers, and since version 5.
            "rope_theta": self.rotary_base,
            "rope_scaling": scaling,
            "tie_word_embeddings": self.tied,
            "use_sliding_window": false,
            "torch_dtype": "float32",
        }))
    }

    fn layout(&self) -> StateDictLayout {
        let mut ignored = vec!["*.rotary_emb.inv_freq"];
        ignored.extend(self.tied.then_some("*lm_head.weight"));
        StateDictLayout {
            prefix: "model.".to_string(),
            ignored: ignored.into_iter().map(str::to_string).collect(),
            copies: match self.tied {
                true => &[("lm_head.weight", "embed_tokens.weight")],
                false => &[],
            },
            own_head: Some("llama.tied = false"),
            sizes: SIZES_OF_LLAMA,
            unshown: numbers::unshown(Self::SECTION, self, &UNSHOWN_OF_LLAMA),
            ..StateDictLayout::default()
        }
    }
}

/// What any scaling of rotary positions may have.
const KEYS_OF_ROPE: [&str; 4] = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];

/// What Llama 3's has besides.
const KEYS_OF_LLAMA_3: [&str; 4] = [
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
];

/// How fast angles of rotary positions fall, and how they are scaled: in keys of their own, or in one since version 5.
fn rotary(config_json: &Value) -> Result<(f64, RotaryScaling), TaskError> {
    let name = match config_json["rope_parameters"].is_object() {
        true => "rope_parameters",
        false => "rope_scaling",
    };
    let scaling = Keys::of_config(&config_json[name]);
    if !(scaling.json.is_null() || scaling.json.is_object()) {
        return Err(Keys::of_config(config_json).wrong(name, "an object"));
    }
    scaling.require(&[("partial_rotary_factor", json!(1.0))])?;
    let base = Keys::of_config(config_json).number("rope_theta", 10_000.0)?;
    let base = scaling.number("rope_theta", base)?;
    let kind = scaling.json["rope_type"].as_str();
    let kind = kind.or_else(|| scaling.json["type"].as_str());
    let only = |own: &[&str]| scaling.only(name, &[&KEYS_OF_ROPE[..], own].concat());
    let scaling = match kind {
        // Later versions write the context, which such a model does not use.
        None | Some("default") => {
            only(&["original_max_position_embeddings"])?;
            RotaryScaling::None
        }
        Some("linear") => {
            only(&["factor", "original_max_position_embeddings"])?;
            RotaryScaling::Linear {
                factor: scaling.number("factor", 1.0)?,
            }
        }
        Some("llama3") => {
            only(&KEYS_OF_LLAMA_3)?;
            RotaryScaling::Llama3 {
                factor: scaling.number("factor", 1.0)?,
                low_frequency: scaling.number("low_freq_factor", 1.0)?,
                high_frequency: scaling.number("high_freq_factor", 4.0)?,
                original_context: scaling.size("original_max_position_embeddings", None)?,
            }
        }
        Some(_) => {
            let supported = "of rope_type default, linear or llama3";
            return Err(Keys::of_config(config_json).unsupported(name, supported));
        }
    };
    Ok((base, scaling))
}

#[cfg(test)]
mod tests;
