//! The kinds of models that learn from folders of images.

use std::collections::BTreeMap;
use std::path::Path;

use burn::prelude::*;
use everburn_models::resnet50::Stem;
use everburn_train::{Patterns, StateDictLayout, TaskError};
use serde_json::{Map, Value, json};
use toml::Table;

use super::ImageInput;
use super::hugging_face::{PretrainedImageModel, labels};
use super::pretrained::named;
use crate::tasks::images::ImageModel;
use crate::tasks::numbers;

/// The number of classes before there are data: ImageNet's.
const IMAGENET_CLASSES: usize = 1000;

/// The numbers of models, by the section that has them.
pub(super) type Sections = BTreeMap<String, Table>;

/// How the model of a task on images begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum OwnStem {
    /// It is no residual net.
    None,
    /// As the data and the settings of the data say.
    Any,
    /// As the section of the model says.
    Only(Stem),
}

/// What builds the model of a task on images. What it does not say, its images do.
pub(super) trait Architecture<M>: Send + Sync {
    /// The sections of a configuration file for the model and its images.
    fn sections(&self) -> &'static [&'static str] {
        &["data"]
    }

    /// Refuses numbers of which no model can be built.
    fn check(&self, _sections: &Sections) -> Result<(), TaskError> {
        Ok(())
    }

    /// The only size of images that the model takes, if it does not take any.
    fn image_size(&self, _sections: &Sections) -> Result<Option<usize>, TaskError> {
        Ok(None)
    }

    /// The only number of channels that the model takes, if it does not take any.
    fn channels(&self, _sections: &Sections) -> Result<Option<usize>, TaskError> {
        Ok(None)
    }

    /// How the model begins.
    fn stem(&self, _sections: &Sections) -> Result<OwnStem, TaskError> {
        Ok(OwnStem::Any)
    }

    /// The share of activations that dropout sets to zero while training.
    fn dropout(&self, _sections: &Sections) -> Result<f64, TaskError> {
        Ok(0.0)
    }

    /// The model for these images.
    fn build(
        &self,
        sections: &Sections,
        input: &ImageInput,
        device: &Device,
    ) -> Result<M, TaskError>;

    /// Where a pretrained model says it, its number of classes.
    fn classes(&self, _sections: &Sections) -> Option<usize> {
        None
    }

    /// The number of classes before there are data.
    fn classes_without_data(&self, _sections: &Sections) -> usize {
        IMAGENET_CLASSES
    }

    /// The last layer, if it is known.
    fn head(&self) -> Option<&'static str> {
        None
    }

    /// The model of a pretrained model's folder, if it is of this kind.
    fn adopt(
        &self,
        _folder: &Path,
        _config_json: &Value,
        _skip: &Patterns,
    ) -> Result<Option<Adopted>, TaskError> {
        Ok(None)
    }

    /// The `config.json` of the model for these images, whose classes have these names, if any.
    fn config_json(
        &self,
        _sections: &Sections,
        _input: &ImageInput,
        _names: &[String],
    ) -> Result<Value, TaskError> {
        Err(TaskError::new(
            "Hugging Face's transformers have no model like this one",
        ))
    }

    /// How the model's tensors are called in such a folder.
    fn layout(&self, _sections: &Sections) -> StateDictLayout {
        StateDictLayout::default()
    }
}

/// A pretrained model.
pub(super) struct Adopted {
    pub(super) sections: Sections,
    /// The names of its classes, where it has some and keeps them.
    pub(super) classes: Vec<String>,
    pub(super) image_size: Option<usize>,
    /// The channels of its images.
    pub(super) channels: usize,
    /// How it begins, if it is a residual net.
    pub(super) stem: Option<Stem>,
}

/// Models that are built for their images by a function.
pub(super) struct ByInput<M>(pub(super) fn(&ImageInput, &Device) -> M);

impl<M: ImageModel> Architecture<M> for ByInput<M> {
    fn build(
        &self,
        _sections: &Sections,
        input: &ImageInput,
        device: &Device,
    ) -> Result<M, TaskError> {
        Ok((self.0)(input, device))
    }
}

/// Models by their numbers, of which these are the preset.
pub(super) struct ByNumbers<C>(pub(super) C);

impl<C: PretrainedImageModel> ByNumbers<C> {
    fn numbers(&self, sections: &Sections) -> Result<C, TaskError> {
        numbers::with_own(&self.0, C::SECTION, sections.get(C::SECTION))
    }

    /// The numbers of the model for these images.
    fn numbers_for(&self, sections: &Sections, input: &ImageInput) -> Result<C, TaskError> {
        let numbers = self.numbers(sections)?.of_classes(input.classes);
        Ok(numbers.of_channels(input.channels).of_stem(input.stem))
    }
}

impl<C: PretrainedImageModel> Architecture<C::Model> for ByNumbers<C> {
    fn sections(&self) -> &'static [&'static str] {
        C::IMAGE_SECTIONS
    }

    fn check(&self, sections: &Sections) -> Result<(), TaskError> {
        let help = format!(
            "the numbers of the model are in [{}] of the configuration file",
            C::SECTION
        );
        let numbers = self.numbers(sections);
        let numbers = numbers.map_err(|error| error.with_help(&*help))?;
        numbers.check().map_err(|error| {
            TaskError::new(format!("the model cannot be built: {error}")).with_help(help)
        })
    }

    fn image_size(&self, sections: &Sections) -> Result<Option<usize>, TaskError> {
        Ok(self.numbers(sections)?.image_size())
    }

    fn channels(&self, sections: &Sections) -> Result<Option<usize>, TaskError> {
        Ok(self.numbers(sections)?.channels())
    }

    fn stem(&self, sections: &Sections) -> Result<OwnStem, TaskError> {
        let own = sections.get(C::SECTION);
        let is_own = own.is_some_and(|own| own.contains_key("stem"));
        Ok(match self.numbers(sections)?.stem() {
            None => OwnStem::None,
            Some(stem) if is_own => OwnStem::Only(stem),
            Some(_) => OwnStem::Any,
        })
    }

    fn dropout(&self, sections: &Sections) -> Result<f64, TaskError> {
        Ok(self.numbers(sections)?.dropout())
    }

    fn build(
        &self,
        sections: &Sections,
        input: &ImageInput,
        device: &Device,
    ) -> Result<C::Model, TaskError> {
        Ok(self.numbers_for(sections, input)?.build(device))
    }

    fn classes(&self, sections: &Sections) -> Option<usize> {
        let own = sections.get(C::SECTION)?.get("classes")?;
        own.as_integer()?.try_into().ok()
    }

    fn classes_without_data(&self, sections: &Sections) -> usize {
        // What cannot be built was refused.
        let numbers = self.numbers(sections);
        numbers.map_or(IMAGENET_CLASSES, |numbers| numbers.classes())
    }

    fn head(&self) -> Option<&'static str> {
        Some(C::HEAD)
    }

    fn adopt(
        &self,
        folder: &Path,
        config_json: &Value,
        skip: &Patterns,
    ) -> Result<Option<Adopted>, TaskError> {
        let Some(numbers) = C::adopt(config_json)? else {
            return Ok(None);
        };
        let (count, mut classes) = labels(config_json)?;
        let numbers = numbers.of_classes(count);
        let wrong = |error: &dyn std::fmt::Display| TaskError::new(format!("config.json: {error}"));
        numbers.check().map_err(|error| wrong(&error))?;
        refuse_larger_than_weights(&numbers, folder)?;
        let mut own = numbers::to_section(&numbers)?;
        own.remove("stem"); // data.stem has it, where the user may set another
        if skip.fit(&format!("{}.weight", C::HEAD)) {
            // The data decide.
            own.remove("classes");
            classes.clear();
        }
        Ok(Some(Adopted {
            image_size: numbers.image_size(),
            channels: numbers.channels().unwrap_or(3),
            stem: numbers.stem(),
            sections: [(C::SECTION.to_string(), own)].into(),
            classes,
        }))
    }

    fn config_json(
        &self,
        sections: &Sections,
        input: &ImageInput,
        names: &[String],
    ) -> Result<Value, TaskError> {
        let numbers = self.numbers_for(sections, input)?;
        let mut config = numbers.config_json()?;
        let names = match names {
            // As transformers call classes without names.
            [] => (0..numbers.classes())
                .map(|number| format!("LABEL_{number}"))
                .collect(),
            names => names.to_vec(),
        };
        let numbered = names.iter().enumerate();
        let id2label: Map<String, Value> = numbered
            .map(|(number, name)| (number.to_string(), json!(name)))
            .collect();
        let numbered = names.iter().enumerate();
        let label2id: Map<String, Value> = numbered
            .map(|(number, name)| (name.clone(), json!(number)))
            .collect();
        config["id2label"] = Value::Object(id2label);
        config["label2id"] = Value::Object(label2id);
        Ok(config)
    }

    fn layout(&self, sections: &Sections) -> StateDictLayout {
        // What cannot be built was refused.
        let numbers = self.numbers(sections);
        numbers.map_or_else(|_| StateDictLayout::default(), |numbers| numbers.layout())
    }
}

/// Refuses a model that is larger than all files of weights of its folder, before any of its numbers has memory. A number
/// takes a byte at least.
fn refuse_larger_than_weights<C: PretrainedImageModel>(
    numbers: &C,
    folder: &Path,
) -> Result<(), TaskError> {
    let (mut bytes, mut files) = (0_u64, Vec::new());
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let has_weights = path.extension().is_some_and(|ending| {
            ["safetensors", "bin"]
                .iter()
                .any(|known| ending.eq_ignore_ascii_case(known))
        });
        let name = path.file_name().and_then(|name| name.to_str());
        if let (Some(name), true) = (name, has_weights) {
            bytes = bytes.saturating_add(std::fs::metadata(&path).map_or(0, |file| file.len()));
            files.push(name.to_string());
        }
    }
    files.sort();
    match numbers.fewest_parameters() {
        // Where there are no weights, they are missed when they are read.
        fewest if fewest > bytes && !files.is_empty() => Err(TaskError::new(format!(
            "config.json: a model of these sizes has {fewest} parameters or more, and {} beside it {bytes} bytes",
            named(&files)
        ))),
        _ => Ok(()),
    }
}
